/* What the suites of this folder share. Each test runs in a process of its own, with a clean environment. */
#ifndef TT_TESTS_BASE_SUPPORT_H
#define TT_TESTS_BASE_SUPPORT_H

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl.h"
#include "tests/common/held.h"

/* Before each test: no NCCL_* or TUTTI_* variables, no configuration files, nothing read yet. */
void clean_setup(void);
/* A test case with that setup, added to the suite. */
TCase *clean_case(Suite *suite, const char *name);

/* A file in memory with this content; returns a path to it, which lives as long as the process. */
const char *memory_file(const char *content);
/* Sends the log to a file in memory from now on. */
void start_log(const char *level, const char *subsystems);
/* All that was logged since. Valid until the next call. */
const char *logged(void);
/* How often `part` occurs in the log. */
int logged_times(const char *part);
/* Fails the test unless the log matches the extended regular expression (a line's begin and end match ^ and $). */
void expect_logged(const char *pattern);
/* Fails the test unless the thread's last error contains `part`. */
void expect_error(const char *part);

/* Sets a variable and forgets what was read. */
void set_variable(const char *name, const char *value);
void *zone_of_zeros(size_t bytes); /* shared with forked children */

/* A reproducible random number. */
uint32_t next_random(uint64_t *state);

#define SUITES(X)                                                                                                      \
  X(text)                                                                                                              \
  X(hash) X(log) X(param) X(unknown) X(interface) X(address) X(socket) X(connect) X(shm) X(uds) X(doorbell) X(process) \
      X(fuzz) X(pool) X(maps)
#define DECLARE_SUITE(name) Suite *name##_suite(void);
SUITES(DECLARE_SUITE)

#endif
