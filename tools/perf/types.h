/* The element types and reductions that tutti-perf tests, with what the checker must know of them. */
#ifndef PERF_TYPES_H
#define PERF_TYPES_H

#include <stdbool.h>
#include "nccl.h"

enum perf_kind { PERF_SIGNED, PERF_UNSIGNED, PERF_FLOATING };

struct perf_type {
  const char *name;
  ncclDataType_t type;
  int bytes;
  enum perf_kind kind;
  int digits; /* significant bits of a floating type: integers up to 2^digits are exact; value bits of the others */
  int range;  /* of a floating type: numbers from 2^-range up to 2^(range + 2) have all digits */
};

struct perf_op {
  const char *name;
  ncclRedOp_t op;
};

/* Entry i of each table, or NULL past the end. */
const struct perf_type *perf_type_at(int i);
const struct perf_op *perf_op_at(int i);
/* By name, any case; "fp16", "fp32", "fp64", "bf16", "e4m3", "e5m2" and "char" are understood too. NULL if unknown. */
const struct perf_type *perf_type_find(const char *name);
const struct perf_op *perf_op_find(const char *name);

/* Not every device reduces these types. */
bool perf_type_is_fp8(const struct perf_type *type);

#endif
