/* Signatures: what the two ends of a connection each believe they execute. */
#include "kernels/host/executor.h"

#include <stdio.h>
#include <string.h>
#include "base/hash.h"
#include "program/signature.h"

void tt_host_describe(const struct tt_work *work, char *text, size_t size)
{
  tt_signature_describe(&work->signature, text, size);
}

uint64_t tt_host_signature_hash(const struct tt_signature *s)
{
  const uint64_t fields[] = {s->sequence, s->count, (uint32_t)s->root,
                             (uint64_t)s->collective | (uint64_t)s->datatype << 8 | (uint64_t)s->op << 16 |
                                 (uint64_t)s->algorithm << 24 | (uint64_t)s->protocol << 32 |
                                 (uint64_t)s->nchannels << 40};
  return tt_hash(fields, sizeof(fields));
}

ncclResult_t tt_host_signature_check(const struct tt_host_run *run, const struct tt_host_operand *operand,
                                     const struct tt_signature *theirs)
{
  const struct tt_signature *ours = &run->work->signature;
  char mine[256], other[256], fields[128];
  if (memcmp(ours, theirs, sizeof(*ours)) == 0) return ncclSuccess;
  tt_signature_differences(ours, theirs, fields, sizeof(fields));
  if (fields[0] == '\0') return ncclSuccess;
  tt_signature_describe(ours, mine, sizeof(mine));
  tt_signature_describe(theirs, other, sizeof(other));
  return TT_FAIL(ncclInvalidUsage,
                 "ranks %d and %d do not execute the same operation: they differ in %s. Rank %d: %s. Rank %d: %s. All "
                 "ranks must make the same calls in the same order with the same arguments and settings",
                 run->work->rank, operand->conn->peer, fields, run->work->rank, mine, operand->conn->peer, other);
}
