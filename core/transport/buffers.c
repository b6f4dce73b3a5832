/* The layout of a connection's block. */
#include "transport/buffers.h"

#include <string.h>
#include "base/check.h"

#define LINE 64
#define PAGE 4096

size_t tt_transport_slot_bytes(const struct tt_transport_env *env, int protocol)
{
  return env->buffer_bytes[protocol] / TT_SLOTS / LINE * LINE;
}

ncclResult_t tt_buffers_layout(const struct tt_transport_env *env, struct tt_buffers *buffers)
{
  static const char *const variables[TT_NUM_PROTOCOLS] = {[TT_PROTO_LL] = "NCCL_LL_BUFFSIZE",
                                                          [TT_PROTO_LL128] = "NCCL_LL128_BUFFSIZE",
                                                          [TT_PROTO_SIMPLE] = "NCCL_BUFFSIZE"};
  memset(buffers, 0, sizeof(*buffers));
  buffers->tail = 0;
  buffers->head = LINE;
  buffers->bytes = 2 * LINE;
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (env->buffer_bytes[p] == 0) continue;
    size_t slot = tt_transport_slot_bytes(env, p);
    if (slot < TT_SLOT_HEADER + LINE)
      return TT_FAIL(ncclInvalidUsage, "%s gives a connection %zu bytes, but eight slots need at least %d: raise it",
                     variables[p], env->buffer_bytes[p], TT_SLOTS * (TT_SLOT_HEADER + LINE));
    buffers->slots[p] = buffers->bytes;
    buffers->slot_bytes[p] = slot;
    buffers->bytes += slot * TT_SLOTS;
  }
  buffers->bytes = (buffers->bytes + PAGE - 1) / PAGE * PAGE;
  return ncclSuccess;
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
