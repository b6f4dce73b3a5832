/* The reductions' inner loops for x86-64 with AVX2 and F16C. Called only where the machine has them. */
#include "kernels/host/reduce.h"

#ifdef __x86_64__
#include <immintrin.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#include "kernels/host/reduce_f16c.h"

#define TT_LEVEL avx2
#define TT_WIDEN_HALF widen_half
#define TT_NARROW_HALF narrow_half
#include "kernels/host/reduce_loops.h"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
