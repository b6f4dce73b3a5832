/* The suites of this folder. */
#ifndef TEST_SUITES_H
#define TEST_SUITES_H

#include <check.h>

Suite *suite_xml(void);
Suite *suite_model(void);
Suite *suite_paths(void);
Suite *suite_reach(void);
Suite *suite_random(void);
Suite *suite_broken(void);
Suite *suite_detect(void);
Suite *suite_detect_file(void);
Suite *suite_fuse(void);
Suite *suite_clique(void);
Suite *suite_merge(void);

#endif
