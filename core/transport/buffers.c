/* The layout of a connection's block. */
#include "transport/buffers.h"

#include <string.h>
#include "base/check.h"

#define LINE 64
#define WIDE 128 /* LL128's line */
#define PAGE 4096

static bool is_wide(const struct tt_transport_env *env, int protocol)
{
  return protocol == TT_PROTO_LL128 || tt_transport_device_memory(env);
}

size_t tt_transport_slot_bytes(const struct tt_transport_env *env, int protocol)
{
  size_t line = is_wide(env, protocol) ? WIDE : LINE;
  return env->buffer_bytes[protocol] / TT_SLOTS / line * line;
}

ncclResult_t tt_buffers_layout(const struct tt_transport_env *env, uint32_t protocols, struct tt_buffers *buffers)
{
  static const char *const variables[TT_NUM_PROTOCOLS] = {[TT_PROTO_LL] = "NCCL_LL_BUFFSIZE",
                                                          [TT_PROTO_LL128] = "NCCL_LL128_BUFFSIZE",
                                                          [TT_PROTO_SIMPLE] = "NCCL_BUFFSIZE"};
  memset(buffers, 0, sizeof(*buffers));
  buffers->tail = 0;
  buffers->head = LINE;
  buffers->bytes = buffers->slots_at = 2 * LINE;
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (env->buffer_bytes[p] == 0 || !(protocols & (1u << p))) continue;
    size_t slot = tt_transport_slot_bytes(env, p);
    if (slot < TT_SLOT_HEADER + LINE)
      return TT_FAIL(ncclInvalidUsage, "%s gives a connection %zu bytes, but eight slots need at least %d: raise it",
                     variables[p], env->buffer_bytes[p], TT_SLOTS * (TT_SLOT_HEADER + LINE));
    if (is_wide(env, p)) buffers->bytes = (buffers->bytes + WIDE - 1) / WIDE * WIDE + WIDE - TT_SLOT_HEADER;
    buffers->slots[p] = buffers->bytes;
    buffers->slot_bytes[p] = slot;
    buffers->bytes += slot * TT_SLOTS;
  }
  buffers->bytes = (buffers->bytes + PAGE - 1) / PAGE * PAGE;
  return ncclSuccess;
}

/* Makes the slots of the only protocol that there is no larger than `most` bytes. */
static void shrink(struct tt_buffers *buffers, int protocol, size_t most)
{
  if (buffers->slot_bytes[protocol] <= most) return;
  buffers->slot_bytes[protocol] = most / WIDE * WIDE;
  size_t end = buffers->slots[protocol] + TT_SLOTS * buffers->slot_bytes[protocol];
  buffers->bytes = (end + PAGE - 1) / PAGE * PAGE;
}

ncclResult_t tt_buffers_layout_far(const struct tt_transport_env *env, int index, struct tt_buffers *buffers)
{
  if (!tt_transport_device_memory(env)) return tt_buffers_layout(env, TT_ALL_PROTOCOLS, buffers);
  int protocol = tt_connect_far_protocol(index);
  TT_TRY(tt_buffers_layout(env, 1u << protocol, buffers));
  if (tt_connect_index_point_to_point(index)) shrink(buffers, protocol, tt_transport_far_slot_bytes(protocol));
  return ncclSuccess;
}

void tt_buffers_start(struct tt_conn *conn, uint64_t first_step)
{
  conn->step = first_step;
  atomic_store_explicit(conn->head, first_step, memory_order_relaxed);
  atomic_store_explicit(conn->tail, first_step, memory_order_relaxed);
}

void tt_buffers_mark_lines(struct tt_conn *conn)
{
  if (!conn->slots[TT_PROTO_LL]) return;
  conn->fifo = NULL;
  conn->flags = TT_CONN_LINES;
}

void tt_buffers_apply(const struct tt_buffers *buffers, unsigned char *block, struct tt_conn *conn)
{
  conn->tail = (_Atomic uint64_t *)(void *)(block + buffers->tail);
  conn->head = (_Atomic uint64_t *)(void *)(block + buffers->head);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    conn->slots[p] = buffers->slot_bytes[p] ? block + buffers->slots[p] : NULL;
    conn->slot_bytes[p] = buffers->slot_bytes[p];
  }
}
