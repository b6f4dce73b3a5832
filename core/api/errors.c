/* Errors as the user sees them: names of result codes and the last sentence. */
#include "api/export.h"
#include "api/handle.h"
#include "base/log.h"
#include "plan/monitor.h"

TT_EXPORT(const char *, ncclGetErrorString, (ncclResult_t result))
{
  switch (result) {
  case ncclSuccess:
    return "no error";
  case ncclUnhandledCudaError:
    return "a GPU runtime call failed (ncclGetLastError says which)";
  case ncclSystemError:
    return "a system call failed (ncclGetLastError says which)";
  case ncclInternalError:
    return "internal error: please report it with the output of NCCL_DEBUG=INFO";
  case ncclInvalidArgument:
    return "invalid argument (ncclGetLastError says which)";
  case ncclInvalidUsage:
    return "invalid usage (ncclGetLastError says what)";
  case ncclRemoteError:
    return "another rank failed or could not be reached";
  case ncclInProgress:
    return "operation in progress";
  default:
    return "unknown result code";
  }
}

TT_EXPORT(const char *, ncclGetLastError, (ncclComm_t comm))
{
  if (tt_handle_try_hold(comm)) {
    (void)tt_monitor_settle(comm); /* a failure that ncclCommGetAsyncError has seen has its sentence a moment later */
    bool failed = atomic_load(&comm->async_error) != ncclSuccess;
    tt_handle_let_go(comm);
    if (failed) return comm->error_text;
  }
  static _Thread_local char text[1024];
  tt_log_last_error(text, sizeof text);
  return text;
}

TT_EXPORT(void, ncclResetDebugInit, (void))
{
  tt_log_reset();
}

/* Exported by NCCL beside its header. */
__attribute__((visibility("default"))) void ncclResetDebugInitInternal(void);
void ncclResetDebugInitInternal(void)
{
  tt_log_reset();
}
