/* The ABI of the software collnet plugin: all versions, or the one that COLLNET_ONLY_VERSION names, and its faults. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "software.h"

static void no_logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
{
  (void)level, (void)flags, (void)file, (void)line, (void)format;
}

ncclDebugLogger_t software_logger = no_logger;

static bool is_faulty(const char *call)
{
  const char *fault = getenv("SOFTWARE_COLLNET_FAULT");
  return fault && strcmp(fault, call) == 0;
}

static long number(const char *name)
{
  const char *text = getenv(name);
  return text ? strtol(text, NULL, 10) : 0;
}

/* ---- Members that are the same in all versions ---- */

static ncclResult_t devices(int *ndev)
{
  *ndev = is_faulty("devices") ? 0 : 1;
  return ncclSuccess;
}

static ncclResult_t connect_all(void *handles[], int nranks, int rank, void *listen_comm, void **comm)
{
  if (is_faulty("connect")) {
    WARN("software collnet: connecting fails on request");
    return ncclSystemError;
  }
  struct group *group = NULL;
  ncclResult_t result = software_connect(handles, nranks, rank, listen_comm, &group);
  *comm = group;
  return result;
}

static ncclResult_t reduce_support(ncclDataType_t type, ncclRedOp_t op, int *supported)
{
  const char *only = getenv("SOFTWARE_COLLNET_ONLY");
  *supported = software_bytes(type) > 0 && op >= ncclSum && op <= ncclMin &&
               (!only || strcmp(only, software_type_name(type)) == 0);
  return ncclSuccess;
}

static ncclResult_t reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
  (void)comm, (void)size;
  if (is_faulty("register")) {
    WARN("software collnet: registering fails on request");
    return ncclSystemError;
  }
  *mhandle = data;
  return type == NCCL_PTR_HOST ? ncclSuccess : ncclInternalError;
}

static ncclResult_t dereg(void *comm, void *mhandle)
{
  (void)comm, (void)mhandle;
  return ncclSuccess;
}

static void write_log(size_t count, ncclDataType_t type, ncclRedOp_t op)
{
  const char *file = getenv("SOFTWARE_COLLNET_LOG");
  FILE *out = file ? fopen(file, "a") : NULL;
  if (!out) return;
  fprintf(out, "%zu %s %d\n", count, software_type_name(type), (int)op);
  fclose(out);
}

/* Whether a call that is to fail has gone well often enough. */
static bool fails_now(const char *call)
{
  static _Atomic long done;
  return is_faulty(call) && done++ >= number("SOFTWARE_COLLNET_AFTER");
}

static ncclResult_t all_reduce(void *comm, void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               void *send_mhandle, void *recv_mhandle, void **request)
{
  if (!send_mhandle || !recv_mhandle || send < send_mhandle || recv < recv_mhandle) {
    WARN("software collnet: memory that is not registered");
    return ncclInternalError;
  }
  if (fails_now("post")) {
    WARN("software collnet: posting fails on request");
    return ncclSystemError;
  }
  struct request *posted;
  ncclResult_t result = software_post(comm, send, recv, count, type, op, &posted);
  if (posted) write_log(count, type, op);
  *request = posted;
  return result;
}

static ncclResult_t all_reduce_int(void *comm, void *send, void *recv, int count, ncclDataType_t type, ncclRedOp_t op,
                                   void *send_mhandle, void *recv_mhandle, void **request)
{
  return all_reduce(comm, send, recv, (size_t)count, type, op, send_mhandle, recv_mhandle, request);
}

/* The lateness of one operation at a time, which is how they are tested. */
static ncclResult_t test(void *request, int *done, int *size)
{
  static _Thread_local long tests;
  (void)size;
  if (fails_now("test")) {
    WARN("software collnet: testing fails on request");
    return ncclRemoteError;
  }
  *done = 0;
  if (tests < number("SOFTWARE_COLLNET_LATE")) {
    tests++;
    return ncclSuccess;
  }
  ncclResult_t result = software_test(request, done);
  if (*done) tests = 0;
  return result;
}

static ncclResult_t flush(void *comm, void *data, int size, void *mhandle, void **request)
{
  (void)comm, (void)data, (void)size, (void)mhandle;
  *request = NULL;
  return ncclSuccess;
}

static ncclResult_t close_coll(void *comm)
{
  software_close(comm);
  return ncclSuccess;
}

/* ---- Members that changed ---- */

static ncclResult_t init(ncclDebugLogger_t logger)
{
  software_logger = logger;
  if (!is_faulty("init")) return ncclSuccess;
  WARN("software collnet: init fails on request");
  return ncclSystemError;
}

