/* See net_block.h. */
#include "transport/net_block.h"

#include <sys/mman.h>
#include "base/check.h"
#include "transport/net_direct.h"

#define PAGE 4096

/* Points a view of the connection into the block, which the view's user finds at `at`. */
static void apply(const struct tt_buffers *buffers, unsigned char *at, size_t fifo_at, bool pool, bool apart,
                  struct tt_conn *conn)
{
  tt_buffers_apply(buffers, at, conn);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    if (pool && conn->slots[p]) conn->slots[p] = at;
  conn->fifo = (struct tt_conn_fifo *)(void *)(at + fifo_at);
  conn->flags = TT_CONN_PROXIED | (pool ? TT_CONN_POOLED : 0);
  if (apart) tt_buffers_mark_lines(conn);
}

/* `apart`: without room for slots. */
static ncclResult_t make(const struct tt_transport_env *env, struct tt_connector *connector,
                         const struct tt_buffers *buffers, bool pool, bool apart, struct tt_net_block *block)
{
  size_t fifo_at = apart ? buffers->slots_at : buffers->bytes;
  size_t asked_at = fifo_at + TT_SLOTS * sizeof(struct tt_conn_fifo);                   /* see tt_conn_asked */
  bool lines = tt_transport_device_memory(env) && buffers->slot_bytes[TT_PROTO_LL] > 0; /* without a FIFO */
  size_t bytes = lines ? buffers->bytes : (asked_at + sizeof(uint64_t) + PAGE - 1) / PAGE * PAGE;
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at = memory;
  if (memory == MAP_FAILED)
    return TT_FAIL(ncclSystemError,
                   "%zu bytes for a connection to rank %d: %m; lower NCCL_BUFFSIZE or use less channels", bytes,
                   connector->peer);
  block->memory = memory;
  block->bytes = connector->bytes = bytes;
  if (tt_transport_device_memory(env)) {
    TT_TRY(env->device->map_host(env->context->handle, memory, bytes, &at));
    block->mapped = true;
  }
  apply(buffers, memory, fifo_at, pool, block->mapped, &block->conn);
  tt_buffers_start(&block->conn, env->first_step);
  apply(buffers, at, fifo_at, pool, block->mapped, &connector->conn);
  connector->conn.step = env->first_step;
  return ncclSuccess;
}

ncclResult_t tt_net_block_make(const struct tt_transport_env *env, struct tt_connector *connector,
                               const struct tt_buffers *buffers, bool pool, struct tt_net_block *block)
{
  return make(env, connector, buffers, pool, pool, block);
}

ncclResult_t tt_net_block_make_direct(const struct tt_transport_env *env, struct tt_connector *connector,
                                      const struct tt_buffers *buffers, struct tt_proxy_direct *direct,
                                      struct tt_net_block *block)
{
  unsigned char *slots;
  TT_TRY(make(env, connector, buffers, false, true, block));
  TT_TRY(tt_net_direct_alloc(env, TT_SLOTS * buffers->slot_bytes[TT_PROTO_SIMPLE], direct, &slots));
  block->conn.slots[TT_PROTO_SIMPLE] = connector->conn.slots[TT_PROTO_SIMPLE] = slots;
  connector->bytes += direct->bytes;
  return ncclSuccess;
}

void tt_net_block_free(const struct tt_transport_env *env, struct tt_net_block *block)
{
  if (!block->memory) return;
  if (block->mapped) env->device->unmap_host(env->context->handle, block->memory, block->bytes);
  munmap(block->memory, block->bytes);
  block->memory = NULL;
  block->mapped = false;
}

static ncclResult_t map(void *context, void *memory, size_t bytes, void **at)
{
  const struct tt_transport_env *env = context;
  return env->device->map_host(env->context->handle, memory, bytes, at);
}

static void unmap(void *context, void *memory, size_t bytes)
{
  const struct tt_transport_env *env = context;
  env->device->unmap_host(env->context->handle, memory, bytes);
}

struct tt_proxy_pool_map tt_net_pool_map(const struct tt_transport_env *env)
{
  return (struct tt_proxy_pool_map){.map = map, .unmap = unmap, .context = (void *)(uintptr_t)env};
}
