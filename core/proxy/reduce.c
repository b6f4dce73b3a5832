/* See reduce.h. Requests are tested in the order of their steps, since the FIFOs move in order. */
#include "proxy/reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "proxy/internal.h"

/* `steps` messages up to but not including step `end`. */
struct operation {
  uint64_t end;
  ncclDataType_t datatype;
  ncclRedOp_t op;
};

struct tt_proxy_reduce {
  struct tt_proxy *proxy;
  struct tt_proxy_reduce *next, **link;
  struct tt_proxy_reduce_config config;
  char label[64];
  bool registered[2]; /* send, receive */
  void *mhandles[2];
  struct operation *operations; /* those not wholly posted, oldest first */
  size_t noperations, capacity;
  uint64_t posted, done, expected; /* steps: done <= posted <= expected */
  void *requests[TT_SLOTS];        /* NULL: nothing was to be reduced */
};

static bool before(uint64_t a, uint64_t b)
{
  return (int64_t)(a - b) < 0;
}

static unsigned char *slot_of(const struct tt_conn *conn, uint64_t step)
{
  return conn->slots[TT_PROTO_SIMPLE] + step % TT_SLOTS * conn->slot_bytes[TT_PROTO_SIMPLE];
}

/* ---- Life ---- */

static ncclResult_t register_buffers(struct tt_proxy_reduce *reduce)
{
  const struct tt_conn *conns[2] = {reduce->config.send, reduce->config.recv};
  for (int i = 0; i < 2; i++) {
    size_t bytes = conns[i]->slot_bytes[TT_PROTO_SIMPLE] * TT_SLOTS;
    ncclResult_t result =
        tt_collnet_reg_mr(reduce->config.collnet, reduce->config.comm, conns[i]->slots[TT_PROTO_SIMPLE], bytes,
                          NCCL_PTR_HOST, &reduce->mhandles[i]);
    if (result != ncclSuccess)
      return TT_FAIL(result, "%s cannot register %zu bytes: check `ulimit -l`", reduce->label, bytes);
    reduce->registered[i] = true;
  }
  return ncclSuccess;
}

static void deregister(struct tt_proxy_reduce *reduce)
{
  for (int i = 0; i < 2; i++)
    if (reduce->registered[i]) tt_collnet_dereg_mr(reduce->config.collnet, reduce->config.comm, reduce->mhandles[i]);
}

ncclResult_t tt_proxy_reduce_create(struct tt_proxy *proxy, const struct tt_proxy_reduce_config *config,
                                    struct tt_proxy_reduce **out)
{
  struct tt_proxy_reduce *reduce;
  *out = NULL;
  TT_TRY(TT_CALLOC(&reduce, 1));
  reduce->proxy = proxy;
  reduce->config = *config;
  snprintf(reduce->label, sizeof(reduce->label), "%s", config->label);
  reduce->posted = reduce->done = reduce->expected = config->send->step;
  ncclResult_t result = register_buffers(reduce);
  if (result != ncclSuccess) {
    deregister(reduce);
    free(reduce);
    return result;
  }
  pthread_mutex_lock(&proxy->lock);
  reduce->next = proxy->reduces;
  reduce->link = &proxy->reduces;
  if (reduce->next) reduce->next->link = &reduce->next;
  proxy->reduces = reduce;
  pthread_mutex_unlock(&proxy->lock);
  *out = reduce;
  return ncclSuccess;
}

void tt_proxy_reduce_destroy(struct tt_proxy_reduce *reduce)
{
  if (!reduce) return;
  struct tt_proxy *proxy = reduce->proxy;
  pthread_mutex_lock(&proxy->lock);
  *reduce->link = reduce->next;
  if (reduce->next) reduce->next->link = reduce->link;
  if (reduce->done != reduce->expected) tt_proxy_count_active(proxy, -1);
  deregister(reduce);
  tt_collnet_close_coll(reduce->config.collnet, reduce->config.comm);
  pthread_mutex_unlock(&proxy->lock);
  free(reduce->operations);
  free(reduce);
}

/* Called with the lock held. */
static ncclResult_t append(struct tt_proxy_reduce *reduce, uint64_t steps, ncclDataType_t datatype, ncclRedOp_t op)
{
  struct operation *last = reduce->noperations ? &reduce->operations[reduce->noperations - 1] : NULL;
  if (!last || last->datatype != datatype || last->op != op) {
    if (reduce->noperations == reduce->capacity) {
      size_t capacity = reduce->capacity ? 2 * reduce->capacity : 8;
      struct operation *grown = realloc(reduce->operations, capacity * sizeof(*grown));
      if (!grown) return TT_FAIL(ncclSystemError, "no memory for %zu operations of %s", capacity, reduce->label);
      reduce->operations = grown;
      reduce->capacity = capacity;
    }
    last = &reduce->operations[reduce->noperations++];
    last->datatype = datatype;
    last->op = op;
  }
  if (reduce->done == reduce->expected) tt_proxy_count_active(reduce->proxy, 1);
  last->end = reduce->expected += steps;
  return ncclSuccess;
}

ncclResult_t tt_proxy_reduce_expect(struct tt_proxy_reduce *reduce, uint64_t steps, ncclDataType_t datatype,
                                    ncclRedOp_t op)
{
  if (steps == 0) return ncclSuccess;
  pthread_mutex_lock(&reduce->proxy->lock);
  ncclResult_t result = append(reduce, steps, datatype, op);
  pthread_mutex_unlock(&reduce->proxy->lock);
  return result;
}

