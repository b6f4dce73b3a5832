/* The suites of this folder. */
#ifndef TEST_GRAPH_SUITES_H
#define TEST_GRAPH_SUITES_H

#include <check.h>

Suite *suite_file(void);
Suite *suite_search(void);

#endif
