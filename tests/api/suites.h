/* The suites of this folder. */
#ifndef TT_TESTS_API_SUITES_H
#define TT_TESTS_API_SUITES_H

#include <check.h>

Suite *config_suite(void);
Suite *calls_suite(void);
Suite *groups_suite(void);
Suite *blocks_suite(void);
Suite *handles_suite(void);
Suite *children_suite(void);
Suite *sharing_suite(void);
Suite *redop_suite(void);
Suite *limits_suite(void);
Suite *streams_suite(void);
Suite *streams_ends_suite(void);
Suite *nonblocking_suite(void);
Suite *buffers_suite(void);

#endif
