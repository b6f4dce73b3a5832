/* The host device: executes programs on CPUs. A rank is a process or a thread and its buffers are ordinary memory. */
#ifndef TT_KERNELS_HOST_H
#define TT_KERNELS_HOST_H

#include <stdbool.h>
#include "tutti/device.h"

/* The backend, always there; lives as long as the library. */
const struct tt_device *tt_host_device(void);

/* dst = pre(src0) op pre(src1) op ..., in that order: reduces nsrc >= 1 inputs of `count` elements into each of
 * ndst >= 1 outputs. Input k is scaled first when scaled != NULL and scaled[k] != 0; `final` applies the division of
 * the finished result.
 *
 * Half precision, bfloat16 and fp8 are combined in fp32 and rounded once, to nearest even. A scaled input is rounded to
 * its type before it is combined, just as if it had been sent: so ranks that got it from a peer and the rank that owns
 * it compute the same bits. Integers wrap, as unsigned ones do; a result is wrapped to its type before it is divided,
 * truncating. In a minimum or maximum a NaN gives way to a number on either side, so that the order of inputs does not
 * matter; two NaNs give one. Results are the same in all sets of inner loops (reduce.h), but which NaN comes of two.
 *
 * Pointers need no alignment. Outputs may be the same as inputs or as each other, but not overlap partly. One input
 * without scaling or division is copied, whatever its type; otherwise the type is one of those that reduce. */
void tt_host_reduce(const struct tt_reduction *reduction, void *const *dst, int ndst, const void *const *src, int nsrc,
                    const unsigned char *scaled, int final, size_t count);

/* Whether an end could go on at `step`: there is room to send, or the message has begun to arrive. For reports: any
 * thread, while the connection lives. */
bool tt_host_ready(struct tt_conn *conn, int protocol, bool send, uint64_t step);

#endif
