/* The suites of test_graph_join. */
#ifndef TEST_JOIN_SUITES_H
#define TEST_JOIN_SUITES_H

#include <check.h>

Suite *suite_join(void);
Suite *suite_join_counts(void);
Suite *suite_join_describe(void);
Suite *suite_join_exchange(void);
Suite *suite_join_log(void);
Suite *suite_join_programs(void);
Suite *suite_join_searched(void);

#endif
