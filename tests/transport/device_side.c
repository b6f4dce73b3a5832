/* See device_side.h. */
#include "device_side.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

static const struct tt_device *fake;
struct tt_device device_fake;
int device_imports, device_exports[2], device_allocs, device_maps;
bool device_imports_fail, device_exports_fail, device_maps_fail;
const struct tt_transport *device_transport = &tt_transport_device;

static ncclResult_t counted_alloc(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory)
{
  device_allocs++;
  return fake->alloc(context, bytes, memory);
}

ncclResult_t device_counted_export(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                                   struct tt_device_export *out)
{
  device_exports[local]++;
  if (device_exports_fail) return ncclUnhandledCudaError;
  return fake->export_memory(context, memory, local, out);
}

ncclResult_t device_counted_import(struct tt_device_context *context, const struct tt_device_export *in,
                                   struct tt_device_memory *memory)
{
  device_imports++;
  if (device_imports_fail) return ncclUnhandledCudaError;
  return fake->import_memory(context, in, memory);
}

static ncclResult_t counted_map(struct tt_device_context *context, void *ptr, size_t bytes, void **at)
{
  device_maps++;
  if (device_maps_fail) return ncclUnhandledCudaError;
  return fake->map_host(context, ptr, bytes, at);
}

static void print(int level, const char *text)
{
  (void)level;
  fprintf(stderr, "fake device: %s\n", text);
}

void device_use_fake(void)
{
  char why[64];
  fake = tutti_device(print, why, sizeof(why));
  device_fake = *fake;
  device_fake.alloc = counted_alloc;
  device_fake.export_memory = device_counted_export;
  device_fake.import_memory = device_counted_import;
  device_fake.map_host = counted_map;
  device_imports = device_exports[0] = device_exports[1] = device_allocs = device_maps = 0;
  device_imports_fail = device_exports_fail = device_maps_fail = false;
  side_use_device(&device_fake);
}

void device_use_none(void)
{
  side_use_device(NULL);
}

void device_expect_nothing_left(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, 0);
  ck_assert_int_eq(counts.memories, 0);
  ck_assert_int_eq(counts.twins, 0);
  ck_assert_int_eq(counts.hosts, 0);
}

struct tt_connector device_half(const struct side *side, bool send, int protocol)
{
  return (struct tt_connector){.peer = 1 - side->rank, .send = send, .index = tt_connect_index(true, protocol, false)};
}

void device_set_up_pair(struct device_pair *pair, int protocol)
{
  for (int r = 0; r < 2; r++) {
    pair->connectors[r] = device_half(&pair->sides[r], r == 0, protocol);
    ck_assert_int_eq(device_transport->setup(&pair->sides[r].env, &pair->connectors[r], &pair->handshakes[r]),
                     ncclSuccess);
  }
}

void device_connect_pair(struct device_pair *pair)
{
  for (int r = 0; r < 2; r++) {
    bool done = false;
    ck_assert_int_eq(
        device_transport->connect(&pair->sides[r].env, &pair->connectors[r], &pair->handshakes[1 - r], &done),
        ncclSuccess);
    ck_assert(done);
  }
}

void device_close_pair(struct device_pair *pair)
{
  for (int r = 0; r < 2; r++) device_transport->close(&pair->sides[r].env, &pair->connectors[r]);
}

void device_send(struct tt_conn *conn, int protocol, uint64_t steps)
{
  for (uint64_t end = conn->step + steps; conn->step < end; conn->step++) {
    while (conn->step - atomic_load_explicit(conn->head, memory_order_acquire) >= TT_SLOTS) sched_yield();
    uint64_t *slot = (void *)(conn->slots[protocol] + conn->step % TT_SLOTS * conn->slot_bytes[protocol]);
    for (size_t i = 0; i < conn->slot_bytes[protocol] / 8; i++) slot[i] = conn->step * 1000003 + i;
    atomic_store_explicit(conn->tail, conn->step + 1, memory_order_release);
  }
}

bool device_recv(struct tt_conn *conn, int protocol, uint64_t steps)
{
  bool good = true;
  for (uint64_t end = conn->step + steps; conn->step < end; conn->step++) {
    while (atomic_load_explicit(conn->tail, memory_order_acquire) <= conn->step) sched_yield();
    uint64_t *slot = (void *)(conn->slots[protocol] + conn->step % TT_SLOTS * conn->slot_bytes[protocol]);
    for (size_t i = 0; i < conn->slot_bytes[protocol] / 8; i++) good = good && slot[i] == conn->step * 1000003 + i;
    atomic_store_explicit(conn->head, conn->step + 1, memory_order_release);
  }
  return good;
}
