/* A net plugin (version 12) in the test's own process, which may have both ends of its connections, and what it logs.
 * One plugin a process; what a test sets in the environment it sets before net_load(). */
#ifndef TT_TESTS_COMMON_NET_PLUGIN_H
#define TT_TESTS_COMMON_NET_PLUGIN_H

#include <check.h>
#include <stddef.h>
#include <stdint.h>
#include "tutti/net.h"

#define LONG_MS 60000 /* bounds a hang, says nothing of speed */

extern const ncclNet_v12_t *net;
extern void *context;
/* Opens the plugin; the result of its init. */
ncclResult_t net_load(const char *path);
void *net_symbol(const char *name);
/* Both ends of a connection; the first error of either side. */
ncclResult_t net_meet(int send_dev, const char *handle, void *listener, void **send, void **recv);

/* All lines, in order, each with its level in front; for messages. */
extern char log_text[1 << 16];
extern char last_warning[1024];
const char *logged(const char *part);        /* not NULL: a line has it */
void expect_logged(const char *part);        /* fails if none has */
void first_warning(char *line, size_t size); /* fails if there is none */

uint64_t now_ms(void);
/* The end of main(). */
int net_run(const char *name, TCase *tcase, int timeout_s);

#endif
