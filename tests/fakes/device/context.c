/* Contexts, connections' ends, and the backend itself. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct fake_totals fake_totals;

static tt_device_log *core_log;
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static int contexts_of[FAKE_DEVICES];
static struct tt_device_config opened[FAKE_DEVICES];

static ncclResult_t check_index(int index)
{
  if (index >= 0 && index < FAKE_DEVICES) return ncclSuccess;
  return TT_FAIL(ncclInvalidArgument, "device %d does not exist; there are 0 to %d", index, FAKE_DEVICES - 1);
}

static ncclResult_t count(int *devices)
{
  *devices = FAKE_DEVICES;
  return ncclSuccess;
}

static ncclResult_t current(int *index)
{
  *index = fake_device_of_thread();
  return ncclSuccess;
}

static ncclResult_t properties(int index, struct tt_device_properties *p)
{
  TT_TRY(check_index(index));
  *p = (struct tt_device_properties){.size = p->size, .processors = 16, .memory = (uint64_t)1 << 30};
  snprintf(p->name, sizeof p->name, "Fake device %d", index);
  snprintf(p->pci, sizeof p->pci, "0000:%02x:00.0", index + 1);
  snprintf((char *)p->id, sizeof p->id, "fake-device-%d", index);
  return ncclSuccess;
}

static ncclResult_t can_map(int from, int to, int *can)
{
  TT_TRY(check_index(from));
  TT_TRY(check_index(to));
  *can = 1;
  return ncclSuccess;
}

static ncclResult_t open_context(const struct tt_device_config *config, struct tt_device_context **out)
{
  struct tt_device_context *context;
  pthread_condattr_t attributes;
  TT_TRY(check_index(config->index));
  TT_TRY(TT_CALLOC(&context, 1));
  context->device = config->index;
  context->rank = config->rank;
  context->nranks = config->nranks;
  context->refs = 1;
  context->status.size = sizeof context->status;
  context->status.peer = -1;
  pthread_mutex_init(&context->lock, NULL);
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&context->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  fake_totals.contexts++;
  pthread_mutex_lock(&devices_lock);
  contexts_of[context->device]++;
  opened[context->device] = (struct tt_device_config){0};
  memcpy(&opened[context->device], config, TT_MIN(config->size, sizeof *config));
  pthread_mutex_unlock(&devices_lock);
  *out = context;
  return ncclSuccess;
}

void fake_context_hold(struct tt_device_context *context)
{
  pthread_mutex_lock(&context->lock);
  context->refs++;
  pthread_mutex_unlock(&context->lock);
}

void fake_context_drop(struct tt_device_context *context)
{
  pthread_mutex_lock(&context->lock);
  int left = --context->refs;
  pthread_mutex_unlock(&context->lock);
  if (left > 0) return;
  fake_copies_end(context);
  pthread_cond_destroy(&context->changed);
  pthread_mutex_destroy(&context->lock);
  free(context);
}

/* timeout_ms < 0: as long as it takes. */
static ncclResult_t drain(struct tt_device_context *context, int timeout_ms, int *done)
{
  uint64_t end = tt_timer_ns() + (uint64_t)TT_MAX(timeout_ms, 0) * 1000000;
  struct timespec until = {.tv_sec = (time_t)(end / 1000000000u), .tv_nsec = (long)(end % 1000000000u)};
  pthread_mutex_lock(&context->lock);
  int waited = 0;
  while (context->finished != context->issued && waited == 0)
    waited = timeout_ms < 0 ? pthread_cond_wait(&context->changed, &context->lock)
                            : pthread_cond_timedwait(&context->changed, &context->lock, &until);
  *done = context->finished == context->issued;
  pthread_mutex_unlock(&context->lock);
  return ncclSuccess;
}

static void stop(struct tt_device_context *context)
{
  atomic_store(&context->abort, 1);
}