static ncclResult_t listen_dev(int dev, void *handle, void **comm)
{
  (void)dev;
  if (!is_faulty("listen")) return software_listen(handle, comm);
  WARN("software collnet: listening fails on request");
  return ncclSystemError;
}

#if !COLLNET_ONLY_VERSION || COLLNET_ONLY_VERSION >= 11
/* A context of a communicator's own, which listen must see again. */
static ncclResult_t init_context(void **ctx, uint64_t comm_id, ncclDebugLogger_t logger)
{
  uint64_t *own = malloc(sizeof(*own));
  if (!own) return ncclSystemError;
  *own = comm_id;
  ncclResult_t result = init(logger);
  if (result == ncclSuccess)
    *ctx = own;
  else
    free(own);
  return result;
}

static ncclResult_t listen_context(void *ctx, int dev, void *handle, void **comm)
{
  return ctx ? listen_dev(dev, handle, comm) : ncclInternalError;
}

static ncclResult_t finalize(void *ctx)
{
  free(ctx);
  return ncclSuccess;
}
#endif

#if !COLLNET_ONLY_VERSION || COLLNET_ONLY_VERSION >= 9
static size_t most_bytes(void)
{
  return is_faulty("small") ? 1000 : 1 << 30;
}
#endif

#define PROPERTIES(version, ...)                                                                                       \
  static ncclResult_t get_properties_v##version(int dev, ncclNetProperties_v##version##_t *props)                      \
  {                                                                                                                    \
    *props = (ncclNetProperties_v##version##_t){.name = "software0",                                                   \
                                                .guid = (uint64_t)dev,                                                 \
                                                .ptrSupport = NCCL_PTR_HOST,                                           \
                                                .speed = 10000,                                                        \
                                                .port = 1,                                                             \
                                                .maxComms = 1024,                                                      \
                                                .maxRecvs = 1 __VA_ARGS__};                                            \
    return ncclSuccess;                                                                                                \
  }

#define NAME .name = "Software"
#define FRONT(version)                                                                                                 \
  NAME, .devices = devices, .getProperties = get_properties_v##version, .connect = connect_all,                        \
        .reduceSupport = reduce_support, .deregMr = dereg, .iflush = flush, .test = test, .closeColl = close_coll,     \
        .closeListen = software_close_listen
#define EXPORT(version)                                                                                                \
  __attribute__((visibility("default"))) const ncclCollNet_v##version##_t ncclCollNetPlugin_v##version
#define HAS(version) (!COLLNET_ONLY_VERSION || COLLNET_ONLY_VERSION == version)
#define LARGE , .maxCollBytes = most_bytes(), .maxP2pBytes = 1 << 30

#if HAS(12)
PROPERTIES(12, LARGE)
EXPORT(12) = {FRONT(12),    .init = init_context,     .listen = listen_context,
              .regMr = reg, .iallreduce = all_reduce, .finalize = finalize};
#endif
#if HAS(11)
PROPERTIES(11, LARGE)
EXPORT(11) = {FRONT(11),    .init = init_context,     .listen = listen_context,
              .regMr = reg, .iallreduce = all_reduce, .finalize = finalize};
#endif
#if HAS(10)
PROPERTIES(10, LARGE)
EXPORT(10) = {FRONT(10), .init = init, .listen = listen_dev, .regMr = reg, .iallreduce = all_reduce};
#endif
#if HAS(9)
PROPERTIES(9, LARGE)
EXPORT(9) = {FRONT(9), .init = init, .listen = listen_dev, .regMr = reg, .iallreduce = all_reduce};
#endif
#if HAS(8)
PROPERTIES(8, )
EXPORT(8) = {FRONT(8), .init = init, .listen = listen_dev, .regMr = reg, .iallreduce = all_reduce_int};
#endif
#if COLLNET_ONLY_VERSION == 7 || COLLNET_ONLY_VERSION == 6
static ncclResult_t reg_int(void *comm, void *data, int size, int type, void **mhandle)
{
  return reg(comm, data, (size_t)size, type, mhandle);
}
#endif
#if COLLNET_ONLY_VERSION == 7
PROPERTIES(7, )
EXPORT(7) = {FRONT(7), .init = init, .listen = listen_dev, .regMr = reg_int, .iallreduce = all_reduce_int};
#endif
#if COLLNET_ONLY_VERSION == 6
PROPERTIES(6, )
EXPORT(6) = {FRONT(6), .init = init, .listen = listen_dev, .regMr = reg_int, .iallreduce = all_reduce_int};
#endif
