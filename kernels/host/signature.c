/* Signatures: what the two ends of a connection each believe they execute. */
#include "kernels/host/executor.h"

#include <stdio.h>
#include <string.h>
#include "base/hash.h"
#include "program/emit.h"

static const char *type_name(int type)
{
  static const char *const names[] = {"int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
                                      "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
  return type >= 0 && type < (int)TT_COUNT(names) ? names[type] : "unknown type";
}

static const char *op_name(int op)
{
  static const char *const names[] = {"sum", "prod", "max", "min", "avg"};
  return op >= 0 && op < (int)TT_COUNT(names) ? names[op] : "user-defined operation";
}

static void describe(const struct tt_signature *s, char *text, size_t size)
{
  snprintf(text, size, "%s of %llu x %s, %s, root %d, %s/%s, %u channels, operation %llu",
           tt_collective_name(s->collective), (unsigned long long)s->count, type_name(s->datatype), op_name(s->op),
           s->root, tt_algorithm_name(s->algorithm), tt_protocol_name(s->protocol), s->nchannels,
           (unsigned long long)s->sequence);
}

void tt_host_describe(const struct tt_work *work, char *text, size_t size)
{
  describe(&work->signature, text, size);
}

uint64_t tt_host_signature_hash(const struct tt_signature *s)
{
  const uint64_t fields[] = {s->sequence, s->count, (uint32_t)s->root,
                             (uint64_t)s->collective | (uint64_t)s->datatype << 8 | (uint64_t)s->op << 16 |
                                 (uint64_t)s->algorithm << 24 | (uint64_t)s->protocol << 32 |
                                 (uint64_t)s->nchannels << 40};
  return tt_hash(fields, sizeof(fields));
}

/* The fields that differ, as a list; "" if none. */
static void differences(const struct tt_signature *a, const struct tt_signature *b, char *text, size_t size)
{
  const struct {
    const char *name;
    bool differs;
  } fields[] = {
      {"collective", a->collective != b->collective},
      {"count", a->count != b->count},
      {"type", a->datatype != b->datatype},
      {"reduction", a->op != b->op},
      {"root", a->root != b->root},
      {"algorithm", a->algorithm != b->algorithm},
      {"protocol", a->protocol != b->protocol},
      {"number of channels", a->nchannels != b->nchannels},
      {"sequence", a->sequence != b->sequence},
  };
  size_t used = 0;
  text[0] = '\0';
  for (size_t i = 0; i < TT_COUNT(fields); i++) {
    if (!fields[i].differs || used >= size) continue;
    used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", fields[i].name);
  }
}

ncclResult_t tt_host_signature_check(const struct tt_host_run *run, const struct tt_host_operand *operand,
                                     const struct tt_signature *theirs)
{
  const struct tt_signature *ours = &run->work->signature;
  char mine[256], other[256], fields[128];
  if (memcmp(ours, theirs, sizeof(*ours)) == 0) return ncclSuccess;
  differences(ours, theirs, fields, sizeof(fields));
  if (fields[0] == '\0') return ncclSuccess;
  describe(ours, mine, sizeof(mine));
  describe(theirs, other, sizeof(other));
  return TT_FAIL(ncclInvalidUsage,
                 "ranks %d and %d do not execute the same operation: they differ in %s. Rank %d: %s. Rank %d: %s. All "
                 "ranks must make the same calls in the same order with the same arguments and settings",
                 run->work->rank, operand->conn->peer, fields, run->work->rank, mine, operand->conn->peer, other);
}
