/* Linked into a copy of tutti-perf: stands before the library's ncclAllReduce and ncclSend and, on one rank and from
 * one call on, does what TEST_FAULT says. Shows that tutti-perf finds and reports what goes wrong. Of an all-reduce:
 *   corrupt  flips a bit of the last element of the result
 *   skip     does not take part in delivering the result: restores what was in the receive buffer
 *   error    returns ncclInternalError
 *   kill     ends the process as a crash would
 *   hang     never returns
 * of both, also in groups:
 *   shift    takes the data from one byte further on
 * of a send:
 *   refuse   returns ncclInternalError */
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "nccl.h"

static int setting(const char *name, int otherwise)
{
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

static size_t bytes_of(ncclDataType_t type)
{
  return type == ncclFloat64 || type == ncclInt64 || type == ncclUint64 ? 8
         : type == ncclInt8 || type == ncclUint8                        ? 1
         : type == ncclFloat8e4m3 || type == ncclFloat8e5m2             ? 1
         : type == ncclFloat16 || type == ncclBfloat16                  ? 2
                                                                        : 4;
}

static ncclResult_t skip(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                         ncclComm_t comm, cudaStream_t stream)
{
  size_t bytes = count * bytes_of(type);
  char *before = malloc(bytes + 1);
  if (!before) return ncclSystemError;
  memcpy(before, recv, bytes);
  ncclResult_t result = pncclAllReduce(send, recv, count, type, op, comm, stream);
  memcpy(recv, before, bytes);
  free(before);
  return result;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
  static _Thread_local int calls;
  const char *fault = getenv("TEST_FAULT");
  int rank = -1;
  ncclResult_t result = pncclCommUserRank(comm, &rank);
  if (result != ncclSuccess) return result;
  if (!fault || !*fault || rank != setting("TEST_FAULT_RANK", 1) || calls++ < setting("TEST_FAULT_CALL", 0))
    return pncclAllReduce(send, recv, count, type, op, comm, stream);
  if (!strcmp(fault, "error")) return ncclInternalError;
  if (!strcmp(fault, "kill")) kill(getpid(), SIGKILL);
  if (!strcmp(fault, "skip")) return skip(send, recv, count, type, op, comm, stream);
  if (!strcmp(fault, "shift")) return pncclAllReduce((const char *)send + 1, recv, count, type, op, comm, stream);
  while (!strcmp(fault, "hang")) pause();
  result = pncclAllReduce(send, recv, count, type, op, comm, stream);
  if (result == ncclSuccess && count) ((char *)recv)[count * bytes_of(type) - 1] ^= 1;
  return result;
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
  const char *fault = getenv("TEST_FAULT");
  int rank = -1;
  ncclResult_t result = pncclCommUserRank(comm, &rank);
  if (result != ncclSuccess) return result;
  bool chosen = fault && rank == setting("TEST_FAULT_RANK", 1), shifts = chosen && !strcmp(fault, "shift");
  if (chosen && !strcmp(fault, "refuse")) return ncclInternalError;
  return pncclSend((const char *)send + (shifts ? 1 : 0), count, type, peer, comm, stream);
}
