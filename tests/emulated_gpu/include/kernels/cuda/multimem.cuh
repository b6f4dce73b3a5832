/* In place of kernels/cuda/multimem.cuh, for kernels on a CPU: the same by going through all copies. */
#ifndef TT_KERNELS_CUDA_MULTIMEM_CUH
#define TT_KERNELS_CUDA_MULTIMEM_CUH

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx.cuh"

struct tt_words {
  uint32_t w[4];
};

enum { EMU_MOST_COPIES = 64 };

/* The order in which a switch adds is not told: so it begins anywhere. Sums of 16-bit floats are kept in fp32, others
 * in their own type. */
template <typename T> struct tt_multicast_read {
  typedef tt_element<T> E;
  typedef typename E::type S;
  typedef typename E::value V;
  static constexpr int N = 16 / (int)sizeof(S);
  static tt_words take(const tt_byte *at, int op)
  {
    void *copies[EMU_MOST_COPIES];
    int n = emu_copies(at, copies, EMU_MOST_COPIES), first = (int)emu_random((uint32_t)n);
    V sum[N];
    S x[N];
    tt_words words;
    for (int c = 0; c < n; c++) {
      const tt_vector v = tt_load_volatile(copies[(first + c) % n]);
      memcpy(x, &v, sizeof(x));
      for (int i = 0; i < N; i++) {
        const V y = E::widen(x[i]);
        if (c == 0)
          sum[i] = y;
        else
          sum[i] = op == ncclMin   ? tt_smaller<V>(sum[i], y)
                   : op == ncclMax ? tt_larger<V>(sum[i], y)
                                   : tt_add<V>(sum[i], y);
      }
    }
    for (int i = 0; i < N; i++) x[i] = E::narrow(sum[i]);
    memcpy(&words, x, sizeof(words));
    return words;
  }
};
template <> struct tt_multicast_read<uint8_t> {
  static tt_words take(const tt_byte *, int)
  {
    emu_die("bytes are read through a multicast address");
  }
};

static inline void tt_multicast_store(tt_byte *at, const tt_words &x)
{
  void *copies[EMU_MOST_COPIES];
  const int n = emu_copies(at, copies, EMU_MOST_COPIES);
  for (int c = 0; c < n; c++)
    tt_store_volatile(copies[c], x.w[0] | (uint64_t)x.w[1] << 32, x.w[2] | (uint64_t)x.w[3] << 32);
}

/* What is under way to a copy is seen through its own address alone. */
static inline void tt_fence_alias()
{
  emu_fence();
}

#endif
