/* The suites of the tools' unit tests; main.c runs them all. */
#ifndef TESTS_TOOLS_SUITES_H
#define TESTS_TOOLS_SUITES_H

#include <check.h>

Suite *suite_operate(void);
Suite *suite_options(void);
Suite *suite_sweep(void);
Suite *suite_pattern(void);
Suite *suite_mutations(void);
Suite *suite_launcher(void);
Suite *suite_join(void);
Suite *suite_json(void);
Suite *suite_run(void);

#endif
