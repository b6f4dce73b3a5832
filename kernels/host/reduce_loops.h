/* The inner loops, as text: each reduce_<level>.c sets the instruction set, says how half precision is converted
 * (TT_WIDEN_HALF, TT_NARROW_HALF), names its table (TT_LEVEL) and includes this file once. Written so that compilers
 * vectorise them. No loop both multiplies and adds: so no compiler can fuse the two, and all levels round alike. */

/* Vectorise at -O2 as at -O3. Nobody looks at the floating-point exception flags of these loops, so both sides of a
 * choice may be computed. */
#ifndef __clang__
#pragma GCC optimize("tree-vectorize", "vect-cost-model=dynamic", "no-trapping-math")
#endif

#include "kernels/host/fp8.h"

#define TT_LEVEL_PASTE(a, b) a##b
#define TT_LEVEL_NAME(level) TT_LEVEL_PASTE(tt_reduce_kernels_, level)
#define TT_LEVEL_QUOTE(level) #level
#define TT_LEVEL_TEXT(level) TT_LEVEL_QUOTE(level)

/* Iterations are independent even where an output is an input. */
#ifdef __clang__
#define TT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TT_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Users' and slots' memory may be aligned to nothing. */
#define TT_ANY_PLACE __attribute__((aligned(1), may_alias))
typedef int8_t TT_ANY_PLACE any_i8;
typedef uint8_t TT_ANY_PLACE any_u8;
typedef uint16_t TT_ANY_PLACE any_u16;
typedef int32_t TT_ANY_PLACE any_i32;
typedef uint32_t TT_ANY_PLACE any_u32;
typedef int64_t TT_ANY_PLACE any_i64;
typedef uint64_t TT_ANY_PLACE any_u64;
typedef float TT_ANY_PLACE any_f32;
typedef double TT_ANY_PLACE any_f64;

#define TT_SUM(a, b) ((a) + (b))
#define TT_PROD(a, b) ((a) * (b))
#define TT_LARGER(a, b) ((b) > (a) ? (b) : (a))
#define TT_SMALLER(a, b) ((b) < (a) ? (b) : (a))
/* A NaN, which is not equal to itself, gives way to a number on either side: so what comes out of many inputs does not
 * depend on their order. */
#define TT_LARGER_NUMBER(a, b) ((((b) > (a)) | ((a) != (a))) ? (b) : (a))
#define TT_SMALLER_NUMBER(a, b) ((((b) < (a)) | ((a) != (a))) ? (b) : (a))

#define TT_COMBINE(name, type, operation)                                                                              \
  static void name(void *out, const void *a, const void *b, size_t count)                                              \
  {                                                                                                                    \
    type *o = out;                                                                                                     \
    const type *x = a, *y = b;                                                                                         \
    TT_INDEPENDENT                                                                                                     \
    for (size_t i = 0; i < count; i++) o[i] = operation(x[i], y[i]);                                                   \
  }

