/* The host device: executes programs on CPUs. A rank is a process or a thread and its buffers are ordinary memory. */
#ifndef TT_KERNELS_HOST_H
#define TT_KERNELS_HOST_H

#include "tutti/device.h"

/* The backend, always there; lives as long as the library. */
const struct tt_device *tt_host_device(void);

/* dst = pre(src0) op pre(src1) ...: reduces nsrc >= 1 inputs of `count` elements into each of ndst >= 1 outputs. Input
 * k is scaled first when bit k of `scaled` is set; `final` applies the division of the finished result. Types narrower
 * than 32 bits are combined in fp32 (or 32-bit integers) and rounded once. Outputs may alias inputs exactly, not
 * partly. */
void tt_host_reduce(const struct tt_reduction *reduction, void *const *dst, int ndst, const void *const *src, int nsrc,
                    uint64_t scaled, int final, size_t count);

#endif
