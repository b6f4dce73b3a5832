/* The table tuner: rules from a file, of which the first that fits a collective makes its choice win in the cost table.
 *
 * A context is one communicator's. Threads: any, also within one context; contexts know nothing of each other. Lines go
 * to the log of base, which plugin.c hands to the loader's logger. */
#ifndef TT_TUNER_TABLE_H
#define TT_TUNER_TABLE_H

#include <stdbool.h>
#include "rules.h"

struct tt_table;

/* ---- load.c ---- */

/* Reads the rules from the file that NCCL_TUNER_CONFIG_FILE names, else from nccl_tuner.conf in the working directory.
 * None of the latter is no error: *path is then "". Everything else that is wrong is reported, with ncclInvalidUsage
 * for what the file holds and ncclSystemError where it cannot be read. */
#define TT_TABLE_PATH 4096
ncclResult_t tt_table_load(struct tt_table_rules *rules, char *path);

/* ---- table.c ---- */

/* What the loader tells a context once. */
struct tt_table_place {
  size_t nranks, nnodes;
  bool tells_buffers; /* whether questions say if buffers are registered */
};

/* Loads the rules and says in the log how many there are. *out is NULL on failure. */
ncclResult_t tt_table_open(const struct tt_table_place *place, struct tt_table **out);
/* Says in the log which rules were of use, and which were not, and ends the context. */
void tt_table_close(struct tt_table *table);

struct tt_table_question {
  int collective;
  uint64_t bytes;
  int pipe_ops, reg_buff; /* reg_buff TT_RULE_ANY: not told */
};

/* The loader's cost table, rows * columns numbers, negative where something is impossible or forbidden. */
struct tt_table_costs {
  float *cost;
  int rows, columns;
};

/* Makes one of the costs win, the smallest of which does, and the first of equals. */
void tt_table_make_win(const struct tt_table_costs *costs, float *winner);

/* Applies the first rule that fits and whose choice is possible: its cost becomes the one that wins. Returns that rule,
 * or NULL and leaves the costs alone. */
const struct tt_table_rule *tt_table_apply(struct tt_table *table, const struct tt_table_question *question,
                                           const struct tt_table_costs *costs);

#endif
