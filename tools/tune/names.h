/* Collectives and algorithms by the names that people write. */
#ifndef TUNE_NAMES_H
#define TUNE_NAMES_H

#include <stddef.h>

/* By name, whatever its case and without regard to `_` and `-`; -1: there is none. send, recv and sendrecv are all
 * TT_FUNC_SEND_RECV. */
int tune_collective_find(const char *name);
int tune_algorithm_find(const char *name);

/* "all_reduce", as tutti-perf's. */
const char *tune_collective_word(int collective);
/* "two_shot" */
const char *tune_algorithm_word(int algorithm);

/* Whether there is a program; for TT_FUNC_SEND_RECV, a pair of them. */
int tune_supports(int collective, int algorithm);
/* The words of all collectives, or of the algorithms that a collective has, with blanks between. */
void tune_collective_list(char *text, size_t size);
void tune_algorithm_list(int collective, char *text, size_t size);

#endif
