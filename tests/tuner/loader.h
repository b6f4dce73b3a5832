/* The plugin as a loader uses it: opened with dlopen, started and asked through any of its five ABI versions, with a
 * logger that keeps all lines. */
#ifndef TEST_TUNER_LOADER_H
#define TEST_TUNER_LOADER_H

#include <check.h>
#include <stdbool.h>
#include "tutti/tuner.h"

#define OLDEST 2
#define NEWEST 6

/* Puts `text` into a new file that NCCL_TUNER_CONFIG_FILE then names, and opens the plugin anew, so that it reads the
 * environment. Returns the file's path. */
const char *use_rules(const char *text);
/* Opens the plugin anew with the environment as it is. */
void use_plugin(void);
void *plugin_symbol(const char *name);

/* Starts a context with the struct of a version. */
ncclResult_t start(int version, size_t nranks, size_t nnodes, void **ctx);
ncclResult_t finish(int version, void *ctx);

/* A question with the loader's costs, and what became of it. */
#define ROWS TUTTI_NUM_ALGORITHMS
#define COLUMNS NCCL_NUM_PROTOCOLS
struct question {
  ncclFunc_t collective;
  size_t bytes;
  int pipe_ops, reg_buff;
  float costs[ROWS][COLUMNS];
  int rows; /* of them, for versions with a table */
  int nchannels;
  int algorithm, protocol; /* what wins; v2: what is answered, or -1 */
};
/* An all-reduce of `bytes` bytes: rows 0 to 6 and all columns cost 10 and more, increasing; row 1, column 2 is best
 * with 5. */
struct question all_reduce(size_t bytes);
/* v2 is told that CollNet and NVLS are there unless the costs of their Simple are negative. */
ncclResult_t ask(int version, void *ctx, struct question *question);
/* Without an opinion of the tuner. */
bool unchanged(int version, const struct question *question);

/* How often a line with `part` in it was logged at that level, and the last such line. */
int logged(ncclDebugLogLevel level, const char *part);
const char *last_logged(void);

void add_choice(Suite *suite);
void add_files(Suite *suite);
void add_reports(Suite *suite);
void add_core(Suite *suite);
void add_adapt(Suite *suite);

#endif
