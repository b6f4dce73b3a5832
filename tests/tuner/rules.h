/* Shared by the tests of the parser: parsing text that lies in memory of just its size, so that a sanitizer sees each
 * byte read beyond it. */
#ifndef TEST_TUNER_RULES_H
#define TEST_TUNER_RULES_H

#include <check.h>
#include <stdbool.h>
#include "plugins/tuner/rules.h"

ncclResult_t parse_bytes(const char *text, size_t bytes, struct tt_table_rules *rules,
                         struct tt_table_mistake *mistake);
/* But for the line. */
bool equal(const struct tt_table_rule *one, const struct tt_table_rule *other);
/* Tests of mutations.c: random rules written and read again, and files with random damage. */
void add_mutations(TCase *tcase, int rounds, unsigned seed);

#endif
