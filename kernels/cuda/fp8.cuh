/* The fp8 types to and from fp32, two neighbours at a time, the first in the low byte. GPUs that have instructions for
 * it (since sm_89) use them; others compute as the host does. Both give the same codes: rounding to nearest even stops
 * at the largest finite number, and a NaN becomes 0x7f (`gpu_matrix -s fp8` tries every pair of codes). */
#ifndef TT_KERNELS_CUDA_FP8_CUH
#define TT_KERNELS_CUDA_FP8_CUH

#include <cuda_fp16.h>
#include <stdint.h>
#include "kernels/host/fp8.h"

template <bool E5M2> struct tt_fp8 {
  static __device__ __forceinline__ void widen(uint32_t pair, float *out)
  {
#if __CUDA_ARCH__ >= 890
    uint32_t halves; /* all of them are halves, too */
    if (E5M2)
      asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)pair));
    else
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)pair));
    out[0] = __half2float(__ushort_as_half((uint16_t)halves));
    out[1] = __half2float(__ushort_as_half((uint16_t)(halves >> 16)));
#else
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint8_t code = (uint8_t)(pair >> 8 * i);
      out[i] = E5M2 ? tt_e5m2_to_float(code) : tt_e4m3_to_float(code);
    }
#endif
  }
  static __device__ __forceinline__ uint32_t narrow(const float *in)
  {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    if (E5M2)
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(in[1]), "f"(in[0]));
    else
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(in[1]), "f"(in[0]));
    return pair;
#else
    uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) pair |= (uint32_t)(E5M2 ? tt_float_to_e5m2(in[i]) : tt_float_to_e4m3(in[i])) << 8 * i;
    return pair;
#endif
  }
};

#endif