static void close_context(struct tt_device_context *context)
{
  int done;
  if (context == NULL) return;
  drain(context, atomic_load(&context->abort) ? 1000 : -1, &done);
  stop(context); /* for what a graph would still repeat */
  pthread_mutex_lock(&devices_lock);
  bool last = --contexts_of[context->device] == 0;
  pthread_mutex_unlock(&devices_lock);
  if (last && done) fake_streams_end(context->device);
  fake_totals.contexts--;
  fake_context_drop(context);
}

static ncclResult_t check_ends(const struct tt_device_context *context, const struct tt_conn *conn)
{
  bool there =
      fake_range_covers(context, (const void *)conn->head, sizeof *conn->head) &&
      fake_range_covers(context, (const void *)conn->tail, sizeof *conn->tail) &&
      (!conn->fifo || fake_range_covers(context, conn->fifo, TT_SLOTS * sizeof *conn->fifo + sizeof(uint64_t)));
  for (int p = 0; p < TT_NUM_PROTOCOLS && there && !(conn->flags & TT_CONN_POOLED); p++)
    there = !conn->slots[p] || fake_range_covers(context, conn->slots[p], TT_SLOTS * conn->slot_bytes[p]);
  if (there) return ncclSuccess;
  return TT_FAIL(ncclInternalError, "rank %d's connection with rank %d lies where fake device %d has nothing mapped",
                 context->rank, conn->peer, context->device);
}

static ncclResult_t conn_open(struct tt_device_context *context, struct tt_conn *conn)
{
  struct fake_twin *twin;
  TT_TRY(check_ends(context, conn));
  TT_TRY(TT_CALLOC(&twin, 1));
  twin->conn = *conn;
  if (conn->step != 0 && !(conn->flags & (TT_CONN_PROXIED | TT_CONN_LINES))) { /* a proxy has set its own */
    atomic_store(conn->head, conn->step);
    atomic_store(conn->tail, conn->step);
  }
  conn->twin = twin;
  fake_totals.twins++;
  return ncclSuccess;
}

static void conn_close(struct tt_device_context *context, struct tt_conn *conn)
{
  (void)context;
  if (conn->twin == NULL) return;
  free(conn->twin);
  conn->twin = NULL;
  fake_totals.twins--;
}

static ncclResult_t status(struct tt_device_context *context, struct tt_device_status *out)
{
  pthread_mutex_lock(&context->lock);
  *out = context->status;
  pthread_mutex_unlock(&context->lock);
  return ncclSuccess;
}

static struct tt_device fake_device = {
    .size = sizeof(struct tt_device),
    .name = "fake",
    .protocols = 1u << TT_PROTO_LL | 1u << TT_PROTO_SIMPLE,
    .default_buffer = {[TT_PROTO_LL] = TT_SLOTS * (4 << 10), [TT_PROTO_SIMPLE] = TT_SLOTS * (32 << 10)},
    .count = count,
    .launch = fake_launch_on,
    .version = TT_DEVICE_VERSION,
    .features = TT_DEVICE_STREAMS | TT_DEVICE_MEMORY | TT_DEVICE_HOST_MEMORY | TT_DEVICE_USER_MEMORY | TT_DEVICE_JOIN |
                TT_DEVICE_GRAPHS | TT_DEVICE_SCALARS | TT_DEVICE_MULTICAST | TT_DEVICE_COPY | TT_DEVICE_LINES |
                TT_DEVICE_REACH | TT_DEVICE_DMABUF | TT_DEVICE_POOLED | TT_DEVICE_PARTS | TT_DEVICE_ENGINES |
                TT_DEVICE_FLUSH | TT_DEVICE_HINTS | TT_DEVICE_CHECK,
    .channels = 4,
    .current = current,
    .properties = properties,
    .can_map = can_map,
    .open = open_context,
    .close = close_context,
    .alloc = fake_alloc,
    .release = fake_release,
    .export_memory = fake_export,
    .import_memory = fake_import,
    .conn_open = conn_open,
    .conn_close = conn_close,
    .stop = stop,
    .drain = drain,
    .status = status,
    .check_stream = fake_stream_check,
    .follow = fake_stream_follow,
    .capturing = fake_stream_capturing,
    .at_graph_end = fake_graph_end,
    .map_host = fake_map_host,
    .unmap_host = fake_unmap_host,
    .user_alloc = fake_user_alloc_on,
    .user_free = fake_user_free_of,
    .find_buffer = fake_find_buffer,
    .reach_buffer = fake_reach_buffer,
    .import_parts = fake_import_parts,
    .export_buffer = fake_export_buffer,
    .describe = fake_describe,
    .peer_status = fake_peer_status,
    .team_check = fake_team_check,
    .team_create = fake_team_create,
    .team_import = fake_team_import,
    .team_add = fake_team_add,
    .team_bind = fake_team_bind,
    .team_leave = fake_team_leave,
    .copy = fake_copy,
    .copied = fake_copied,
    .export_dmabuf = fake_export_dmabuf,
    .flush = fake_flush,
    .check_buffer = fake_check_buffer,
};

