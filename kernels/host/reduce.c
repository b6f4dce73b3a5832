/* Reductions of any number of inputs into any number of outputs. Works block by block: the running result of a block
 * stays in the first-level cache, so each input and each output passes through memory once. */
#include <string.h>
#include "kernels/host/host.h"
#include "kernels/host/reduce.h"

/* Elements of a block. Two working areas of at most 8 bytes an element: 8 KiB of the 32 KiB or more that a core's
 * first-level cache has, which leaves room for the inputs on their way. */
#define BLOCK 512

/* Clang's builtin does not know the name; every processor with AVX2 has F16C. */
#ifdef __clang__
#define HAS_F16C 1
#else
#define HAS_F16C __builtin_cpu_supports("f16c")
#endif

/* The first-level working areas of a block. */
struct work_area {
  _Alignas(64) unsigned char result[BLOCK * 8];
  _Alignas(64) unsigned char input[BLOCK * 8];
};

struct reduce_call {
  const struct tt_reduce_kernels *kernels;
  const struct tt_reduction *reduction;
  const void *const *src;
  int nsrc;
  const unsigned char *scaled;
  size_t offset; /* bytes from each pointer to the block at hand */
  size_t count;  /* elements of the block */
};

const struct tt_reduce_kernels *tt_reduce_kernels(int number)
{
  const struct tt_reduce_kernels *usable[3];
  int count = 0;
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && HAS_F16C) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      usable[count++] = &tt_reduce_kernels_avx512;
    usable[count++] = &tt_reduce_kernels_avx2;
  }
#endif
  usable[count++] = &tt_reduce_kernels_base;
  return number >= 0 && number < count ? usable[number] : NULL;
}

int tt_reduce_supports(int datatype)
{
  return datatype >= 0 && datatype < ncclNumTypes &&
         (tt_reduce_kernels_base.combine[datatype][ncclSum] || tt_reduce_kernels_base.widen[datatype]);
}

static const void *source(const struct reduce_call *call, int number)
{
  return (const unsigned char *)call->src[number] + call->offset;
}

static int is_scaled(const struct reduce_call *call, int number)
{
  return call->scaled && call->scaled[number];
}

/* One block of a type that is combined in itself. */
static void reduce_native(const struct reduce_call *call, void *out)
{
  const struct tt_reduction *reduction = call->reduction;
  int type = reduction->datatype;
  struct work_area area;
  const void *result = source(call, 0);
  if (is_scaled(call, 0)) {
    void *place = call->nsrc == 1 ? out : area.result;
    call->kernels->scale[type](place, result, reduction, call->count);
    result = place;
  } else if (call->nsrc == 1 && out != result) {
    memcpy(out, result, call->count * tt_datatype_bytes(type));
  }
  for (int k = 1; k < call->nsrc; k++) {
    const void *input = source(call, k);
    if (is_scaled(call, k)) {
      call->kernels->scale[type](area.input, input, reduction, call->count);
      input = area.input;
    }
    void *place = k + 1 == call->nsrc ? out : area.result;
    call->kernels->combine[type][reduction->op](place, result, input, call->count);
    result = place;
  }
}

/* An input of a narrow type as fp32, scaled and rounded where it has to be. */
static void widen_input(const struct reduce_call *call, int number, float *values)
{
  int type = call->reduction->datatype;
  call->kernels->widen[type](values, source(call, number), call->count);
  if (!is_scaled(call, number)) return;
  uint16_t rounded[BLOCK];
  call->kernels->scale[ncclFloat32](values, values, call->reduction, call->count);
  call->kernels->narrow[type](rounded, values, call->count);
  call->kernels->widen[type](values, rounded, call->count);
}

/* One block of a narrow type. */
static void reduce_widened(const struct reduce_call *call, void *out)
{
  _Alignas(64) float result[BLOCK], input[BLOCK];
  widen_input(call, 0, result);
  for (int k = 1; k < call->nsrc; k++) {
    widen_input(call, k, input);
    call->kernels->combine[ncclFloat32][call->reduction->op](result, result, input, call->count);
  }
  call->kernels->narrow[call->reduction->datatype](out, result, call->count);
}

void tt_reduce_with(const struct tt_reduce_kernels *kernels, const struct tt_reduction *reduction, void *const *dst,
                    int ndst, const void *const *src, int nsrc, const unsigned char *scaled, int final, size_t count)
{
  int type = reduction->datatype;
  size_t bytes = tt_datatype_bytes(type);
  int divide = final && reduction->divide_result && kernels->divide[type] != NULL;
  if (nsrc == 1 && !(scaled && scaled[0]) && !divide) {
    for (int d = 0; d < ndst; d++) {
      if (dst[d] != src[0]) memmove(dst[d], src[0], count * bytes);
    }
    return;
  }
  struct reduce_call call = {kernels, reduction, src, nsrc, scaled, 0, 0};
  for (size_t done = 0; done < count; done += call.count) {
    call.count = count - done < BLOCK ? count - done : BLOCK;
    call.offset = done * bytes;
    unsigned char *out = (unsigned char *)dst[0] + call.offset;
    if (kernels->widen[type]) {
      reduce_widened(&call, out);
    } else {
      reduce_native(&call, out);
    }
    if (divide) kernels->divide[type](out, reduction->divisor, call.count);
    for (int d = 1; d < ndst; d++) {
      if (dst[d] != dst[0]) memcpy((unsigned char *)dst[d] + call.offset, out, call.count * bytes);
    }
  }
}

void tt_host_reduce(const struct tt_reduction *reduction, void *const *dst, int ndst, const void *const *src, int nsrc,
                    const unsigned char *scaled, int final, size_t count)
{
  tt_reduce_with(tt_reduce_kernels(0), reduction, dst, ndst, src, nsrc, scaled, final, count);
}