/* ---- Work ---- */

static ncclResult_t check_message(const struct tt_proxy_reduce *reduce, uint64_t step, size_t element, size_t *bytes)
{
  const struct tt_conn *send = reduce->config.send;
  const struct tt_conn_fifo *entry = &send->fifo[step % TT_SLOTS];
  const struct tt_slot_header *header = (const struct tt_slot_header *)(const void *)slot_of(send, step);
  *bytes = header->bytes;
  if (entry->mode == TT_FIFO_NORMAL && header->step == step && *bytes % element == 0 &&
      *bytes <= send->slot_bytes[TT_PROTO_SIMPLE] - TT_SLOT_HEADER && entry->size == (int64_t)(TT_SLOT_HEADER + *bytes))
    return ncclSuccess;
  return TT_FAIL(
      ncclInternalError,
      "rank %d via %s: step %llu is no message that can be reduced (mode %d, step %llu, %zu bytes of payload "
      "in %lld, elements of %zu)",
      reduce->proxy->rank, reduce->label, (unsigned long long)step, (int)entry->mode, (unsigned long long)header->step,
      *bytes, (long long)entry->size, element);
}

static ncclResult_t failed(const struct tt_proxy_reduce *reduce, ncclResult_t result)
{
  return TT_FAIL(result, "rank %d: reducing via %s failed: %s", reduce->proxy->rank, reduce->label,
                 tt_log_thread_error());
}

/* Posts one step; *posted says whether the plugin took it. */
static ncclResult_t post(struct tt_proxy_reduce *reduce, const struct operation *operation, bool *posted)
{
  uint64_t step = reduce->posted;
  size_t element = tt_datatype_bytes(operation->datatype), bytes;
  void **request = &reduce->requests[step % TT_SLOTS];
  TT_TRY(check_message(reduce, step, element, &bytes));
  *request = NULL;
  *posted = true;
  if (bytes == 0) return ncclSuccess; /* so it is on all ranks */
  const struct tt_collnet_all_reduce what = {.send = slot_of(reduce->config.send, step) + TT_SLOT_HEADER,
                                             .recv = slot_of(reduce->config.recv, step) + TT_SLOT_HEADER,
                                             .count = bytes / element,
                                             .datatype = operation->datatype,
                                             .op = operation->op,
                                             .send_mhandle = reduce->mhandles[0],
                                             .recv_mhandle = reduce->mhandles[1]};
  ncclResult_t result = tt_collnet_iallreduce(reduce->config.collnet, reduce->config.comm, &what, request);
  *posted = *request != NULL;
  return result == ncclSuccess ? ncclSuccess : failed(reduce, result);
}

/* Posts while there is something to reduce, room for the result, and the plugin takes it. */
static ncclResult_t post_all(struct tt_proxy_reduce *reduce, bool *moved)
{
  uint64_t filled = atomic_load_explicit(reduce->config.send->tail, memory_order_acquire);
  uint64_t room = atomic_load_explicit(reduce->config.recv->head, memory_order_acquire) + TT_SLOTS;
  while (reduce->posted != reduce->expected && before(reduce->posted, filled) && before(reduce->posted, room) &&
         reduce->posted - reduce->done < TT_SLOTS) {
    struct operation *operation = &reduce->operations[0];
    bool posted;
    TT_TRY(post(reduce, operation, &posted));
    if (!posted) break;
    *moved = true;
    if (++reduce->posted == operation->end)
      memmove(operation, operation + 1, --reduce->noperations * sizeof(*operation));
  }
  return ncclSuccess;
}

/* The result of a step is there: its header, then the counters. */
static void deliver(struct tt_proxy_reduce *reduce)
{
  const struct tt_conn *send = reduce->config.send, *recv = reduce->config.recv;
  uint64_t step = reduce->done++;
  memcpy(slot_of(recv, step), slot_of(send, step), TT_SLOT_HEADER);
  recv->fifo[step % TT_SLOTS] = (struct tt_conn_fifo){.mode = TT_FIFO_NORMAL, .size = send->fifo[step % TT_SLOTS].size};
  atomic_store_explicit(recv->tail, reduce->done, memory_order_release);
  atomic_store_explicit(send->head, reduce->done, memory_order_release);
}

static ncclResult_t advance(struct tt_proxy_reduce *reduce, bool *moved)
{
  TT_TRY(post_all(reduce, moved));
  while (reduce->done != reduce->posted) {
    void *request = reduce->requests[reduce->done % TT_SLOTS];
    int done = 1;
    ncclResult_t result = request ? tt_collnet_test(reduce->config.collnet, request, &done) : ncclSuccess;
    if (result != ncclSuccess) return failed(reduce, result);
    if (!done) break;
    deliver(reduce);
    *moved = true;
  }
  return ncclSuccess;
}

ncclResult_t tt_proxy_reduces_progress(struct tt_proxy *proxy, bool *moved)
{
  for (struct tt_proxy_reduce *reduce = proxy->reduces; reduce; reduce = reduce->next) {
    if (reduce->done == reduce->expected) continue;
    TT_TRY(advance(reduce, moved));
    if (reduce->done == reduce->expected) tt_proxy_count_active(proxy, -1);
  }
  return ncclSuccess;
}
