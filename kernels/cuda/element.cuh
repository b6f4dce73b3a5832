/* Arithmetic on 8-byte words of elements. The rules are those of the host device (kernels/host/host.h), so that both
 * give the same bits: 16-bit and 8-bit floats are combined in fp32 and rounded once, to nearest even; a scaled input is
 * rounded to its type before it is combined; integers wrap; in a minimum or maximum a NaN gives way to a number. */
#ifndef TT_KERNELS_CUDA_ELEMENT_CUH
#define TT_KERNELS_CUDA_ELEMENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>
#include "kernels/cuda/fp8.cuh"
#include "tutti/device.h"

/* How a reduction is made, in registers. */
struct tt_reduce_rule {
  uint64_t scale;
  int64_t divisor;
  int op; /* ncclSum .. ncclMin */
  bool divide;
};

/* An element type: `value` is what it is computed in. If it is PAIRED, two neighbours are converted at once. */
template <typename T> struct tt_element {
  typedef T type;
  typedef T value;
  static constexpr bool PAIRED = false;
  static __device__ value widen(T x)
  {
    return x;
  }
  static __device__ T narrow(value x)
  {
    return x;
  }
};
template <> struct tt_element<__half> {
  typedef uint16_t type;
  typedef float value;
  static constexpr bool PAIRED = false;
  static __device__ float widen(uint16_t x)
  {
    return __half2float(__ushort_as_half(x));
  }
  static __device__ uint16_t narrow(float x)
  {
    return __half_as_ushort(__float2half_rn(x));
  }
};
template <> struct tt_element<__nv_bfloat16> {
  typedef uint16_t type;
  typedef float value;
  static constexpr bool PAIRED = false;
  static __device__ float widen(uint16_t x)
  {
    return __uint_as_float((uint32_t)x << 16);
  }
  static __device__ uint16_t narrow(float x)
  {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  }
};

template <bool E5M2> struct tt_element<tt_fp8<E5M2>> {
  typedef uint8_t type;
  typedef float value;
  static constexpr bool PAIRED = true;
};

/* Integers are added and multiplied as unsigned ones, which wrap. */
template <typename V> struct tt_wrapping {
  typedef V type;
};
template <> struct tt_wrapping<int8_t> {
  typedef uint32_t type;
};
template <> struct tt_wrapping<uint8_t> {
  typedef uint32_t type;
};
template <> struct tt_wrapping<int32_t> {
  typedef uint32_t type;
};
template <> struct tt_wrapping<int64_t> {
  typedef uint64_t type;
};

template <typename V> __device__ __forceinline__ V tt_add(V a, V b)
{
  typedef typename tt_wrapping<V>::type W;
  return (V)((W)a + (W)b);
}
template <typename V> __device__ __forceinline__ V tt_multiply(V a, V b)
{
  typedef typename tt_wrapping<V>::type W;
  return (V)((W)a * (W)b);
}
/* Never fused with a neighbouring operation, which would round differently. */
template <> __device__ __forceinline__ float tt_add(float a, float b)
{
  return __fadd_rn(a, b);
}
template <> __device__ __forceinline__ float tt_multiply(float a, float b)
{
  return __fmul_rn(a, b);
}
template <> __device__ __forceinline__ double tt_add(double a, double b)
{
  return __dadd_rn(a, b);
}
template <> __device__ __forceinline__ double tt_multiply(double a, double b)
{
  return __dmul_rn(a, b);
}

/* A NaN, which is not equal to itself, gives way to a number on either side. */
template <typename V> __device__ __forceinline__ V tt_larger(V a, V b)
{
  return b > a || a != a ? b : a;
}
template <typename V> __device__ __forceinline__ V tt_smaller(V a, V b)
{
  return b < a || a != a ? b : a;
}

template <typename V> __device__ __forceinline__ V tt_scale_factor(uint64_t bits)
{
  return (V)bits;
}
template <> __device__ __forceinline__ float tt_scale_factor<float>(uint64_t bits)
{
  return __uint_as_float((uint32_t)bits);
}
template <> __device__ __forceinline__ double tt_scale_factor<double>(uint64_t bits)
{
  return __longlong_as_double((long long)bits);
}

/* A value as the bits of struct tt_reduction's scale. */
template <typename V> __device__ __forceinline__ uint64_t tt_factor_bits(V value)
{
  return (uint64_t)value;
}
template <> __device__ __forceinline__ uint64_t tt_factor_bits<float>(float value)
{
  return __float_as_uint(value);
}
template <> __device__ __forceinline__ uint64_t tt_factor_bits<double>(double value)
{
  return (uint64_t)__double_as_longlong(value);
}
/* An element in memory, likewise. */
template <typename T> __device__ __forceinline__ uint64_t tt_scale_bits(const void *at)
{
  typedef tt_element<T> E;
  typename E::type x = *(const volatile typename E::type *)at;
  if constexpr (E::PAIRED) {
    float pair[2];
    T::widen(x, pair);
    return tt_factor_bits(pair[0]);
  } else {
    return tt_factor_bits(E::widen(x));
  }
}

template <typename V> __device__ __forceinline__ V tt_divide(V a, int64_t divisor)
{
  if (sizeof(V) == 8 && (V)-1 > 0) return (V)((uint64_t)a / (uint64_t)divisor);
  return (V)((int64_t)a / divisor);
}
template <> __device__ __forceinline__ float tt_divide(float a, int64_t)
{
  return a;
}
template <> __device__ __forceinline__ double tt_divide(double a, int64_t)
{
  return a;
}

