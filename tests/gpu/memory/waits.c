/* While a kernel runs that does not end, nothing may wait for it: that kernel may itself wait for a rank whose host is
 * in one of these calls. Not so with cudaMalloc and cudaFree, where it is only printed what was seen. */
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include "memory.h"

#define PATIENCE_S 3

struct spin {
  unsigned *flag; /* mapped */
  pthread_t watchdog;
  pthread_mutex_t lock;
  pthread_cond_t over;
  bool ended, bitten;
};

/* Ends the kernel if nobody else does, so that a failure is no hang. */
static void *watch(void *argument)
{
  struct spin *spin = argument;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += PATIENCE_S;
  pthread_mutex_lock(&spin->lock);
  while (!spin->ended && !spin->bitten)
    spin->bitten = pthread_cond_timedwait(&spin->over, &spin->lock, &until) != 0 && !spin->ended;
  pthread_mutex_unlock(&spin->lock);
  __atomic_store_n(spin->flag, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static bool has_waited(struct spin *spin)
{
  pthread_mutex_lock(&spin->lock);
  bool bitten = spin->bitten;
  pthread_mutex_unlock(&spin->lock);
  return bitten;
}

static void end_spin(struct spin *spin)
{
  pthread_mutex_lock(&spin->lock);
  spin->ended = true;
  pthread_cond_signal(&spin->over);
  pthread_mutex_unlock(&spin->lock);
  pthread_join(spin->watchdog, NULL);
}

/* All that is done for a connection. Returns the call that waited or failed, or NULL. */
static const char *connect_under(struct bench *bench, struct spin *spin, int gpu, int peer)
{
  const struct tt_device *device = bench->device;
  struct tt_device_context *mine = bench->gpus[gpu].context, *theirs = bench->gpus[peer].second;
  struct tt_device_memory memory, import;
  struct tt_device_export export;
  struct tt_device_status status = {.size = sizeof(status)};
  int done = 0;
  if (device->alloc(mine, TEST_BYTES, &memory) != ncclSuccess || has_waited(spin)) return "alloc";
  if (device->export_memory(mine, &memory, 1, &export) != ncclSuccess || has_waited(spin)) return "export";
  if (device->import_memory(theirs, &export, &import) != ncclSuccess || has_waited(spin)) return "import";
  struct tt_conn conn = {.peer = 0, .step = 0};
  conn.slots[TT_PROTO_SIMPLE] = import.ptr;
  conn.slot_bytes[TT_PROTO_SIMPLE] = import.bytes / TT_SLOTS;
  conn.head = (void *)import.ptr;
  conn.tail = (void *)((char *)import.ptr + 128);
  if (device->conn_open(theirs, &conn) != ncclSuccess || has_waited(spin)) return "conn_open";
  device->conn_close(theirs, &conn);
  if (has_waited(spin)) return "conn_close";
  if (device->status(mine, &status) != ncclSuccess || status.result != ncclSuccess || has_waited(spin)) return "status";
  if (device->drain(mine, 100, &done) != ncclSuccess || !done || has_waited(spin)) return "drain";
  device->release(theirs, &import);
  if (has_waited(spin)) return "release of an import";
  device->release(mine, &memory);
  return has_waited(spin) ? "release" : NULL;
}

/* The end of another communicator on the GPU. */
static const char *close_under(struct bench *bench, struct spin *spin, struct tt_device_context *context)
{
  bench->device->stop(context);
  bench->device->close(context);
  return has_waited(spin) ? "close" : NULL;
}

/* With a context: closes it. */
static const char *under_spin(struct bench *bench, int gpu, int peer, cudaStream_t stream,
                              struct tt_device_context *context)
{
  struct spin spin = {.lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};
  if (cudaSetDevice(gpu) != cudaSuccess || cudaHostAlloc((void **)&spin.flag, sizeof(*spin.flag),
                                                         cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess)
    return "the test cannot allocate its flag";
  *spin.flag = 0;
  if (pthread_create(&spin.watchdog, NULL, watch, &spin) != 0) return "pthread_create";
  const char *culprit = NULL;
  if (kernel_spin(spin.flag, stream) != cudaSuccess)
    culprit = "the test's kernel";
  else
    culprit = context != NULL ? close_under(bench, &spin, context) : connect_under(bench, &spin, gpu, peer);
  end_spin(&spin);
  if (cudaStreamSynchronize(stream) != cudaSuccess) culprit = "the test's kernel";
  cudaFreeHost(spin.flag);
  return culprit;
}

static int judge(const struct bench *bench, const char *culprit, const char *what)
{
  char problem[128];
  if (culprit == NULL) return report(NULL, "%s", what);
  snprintf(problem, sizeof(problem), "%s failed, or waited for a kernel that is not its own", culprit);
  if (bench->vmm) return report(problem, "%s", what);
  printf("SKIP %s: %s waits, as it may\n", what, culprit);
  return 0;
}

int test_waits(struct bench *bench)
{
  char what[128];
  int failures = 0;
  for (int gpu = 0; gpu < bench->ngpus; gpu++) {
    int peer = (gpu + 1) % bench->ngpus, can = 0;
    if (bench->device->can_map(peer, gpu, &can) != ncclSuccess || !can) peer = gpu;
    snprintf(what, sizeof(what), "%s beside a kernel that spins on GPU %d's own stream, peer %d", bench->kind, gpu,
             peer);
    failures += judge(bench, under_spin(bench, gpu, peer, bench->gpus[gpu].stream, NULL), what);
    snprintf(what, sizeof(what), "%s beside a kernel that spins on GPU %d's default stream, peer %d", bench->kind, gpu,
             peer);
    failures += judge(bench, under_spin(bench, gpu, peer, cudaStreamLegacy, NULL), what);
  }
  struct tt_device_config config = {.size = sizeof(config), .index = 0, .rank = 0, .nranks = 1};
  struct tt_device_context *context;
  if (bench->device->open(&config, &context) != ncclSuccess) return failures + report("open", "%s", bench->kind);
  snprintf(what, sizeof(what), "%s, close beside a kernel that spins", bench->kind);
  return failures + judge(bench, under_spin(bench, 0, 0, bench->gpus[0].stream, context), what);
}
