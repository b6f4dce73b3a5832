/* Questions to a communicator, and versions. */
#include "api/check.h"
#include "api/export.h"
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
  TT_TRY(tt_api_check_handle("ncclCommCount", comm));
  TT_TRY(tt_api_check_pointer("ncclCommCount", "count", count));
  *count = comm->nranks;
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int *device))
{
  TT_TRY(tt_api_check_handle("ncclCommCuDevice", comm));
  TT_TRY(tt_api_check_pointer("ncclCommCuDevice", "device", device));
  *device = comm->device_index;
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank))
{
  TT_TRY(tt_api_check_handle("ncclCommUserRank", comm));
  TT_TRY(tt_api_check_pointer("ncclCommUserRank", "rank", rank));
  *rank = comm->rank;
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError))
{
  TT_TRY(tt_api_check_handle("ncclCommGetAsyncError", comm));
  TT_TRY(tt_api_check_pointer("ncclCommGetAsyncError", "asyncError", asyncError));
  *asyncError = tt_monitor_peek(comm);
  return ncclSuccess;
}