/* The elements of a word while they are combined. */
template <typename T> struct tt_word {
  typedef tt_element<T> E;
  typedef typename E::type S;
  typedef typename E::value V;
  static constexpr int N = 8 / (int)sizeof(S);
  V value[N];

  __device__ __forceinline__ void load(uint64_t word)
  {
    if constexpr (E::PAIRED) {
#pragma unroll
      for (int i = 0; i < N; i += 2) T::widen((uint32_t)(word >> 8 * i) & 0xffff, value + i);
    } else {
#pragma unroll
      for (int i = 0; i < N; i++) value[i] = E::widen(at(word, i));
    }
  }
  __device__ __forceinline__ void scale(const tt_reduce_rule &rule)
  {
    V factor = tt_scale_factor<V>(rule.scale);
    if constexpr (E::PAIRED) {
#pragma unroll
      for (int i = 0; i < N; i++) value[i] = tt_multiply<V>(value[i], factor);
      load(pack());
    } else {
#pragma unroll
      for (int i = 0; i < N; i++) value[i] = E::widen(E::narrow(tt_multiply<V>(value[i], factor)));
    }
  }
  __device__ __forceinline__ void add(const tt_word &other)
  {
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = tt_add<V>(value[i], other.value[i]);
  }
  __device__ __forceinline__ void combine(const tt_word &other, int op)
  {
    if (op == ncclSum) {
      add(other);
    } else if (op == ncclProd) {
#pragma unroll
      for (int i = 0; i < N; i++) value[i] = tt_multiply<V>(value[i], other.value[i]);
    } else if (op == ncclMax) {
#pragma unroll
      for (int i = 0; i < N; i++) value[i] = tt_larger<V>(value[i], other.value[i]);
    } else {
#pragma unroll
      for (int i = 0; i < N; i++) value[i] = tt_smaller<V>(value[i], other.value[i]);
    }
  }
  /* The word, after a division where one is due: of integers only. */
  __device__ __forceinline__ uint64_t store(const tt_reduce_rule &rule, bool final) const
  {
    if constexpr (E::PAIRED) {
      return pack();
    } else {
      uint64_t word = 0;
#pragma unroll
      for (int i = 0; i < N; i++) {
        S x = E::narrow(value[i]);
        if (final && rule.divide) x = E::narrow((V)tt_divide<V>(E::widen(x), rule.divisor));
        word |= (uint64_t)bits_of(x) << (i * 8 * (int)sizeof(S) % 64);
      }
      return word;
    }
  }

private:
  __device__ __forceinline__ uint64_t pack() const
  {
    uint64_t word = 0;
#pragma unroll
    for (int i = 0; i < N; i += 2) word |= (uint64_t)T::narrow(value + i) << 8 * i;
    return word;
  }
  static __device__ __forceinline__ S at(uint64_t word, int i)
  {
    S x;
    uint64_t shifted = word >> (i * 8 * (int)sizeof(S) % 64);
    memcpy(&x, &shifted, sizeof(x));
    return x;
  }
  static __device__ __forceinline__ uint64_t bits_of(S x)
  {
    uint64_t word = 0;
    memcpy(&word, &x, sizeof(x));
    return word;
  }
};

/* The next input of a reduction, as a word. */
template <typename T>
__device__ __forceinline__ void tt_take(tt_word<T> *sum, uint64_t word, bool first, bool scaled,
                                        const tt_reduce_rule &rule)
{
  tt_word<T> x;
  x.load(word);
  if (scaled) x.scale(rule);
  if (first)
    *sum = x;
  else
    sum->combine(x, rule.op);
}

/* The same for N words, the operation chosen once. */
template <typename T, int N>
__device__ __forceinline__ void tt_take_all(tt_word<T> *sum, const uint64_t *words, bool first, bool scaled,
                                            const tt_reduce_rule &rule)
{
  tt_word<T> x[N];
#pragma unroll
  for (int i = 0; i < N; i++) x[i].load(words[i]);
  if (scaled) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i].scale(rule);
  }
  if (first) {
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = x[i];
  } else if (rule.op == ncclSum) {
#pragma unroll
    for (int i = 0; i < N; i++) sum[i].add(x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) sum[i].combine(x[i], rule.op);
  }
}

template <typename T> __device__ __forceinline__ uint64_t tt_scale_word(uint64_t word, const tt_reduce_rule &rule)
{
  tt_word<T> values;
  values.load(word);
  values.scale(rule);
  return values.store(rule, false);
}

/* ncclDataType_t to type. */
template <int DATATYPE> struct tt_datatype;
#define TT_DATATYPE(number, name)                                                                                      \
  template <> struct tt_datatype<number> {                                                                             \
    typedef name type;                                                                                                 \
  }
TT_DATATYPE(0, int8_t);
TT_DATATYPE(1, uint8_t);
TT_DATATYPE(2, int32_t);
TT_DATATYPE(3, uint32_t);
TT_DATATYPE(4, int64_t);
TT_DATATYPE(5, uint64_t);
TT_DATATYPE(6, __half);
TT_DATATYPE(7, float);
TT_DATATYPE(8, double);
TT_DATATYPE(9, __nv_bfloat16);
TT_DATATYPE(10, tt_fp8<false>);
TT_DATATYPE(11, tt_fp8<true>);
#undef TT_DATATYPE

/* What this compilation is for. */
typedef typename tt_datatype<TT_CUDA_DATATYPE>::type element;

#endif
