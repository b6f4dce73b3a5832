/* Exporting: each public function is pncclX, with ncclX as a weak alias of the same code that a profiling library may
 * interpose. */
#ifndef TT_API_EXPORT_H
#define TT_API_EXPORT_H

#include "nccl.h"

/* TT_EXPORT(ncclResult_t, ncclGetVersion, (int *version)) { ... } */
#define TT_EXPORT(type, name, args)                                                                                    \
  type p##name args;                                                                                                   \
  extern __typeof__(p##name) name __attribute__((weak, alias("p" #name), visibility("default")));                      \
  __attribute__((visibility("default"))) type p##name args

#endif
