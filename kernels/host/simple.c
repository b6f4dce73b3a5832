/* Slots that are published by a counter: the Simple protocol, and what LL shares with it. */
#include "kernels/host/executor.h"

#include <string.h>
#include "base/doorbell.h"

unsigned char *tt_host_slot(const struct tt_host_run *run, const struct tt_host_operand *operand)
{
  const struct tt_conn *conn = operand->conn;
  int protocol = run->work->protocol;
  uint64_t index = operand->step % TT_SLOTS;
  if (conn->flags & TT_CONN_POOLED) return conn->fifo[index].pointer;
  if (operand->kind == TT_RECV && conn->fifo != NULL) {
    if (conn->fifo[index].mode == TT_FIFO_OFFSET) return conn->slots[protocol] + conn->fifo[index].offset;
    if (conn->fifo[index].mode == TT_FIFO_POINTER) return conn->fifo[index].pointer;
  }
  return conn->slots[protocol] + index * conn->slot_bytes[protocol];
}

bool tt_host_has_room(const struct tt_host_operand *operand)
{
  return operand->step < atomic_load_explicit(operand->conn->head, memory_order_acquire) + TT_SLOTS;
}

void tt_host_write_header(const struct tt_host_run *run, const struct tt_host_operand *operand, unsigned char *slot)
{
  struct tt_slot_header *header = (struct tt_slot_header *)(void *)slot;
  header->bytes = operand->bytes;
  header->step = operand->step;
  header->signature = run->work->signature;
}

/* Reports read it from other threads. */
static void advance_step(struct tt_conn *conn, uint64_t step)
{
  __atomic_store_n(&conn->step, step, __ATOMIC_RELAXED);
}

void tt_host_post(const struct tt_host_operand *operand, size_t bytes, bool publish_tail)
{
  struct tt_conn *conn = operand->conn;
  if (conn->fifo != NULL) {
    struct tt_conn_fifo *entry = &conn->fifo[operand->step % TT_SLOTS];
    if (!(conn->flags & TT_CONN_POOLED)) *entry = (struct tt_conn_fifo){.mode = TT_FIFO_NORMAL};
    entry->size = (int64_t)(TT_SLOT_HEADER + bytes);
  }
  if (publish_tail) atomic_store_explicit(conn->tail, operand->step + 1, memory_order_release);
  advance_step(conn, operand->step + 1);
  tt_doorbell_ring(conn->peer_bell);
}

void tt_host_release(const struct tt_host_operand *operand)
{
  struct tt_conn *conn = operand->conn;
  atomic_store_explicit(conn->head, operand->step + 1, memory_order_release);
  advance_step(conn, operand->step + 1);
  tt_doorbell_ring(conn->peer_bell);
}

ncclResult_t tt_host_wrong_slot(const struct tt_host_run *run, const struct tt_host_operand *operand, const char *what,
                                uint64_t expected, uint64_t got)
{
  char text[256];
  tt_host_describe(run->work, text, sizeof(text));
  return TT_FAIL(ncclInternalError, "rank %d expected %s %llu from rank %d and got %llu, in %s", run->work->rank, what,
                 (unsigned long long)expected, operand->conn->peer, (unsigned long long)got, text);
}

/* What a slot that has arrived says of itself must be what this rank expects, before any of it is used. */
static ncclResult_t check_slot(const struct tt_host_run *run, const struct tt_host_operand *operand, size_t payload)
{
  const struct tt_conn *conn = operand->conn;
  const struct tt_slot_header *header = (const struct tt_slot_header *)(void *)tt_host_slot(run, operand);
  if (operand->first) TT_TRY(tt_host_signature_check(run, operand, &header->signature));
  if (header->step != operand->step)
    return tt_host_wrong_slot(run, operand, "slot number", operand->step, header->step);
  if (header->bytes != operand->bytes)
    return tt_host_wrong_slot(run, operand, "payload bytes", operand->bytes, header->bytes);
  if (conn->fifo != NULL) {
    int64_t size = conn->fifo[operand->step % TT_SLOTS].size;
    if (size != (int64_t)(TT_SLOT_HEADER + payload))
      return tt_host_wrong_slot(run, operand, "message bytes", TT_SLOT_HEADER + payload, (uint64_t)size);
  }
  return ncclSuccess;
}

ncclResult_t tt_host_arrived(const struct tt_host_run *run, const struct tt_host_operand *operand, size_t payload,
                             bool *here)
{
  *here = atomic_load_explicit(operand->conn->tail, memory_order_acquire) > operand->step;
  return *here ? check_slot(run, operand, payload) : ncclSuccess;
}

ncclResult_t tt_host_simple_poll(const struct tt_host_run *run, struct tt_host_operand *operand)
{
  TT_TRY(tt_host_arrived(run, operand, operand->bytes, &operand->ready));
  if (operand->ready) {
    operand->data = tt_host_slot(run, operand) + TT_SLOT_HEADER;
  } else if (operand->first && !(operand->conn->flags & TT_CONN_PROXIED) && tt_host_ll_peek(operand)) {
    /* The sender uses LL: its counter will never move, so say now what differs. */
    const unsigned char *slots = operand->conn->slots[TT_PROTO_LL];
    const struct tt_slot_header *header =
        (const void *)(slots + operand->step % TT_SLOTS * operand->conn->slot_bytes[TT_PROTO_LL]);
    return tt_host_signature_check(run, operand, &header->signature);
  }
  return ncclSuccess;
}
