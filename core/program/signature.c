/* Signatures in words. */
#include "program/signature.h"

#include <stdio.h>
#include "base/check.h"
#include "program/emit.h"

const char *tt_datatype_name(int type)
{
  static const char *const names[] = {"int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
                                      "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
  return type >= 0 && type < (int)TT_COUNT(names) ? names[type] : "unknown type";
}

const char *tt_op_name(int op)
{
  static const char *const names[] = {"sum", "prod", "max", "min", "avg", "premulsum"};
  return op >= 0 && op < (int)TT_COUNT(names) ? names[op] : "user-defined operation";
}

void tt_signature_describe(const struct tt_signature *s, char *text, size_t size)
{
  char number[40] = ""; /* works on streams have none */
  if (s->sequence > 0) snprintf(number, sizeof number, ", operation %llu", (unsigned long long)s->sequence);
  snprintf(text, size, "%s of %llu x %s, %s, root %d, %s/%s, %u channels%s", tt_collective_name(s->collective),
           (unsigned long long)s->count, tt_datatype_name(s->datatype), tt_op_name(s->op), s->root,
           tt_algorithm_name(s->algorithm), tt_protocol_name(s->protocol), s->nchannels, number);
}

void tt_signature_differences(const struct tt_signature *a, const struct tt_signature *b, char *text, size_t size)
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
