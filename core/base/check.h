/* How errors travel: every function that can fail returns ncclResult_t. The function that first sees an error reports
 * it once, with TT_FAIL or tt_log_warn; all others hand it on with TT_TRY. */
#ifndef TT_BASE_CHECK_H
#define TT_BASE_CHECK_H

#include "nccl.h"
#include "base/log.h"

/* Returns from the calling function if `call` failed. */
#define TT_TRY(call)                                                                                                   \
  do {                                                                                                                 \
    ncclResult_t tt_result_ = (call);                                                                                  \
    if (tt_result_ != ncclSuccess) return tt_result_;                                                                  \
  } while (0)

/* Stores the result of `call` in `var` and jumps to `label` if it failed. For functions with something to undo. */
#define TT_TRY_GOTO(call, var, label)                                                                                  \
  do {                                                                                                                 \
    (var) = (call);                                                                                                    \
    if ((var) != ncclSuccess) goto label;                                                                              \
  } while (0)

/* Reports a sentence that names the thing, its value and the remedy, and yields `result`:
 *     return TT_FAIL(ncclInvalidArgument, "root %d is outside 0..%d", root, nranks - 1);  */
#define TT_FAIL(result, ...)                                                                                           \
  ({                                                                                                                   \
    ncclResult_t tt_failure_ = (result);                                                                               \
    tt_log_fail(tt_failure_, __FILE__, __LINE__, __func__, __VA_ARGS__);                                               \
    tt_failure_; /* not the call's value: the compiler then knows that it is no success */                             \
  })

/* calloc that reports. On failure *out is NULL. */
#define TT_CALLOC(out, count) tt_check_calloc((void **)(out), (count), sizeof(**(out)), __FILE__, __LINE__, __func__)

ncclResult_t tt_check_calloc(void **out, size_t count, size_t size, const char *file, int line, const char *func);

#define TT_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TT_MAX(a, b) ((a) > (b) ? (a) : (b))
#define TT_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
