/* What numbers are and how they round, as the formats' definitions say: slow, and independent of the code under test.
 */
#ifndef TT_TESTS_KERNELS_HOST_REFERENCE_H
#define TT_TESTS_KERNELS_HOST_REFERENCE_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>

/* check writes to a pipe for every assertion that holds, too slow for millions. */
#define EXPECT(condition, ...)                                                                                         \
  do {                                                                                                                 \
    if (!(condition)) ck_abort_msg(__VA_ARGS__);                                                                       \
  } while (0)

/* The same numbers in every run. */
uint64_t reference_random(void);

bool reference_is_float(int type);
bool reference_is_signed(int type);

/* An element as a number. Integers are extended to 64 bits by their sign. */
uint64_t reference_integer(int type, const unsigned char *at);
double reference_float_value(int type, const unsigned char *at);
double reference_half_value(uint16_t bits);
double reference_bfloat_value(uint16_t bits);
double reference_fp8_value(int type, uint8_t code);

/* The nearest number of a type, of two the even one. Of fp8 types the largest finite number is nearest to all beyond.
 */
double reference_round(int type, double value);
/* The fp8 code of that number, found by looking at all; 0x7f for NaN. */
uint8_t reference_fp8_code(int type, double value);

/* Minimum or maximum, where a NaN gives way to a number. */
double reference_extreme(int op, double a, double b);

#endif
