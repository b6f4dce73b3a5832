/* Connections whose slots are units of a pool: which step has which unit, and what the device is told of it. */
#include "proxy/internal.h"

#include "base/check.h"

static struct tt_proxy_unit **unit_of(struct tt_proxy_conn *conn, uint64_t step)
{
  return &conn->units[step % TT_SLOTS];
}

/* Shows the device where a step's slot lies. */
static void show(const struct tt_proxy_conn *conn, uint64_t step, int64_t size)
{
  conn->config.conn->fifo[step % TT_SLOTS] =
      (struct tt_conn_fifo){.mode = TT_FIFO_POINTER, .pointer = conn->units[step % TT_SLOTS]->at, .size = size};
}

static ncclResult_t take(struct tt_proxy_conn *conn, uint64_t step)
{
  TT_TRY(tt_proxy_pool_take(conn->pool, &conn->wait, conn->held, unit_of(conn, step)));
  if (*unit_of(conn, step)) conn->held++;
  return ncclSuccess;
}

static void give(struct tt_proxy_conn *conn, uint64_t step)
{
  struct tt_proxy_unit **unit = unit_of(conn, step);
  tt_proxy_pool_give(conn->pool, *unit);
  *unit = NULL;
  conn->held--;
}

ncclResult_t tt_proxy_pooled_grant(struct tt_proxy_conn *conn, bool *moved)
{
  uint64_t share = (uint64_t)TT_MIN(tt_proxy_pool_share(conn->pool), TT_SLOTS);
  while (conn->granted != conn->expected && conn->granted - conn->done < share) {
    TT_TRY(take(conn, conn->granted));
    if (!*unit_of(conn, conn->granted)) break;
    show(conn, conn->granted, 0);
    conn->granted++;
    *moved = true;
    /* A device fills steps before head + TT_SLOTS. */
    atomic_store_explicit(conn->config.conn->head, conn->granted - TT_SLOTS, memory_order_release);
  }
  return ncclSuccess;
}

void tt_proxy_pooled_free(struct tt_proxy_conn *conn, uint64_t head, bool *moved)
{
  while (conn->freed != conn->done && tt_proxy_before(conn->freed, head)) {
    give(conn, conn->freed++);
    *moved = true;
  }
}

ncclResult_t tt_proxy_pooled_prepare(struct tt_proxy_conn *conn, uint64_t step, struct tt_proxy_transfer *transfer,
                                     bool *ready)
{
  struct tt_proxy_unit **unit = unit_of(conn, step);
  *ready = false;
  if (!conn->config.send && !*unit) {
    if (conn->held >= tt_proxy_pool_share(conn->pool)) return ncclSuccess;
    TT_TRY(take(conn, step));
    if (!*unit) return ncclSuccess;
  }
  size_t room = tt_proxy_pool_unit_bytes(conn->pool);
  transfer->data = (*unit)->data;
  transfer->bytes = room;
  if (conn->config.send) {
    int64_t size = conn->config.conn->fifo[step % TT_SLOTS].size;
    if (size < TT_SLOT_HEADER || (uint64_t)size > room)
      return TT_FAIL(ncclInternalError, "rank %d to rank %d via %s: step %llu does not fit (%lld bytes, limit %zu)",
                     conn->proxy->rank, conn->config.peer, conn->label, (unsigned long long)step, (long long)size,
                     room);
    transfer->bytes = (size_t)size;
  }
  if (tt_proxy_unit_spare(*unit)) {
    TT_TRY(tt_net_reg_mr(conn->proxy->net, conn->wire->comm, transfer->data, room, NCCL_PTR_HOST, &transfer->mhandle));
    transfer->registered = true;
  } else {
    TT_TRY(tt_proxy_link_register(conn->wire, (*unit)->slab, &transfer->mhandle));
  }
  transfer->prepared = *ready = true;
  return ncclSuccess;
}

void tt_proxy_pooled_complete(struct tt_proxy_conn *conn, uint64_t step, int size)
{
  if (conn->config.send)
    give(conn, step);
  else
    show(conn, step, size);
}

void tt_proxy_pooled_leave(struct tt_proxy_conn *conn)
{
  for (uint64_t step = conn->done; step != conn->posted; step++) {
    struct tt_proxy_transfer *transfer = &conn->transfers[step % TT_SLOTS];
    struct tt_proxy_unit **unit = unit_of(conn, step);
    if (transfer->registered) {
      tt_proxy_link_keep(conn->wire, (*unit)->slab, transfer->mhandle);
      tt_proxy_slab_release((*unit)->slab);
      transfer->registered = false;
    }
    *unit = NULL;
    conn->held--;
  }
}

void tt_proxy_pooled_close(struct tt_proxy_conn *conn)
{
  tt_proxy_pool_part(conn->pool);
  tt_proxy_pool_forget(conn->pool, &conn->wait);
  for (int i = 0; i < TT_SLOTS; i++)
    if (conn->units[i]) give(conn, (uint64_t)i);
}
