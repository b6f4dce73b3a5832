/* Questions to a communicator, and versions. */
#include "api/check.h"
#include "api/export.h"
#include "api/handle.h"
#include "base/check.h"
#include "plan/monitor.h"
#include "tutti.h"

TT_EXPORT(ncclResult_t, ncclGetVersion, (int *version))
{
  TT_TRY(tt_api_check_pointer("ncclGetVersion", "version", version));
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

__attribute__((visibility("default"))) ncclResult_t tuttiGetVersion(int *version)
{
  TT_TRY(tt_api_check_pointer("tuttiGetVersion", "version", version));
  *version = TUTTI_MAJOR * 10000 + TUTTI_MINOR * 100 + TUTTI_PATCH;
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count))
{
  TT_TRY(tt_api_check_pointer("ncclCommCount", "count", count));
  TT_TRY(tt_handle_hold("ncclCommCount", comm));
  ncclResult_t result = tt_api_check_ready("ncclCommCount", comm);
  if (result == ncclSuccess) *count = comm->nranks;
  tt_handle_let_go(comm);
  return result;
}

TT_EXPORT(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int *device))
{
  TT_TRY(tt_api_check_pointer("ncclCommCuDevice", "device", device));
  TT_TRY(tt_handle_hold("ncclCommCuDevice", comm));
  ncclResult_t result = tt_api_check_ready("ncclCommCuDevice", comm);
  if (result == ncclSuccess) *device = comm->device_index;
  tt_handle_let_go(comm);
  return result;
}

TT_EXPORT(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank))
{
  TT_TRY(tt_api_check_pointer("ncclCommUserRank", "rank", rank));
  TT_TRY(tt_handle_hold("ncclCommUserRank", comm));
  ncclResult_t result = tt_api_check_ready("ncclCommUserRank", comm);
  if (result == ncclSuccess) *rank = comm->rank;
  tt_handle_let_go(comm);
  return result;
}

TT_EXPORT(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError))
{
  TT_TRY(tt_api_check_pointer("ncclCommGetAsyncError", "asyncError", asyncError));
  TT_TRY(tt_handle_hold("ncclCommGetAsyncError", comm));
  *asyncError = tt_api_in_progress(comm) ? ncclInProgress : tt_monitor_peek(comm);
  tt_handle_let_go(comm);
  return ncclSuccess;
}