/* Wrapping arithmetic is that of the unsigned type of the same width; comparing needs the type itself. */
#define TT_COMBINE_INTEGERS(name, arithmetic, type)                                                                    \
  TT_COMBINE(name##_sum, arithmetic, TT_SUM)                                                                           \
  TT_COMBINE(name##_prod, arithmetic, TT_PROD)                                                                         \
  TT_COMBINE(name##_max, type, TT_LARGER)                                                                              \
  TT_COMBINE(name##_min, type, TT_SMALLER)

#define TT_COMBINE_FLOATS(name, type)                                                                                  \
  TT_COMBINE(name##_sum, type, TT_SUM)                                                                                 \
  TT_COMBINE(name##_prod, type, TT_PROD)                                                                               \
  TT_COMBINE(name##_max, type, TT_LARGER_NUMBER)                                                                       \
  TT_COMBINE(name##_min, type, TT_SMALLER_NUMBER)

TT_COMBINE_INTEGERS(i8, any_u8, any_i8)
TT_COMBINE_INTEGERS(u8, any_u8, any_u8)
TT_COMBINE_INTEGERS(i32, any_u32, any_i32)
TT_COMBINE_INTEGERS(u32, any_u32, any_u32)
TT_COMBINE_INTEGERS(i64, any_u64, any_i64)
TT_COMBINE_INTEGERS(u64, any_u64, any_u64)
TT_COMBINE_FLOATS(f32, any_f32)
TT_COMBINE_FLOATS(f64, any_f64)

#define TT_SCALE(name, type, member)                                                                                   \
  static void name(void *out, const void *in, const struct tt_reduction *reduction, size_t count)                      \
  {                                                                                                                    \
    type *o = out;                                                                                                     \
    const type *x = in;                                                                                                \
    const type scale = (type)reduction->scale.member;                                                                  \
    TT_INDEPENDENT                                                                                                     \
    for (size_t i = 0; i < count; i++) o[i] = x[i] * scale;                                                            \
  }

TT_SCALE(scale_8, any_u8, bits)
TT_SCALE(scale_32, any_u32, bits)
TT_SCALE(scale_64, any_u64, bits)
TT_SCALE(scale_f32, any_f32, f32)
TT_SCALE(scale_f64, any_f64, f64)

#define TT_DIVIDE(name, type, wide)                                                                                    \
  static void name(void *values, int64_t divisor, size_t count)                                                        \
  {                                                                                                                    \
    type *v = values;                                                                                                  \
    for (size_t i = 0; i < count; i++) v[i] = (type)((wide)v[i] / (wide)divisor);                                      \
  }

TT_DIVIDE(divide_i8, any_i8, int64_t)
TT_DIVIDE(divide_u8, any_u8, uint64_t)
TT_DIVIDE(divide_i32, any_i32, int64_t)
TT_DIVIDE(divide_u32, any_u32, uint64_t)
TT_DIVIDE(divide_i64, any_i64, int64_t)
TT_DIVIDE(divide_u64, any_u64, uint64_t)

static void widen_bfloat(float *out, const void *in, size_t count)
{
  const any_u16 *x = in;
  TT_INDEPENDENT
  for (size_t i = 0; i < count; i++) out[i] = tt_bfloat_to_float(x[i]);
}

static void narrow_bfloat(void *out, const float *in, size_t count)
{
  any_u16 *o = out;
  TT_INDEPENDENT
  for (size_t i = 0; i < count; i++) o[i] = tt_float_to_bfloat(in[i]);
}

#define TT_CONVERT_FP8(type)                                                                                           \
  static void widen_##type(float *out, const void *in, size_t count)                                                   \
  {                                                                                                                    \
    const any_u8 *x = in;                                                                                              \
    TT_INDEPENDENT                                                                                                     \
    for (size_t i = 0; i < count; i++) out[i] = tt_##type##_to_float(x[i]);                                            \
  }                                                                                                                    \
  static void narrow_##type(void *out, const float *in, size_t count)                                                  \
  {                                                                                                                    \
    any_u8 *o = out;                                                                                                   \
    TT_INDEPENDENT                                                                                                     \
    for (size_t i = 0; i < count; i++) o[i] = tt_float_to_##type(in[i]);                                               \
  }

TT_CONVERT_FP8(e4m3)
TT_CONVERT_FP8(e5m2)

/* For levels without instructions of their own. */
static inline void widen_half_portable(float *out, const void *in, size_t count)
{
  const any_u16 *x = in;
  TT_INDEPENDENT
  for (size_t i = 0; i < count; i++) out[i] = tt_half_to_float(x[i]);
}

static inline void narrow_half_portable(void *out, const float *in, size_t count)
{
  any_u16 *o = out;
  TT_INDEPENDENT
  for (size_t i = 0; i < count; i++) o[i] = tt_float_to_half(in[i]);
}

#define TT_ROW(name)                                                                                                   \
  {                                                                                                                    \
    name##_sum, name##_prod, name##_max, name##_min                                                                    \
  }

const struct tt_reduce_kernels TT_LEVEL_NAME(TT_LEVEL) = {
    .name = TT_LEVEL_TEXT(TT_LEVEL),
    .combine = {[ncclInt8] = TT_ROW(i8),
                [ncclUint8] = TT_ROW(u8),
                [ncclInt32] = TT_ROW(i32),
                [ncclUint32] = TT_ROW(u32),
                [ncclInt64] = TT_ROW(i64),
                [ncclUint64] = TT_ROW(u64),
                [ncclFloat32] = TT_ROW(f32),
                [ncclFloat64] = TT_ROW(f64)},
    .scale = {[ncclInt8] = scale_8,
              [ncclUint8] = scale_8,
              [ncclInt32] = scale_32,
              [ncclUint32] = scale_32,
              [ncclInt64] = scale_64,
              [ncclUint64] = scale_64,
              [ncclFloat32] = scale_f32,
              [ncclFloat64] = scale_f64},
    .divide = {[ncclInt8] = divide_i8,
               [ncclUint8] = divide_u8,
               [ncclInt32] = divide_i32,
               [ncclUint32] = divide_u32,
               [ncclInt64] = divide_i64,
               [ncclUint64] = divide_u64},
    .widen = {[ncclFloat16] = TT_WIDEN_HALF,
              [ncclBfloat16] = widen_bfloat,
              [ncclFloat8e4m3] = widen_e4m3,
              [ncclFloat8e5m2] = widen_e5m2},
    .narrow = {[ncclFloat16] = TT_NARROW_HALF,
               [ncclBfloat16] = narrow_bfloat,
               [ncclFloat8e4m3] = narrow_e4m3,
               [ncclFloat8e5m2] = narrow_e5m2},
};
