/* An operation's signature in words, for errors. */
#ifndef TT_PROGRAM_SIGNATURE_H
#define TT_PROGRAM_SIGNATURE_H

#include <stddef.h>
#include "tutti/device.h"

/* "float32"; "sum". Never NULL. */
const char *tt_datatype_name(int type);
/* What a signature calls a sum of scaled inputs (ncclRedOpCreatePreMulSum), beside nccl.h's ops. */
enum { TT_OP_PREMULSUM = ncclNumOps };
const char *tt_op_name(int op);
/* "AllReduce of 1000 x float32, sum, root 0, RING/SIMPLE, 2 channels, operation 7"; the first one has no number. */
void tt_signature_describe(const struct tt_signature *signature, char *text, size_t size);
/* The fields that differ, as a list: "count, type"; "" if none. */
void tt_signature_differences(const struct tt_signature *a, const struct tt_signature *b, char *text, size_t size);

#endif