/* Lines go to the core's log, except those of works, whose failures the status tells. */
static void to_core(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                    const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)func;
  if (!fake_in_stream)
    core_log((int)level, text);
  else if (level == TT_LOG_WARN)
    snprintf(fake_warning, sizeof fake_warning, "%s", text);
}

__attribute__((visibility("default"))) const struct tt_device *tutti_device(tt_device_log *log, char *why,
                                                                            size_t why_size)
{
  (void)why, (void)why_size;
  core_log = log;
  tt_log_redirect(to_core);
  if (fake_has_fabric()) fake_device.features |= TT_DEVICE_DESCRIBED | TT_DEVICE_FABRIC;
  return &fake_device;
}

__attribute__((visibility("default"))) void fake_limit_peers(int peers)
{
  fake_device.features |= TT_DEVICE_PEERS;
  fake_device.peers = (uint32_t)peers;
}

ncclResult_t fake_check_peers(const struct tt_work *work)
{
  for (uint32_t c = 0; c < work->nchannels && fake_device.peers > 0; c++)
    if (work->channels[c].program->npeers > fake_device.peers)
      return TT_FAIL(ncclInternalError, "rank %d: a program has %u peers, of which the device takes %u", work->rank,
                     work->channels[c].program->npeers, fake_device.peers);
  return ncclSuccess;
}

__attribute__((visibility("default"))) bool fake_wait_idle(int timeout_ms)
{
  tt_deadline end = tt_deadline_in_ms(timeout_ms);
  while (fake_totals.launches > 0 && !tt_deadline_passed(end)) usleep(500);
  return fake_totals.launches == 0;
}

__attribute__((visibility("default"))) int fake_late_allocations(void)
{
  return fake_totals.late;
}

__attribute__((visibility("default"))) int fake_multicast_works(void)
{
  return fake_totals.multicast;
}

__attribute__((visibility("default"))) void fake_last_multicast(int *channels, size_t *chunk)
{
  *channels = fake_totals.multicast_channels;
  *chunk = fake_totals.multicast_chunk;
}

__attribute__((visibility("default"))) struct tt_device_config fake_opened(int device)
{
  pthread_mutex_lock(&devices_lock);
  struct tt_device_config config = opened[device];
  pthread_mutex_unlock(&devices_lock);
  return config;
}

__attribute__((visibility("default"))) void fake_count(struct fake_counts *counts)
{
  *counts = (struct fake_counts){.contexts = fake_totals.contexts,
                                 .memories = fake_totals.memories,
                                 .twins = fake_totals.twins,
                                 .streams = fake_totals.streams,
                                 .launches = fake_totals.launches,
                                 .users = fake_totals.users,
                                 .hosts = fake_totals.hosts};
}
