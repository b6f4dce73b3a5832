/* Arithmetic of the software collnet plugin. Half-precision types are reduced in float and rounded once an operation.
 */
#include <string.h>
#include "software.h"

static const struct {
  const char *name;
  size_t bytes;
} types[] = {[ncclInt8] = {"int8", 1},        [ncclUint8] = {"uint8", 1},     [ncclInt32] = {"int32", 4},
             [ncclUint32] = {"uint32", 4},    [ncclInt64] = {"int64", 8},     [ncclUint64] = {"uint64", 8},
             [ncclFloat16] = {"float16", 2},  [ncclFloat32] = {"float32", 4}, [ncclFloat64] = {"float64", 8},
             [ncclBfloat16] = {"bfloat16", 2}};

size_t software_bytes(ncclDataType_t type)
{
  return (unsigned)type < sizeof(types) / sizeof(types[0]) ? types[type].bytes : 0;
}

const char *software_type_name(ncclDataType_t type)
{
  return software_bytes(type) ? types[type].name : "unknown";
}

static float from_bfloat16(uint16_t bits)
{
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

/* To the nearest, ties to even; quiet NaNs stay NaNs. */
static uint16_t to_bfloat16(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if (value != value) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Signed integers wrap, so sums and products are of the unsigned type. */
#define COMBINE(name, type, arithmetic, load, store)                                                                   \
  static void name(void *into, const void *from, size_t count, ncclRedOp_t op)                                         \
  {                                                                                                                    \
    type *a = into;                                                                                                    \
    const type *b = from;                                                                                              \
    for (size_t i = 0; i < count; i++) {                                                                               \
      __auto_type x = load(a[i]);                                                                                      \
      __auto_type y = load(b[i]);                                                                                      \
      if (op == ncclSum)                                                                                               \
        a[i] = store((arithmetic)x + (arithmetic)y);                                                                   \
      else if (op == ncclProd)                                                                                         \
        a[i] = store((arithmetic)x * (arithmetic)y);                                                                   \
      else if (op == ncclMax)                                                                                          \
        a[i] = x < y ? b[i] : a[i];                                                                                    \
      else                                                                                                             \
        a[i] = y < x ? b[i] : a[i];                                                                                    \
    }                                                                                                                  \
  }
#define SAME(value) (value)
#define NARROW_INT8(value) ((int8_t)(value))
#define NARROW_UINT8(value) ((uint8_t)(value))
#define NARROW_INT32(value) ((int32_t)(value))
#define NARROW_INT64(value) ((int64_t)(value))
#define WIDEN_HALF(value) ((float)(value))
#define NARROW_HALF(value) ((_Float16)(value))
COMBINE(combine_int8, int8_t, unsigned, SAME, NARROW_INT8)
COMBINE(combine_uint8, uint8_t, unsigned, SAME, NARROW_UINT8)
COMBINE(combine_int32, int32_t, uint32_t, SAME, NARROW_INT32)
COMBINE(combine_uint32, uint32_t, uint32_t, SAME, SAME)
COMBINE(combine_int64, int64_t, uint64_t, SAME, NARROW_INT64)
COMBINE(combine_uint64, uint64_t, uint64_t, SAME, SAME)
COMBINE(combine_float16, _Float16, float, WIDEN_HALF, NARROW_HALF)
COMBINE(combine_float32, float, float, SAME, SAME)
COMBINE(combine_float64, double, double, SAME, SAME)
COMBINE(combine_bfloat16, uint16_t, float, from_bfloat16, to_bfloat16)

void software_reduce(void *into, const void *from, size_t count, ncclDataType_t type, ncclRedOp_t op)
{
  static void (*const combine[])(void *, const void *, size_t, ncclRedOp_t) = {
      [ncclInt8] = combine_int8,        [ncclUint8] = combine_uint8,     [ncclInt32] = combine_int32,
      [ncclUint32] = combine_uint32,    [ncclInt64] = combine_int64,     [ncclUint64] = combine_uint64,
      [ncclFloat16] = combine_float16,  [ncclFloat32] = combine_float32, [ncclFloat64] = combine_float64,
      [ncclBfloat16] = combine_bfloat16};
  combine[type](into, from, count, op);
}
