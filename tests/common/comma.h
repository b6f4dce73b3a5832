/* A program whose locale writes numbers with a comma, as many do that call setlocale(LC_ALL, ""). */
#ifndef TT_TESTS_COMMON_COMMA_H
#define TT_TESTS_COMMON_COMMA_H

#include <stdbool.h>

/* From now on this process is one, until it ends; false where no such locale can be made, which it says. */
bool comma_locale(void);

#endif
