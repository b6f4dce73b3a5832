/* The parts of the report's unit tests. */
#ifndef SUITES_H
#define SUITES_H

#include <check.h>

Suite *progress_suite(void);
Suite *writer_suite(void);
Suite *calls_suite(void);
Suite *moments_suite(void);

#endif
