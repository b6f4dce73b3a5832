/* Tables of element types and reductions, with the names that nccl-tests gives them. */
#include "types.h"

#include <stddef.h>
#include <strings.h>

static const struct perf_type types[] = {
    {"int8", ncclInt8, 1, PERF_SIGNED, 7, 0},
    {"uint8", ncclUint8, 1, PERF_UNSIGNED, 8, 0},
    {"int32", ncclInt32, 4, PERF_SIGNED, 31, 0},
    {"uint32", ncclUint32, 4, PERF_UNSIGNED, 32, 0},
    {"int64", ncclInt64, 8, PERF_SIGNED, 63, 0},
    {"uint64", ncclUint64, 8, PERF_UNSIGNED, 64, 0},
    {"half", ncclFloat16, 2, PERF_FLOATING, 11, 14},
    {"float", ncclFloat32, 4, PERF_FLOATING, 24, 126},
    {"double", ncclFloat64, 8, PERF_FLOATING, 53, 1022},
    {"bfloat16", ncclBfloat16, 2, PERF_FLOATING, 8, 126},
    {"f8e4m3", ncclFloat8e4m3, 1, PERF_FLOATING, 4, 6},
    {"f8e5m2", ncclFloat8e5m2, 1, PERF_FLOATING, 3, 14},
};

static const struct perf_op ops[] = {
    {"sum", ncclSum}, {"prod", ncclProd}, {"min", ncclMin}, {"max", ncclMax}, {"avg", ncclAvg},
};

static const char *const aliases[][2] = {
    {"char", "int8"},      {"int", "int32"},      {"float16", "half"},   {"fp16", "half"},     {"float32", "float"},
    {"fp32", "float"},     {"float64", "double"}, {"fp64", "double"},    {"bf16", "bfloat16"}, {"e4m3", "f8e4m3"},
    {"fp8e4m3", "f8e4m3"}, {"e5m2", "f8e5m2"},    {"fp8e5m2", "f8e5m2"},
};

const struct perf_type *perf_type_at(int i)
{
  return i >= 0 && i < (int)(sizeof(types) / sizeof(types[0])) ? &types[i] : NULL;
}

const struct perf_op *perf_op_at(int i)
{
  return i >= 0 && i < (int)(sizeof(ops) / sizeof(ops[0])) ? &ops[i] : NULL;
}

const struct perf_type *perf_type_find(const char *name)
{
  for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
    if (!strcasecmp(name, aliases[i][0])) name = aliases[i][1];
  for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
    if (!strcasecmp(name, types[i].name)) return &types[i];
  return NULL;
}

const struct perf_op *perf_op_find(const char *name)
{
  for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
    if (!strcasecmp(name, ops[i].name)) return &ops[i];
  return NULL;
}

bool perf_type_is_fp8(const struct perf_type *type)
{
  return type->type == ncclFloat8e4m3 || type->type == ncclFloat8e5m2;
}
