/* See copy.h. */
#include "proxy/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/check.h"
#include "base/timer.h"
#include "proxy/internal.h"

#define LAST_COPY_MS 1000
#define PAUSE_USEC 50

struct tt_proxy_copy {
  struct tt_proxy *proxy;
  struct tt_proxy_copy *next, **link;
  struct tt_proxy_copy_config config;
  char label[64];
  uint64_t begun, done;       /* steps: done <= begun <= the sender's tail */
  uint64_t tickets[TT_SLOTS]; /* the device's, of the steps between */
};

ncclResult_t tt_proxy_copy_create(struct tt_proxy *proxy, const struct tt_proxy_copy_config *config,
                                  struct tt_proxy_copy **out)
{
  struct tt_proxy_copy *copy;
  *out = NULL;
  TT_TRY(TT_CALLOC(&copy, 1));
  copy->proxy = proxy;
  copy->config = *config;
  snprintf(copy->label, sizeof(copy->label), "%s", config->label);
  copy->begun = copy->done = config->from->step;
  pthread_mutex_lock(&proxy->lock);
  copy->next = proxy->copies;
  copy->link = &proxy->copies;
  if (copy->next) copy->next->link = &copy->next;
  proxy->copies = copy;
  atomic_fetch_add(&proxy->running, 1);
  pthread_mutex_unlock(&proxy->lock);
  *out = copy;
  return ncclSuccess;
}

/* What copies still touch must stay. They wait for nothing, so this is short, unless the device has failed. */
static void outlive_copies(const struct tt_proxy_copy *copy)
{
  uint64_t done = 0, last = copy->tickets[(copy->begun - 1) % TT_SLOTS];
  if (copy->done == copy->begun) return;
  for (tt_deadline end = tt_deadline_in_ms(LAST_COPY_MS); !tt_deadline_passed(end); usleep(PAUSE_USEC))
    if (copy->config.device->copied(copy->config.context, &done) != ncclSuccess || done >= last) return;
}

void tt_proxy_copy_destroy(struct tt_proxy_copy *copy)
{
  if (!copy) return;
  struct tt_proxy *proxy = copy->proxy;
  pthread_mutex_lock(&proxy->lock);
  *copy->link = copy->next;
  if (copy->next) copy->next->link = copy->link;
  atomic_fetch_sub(&proxy->running, 1);
  outlive_copies(copy);
  pthread_mutex_unlock(&proxy->lock);
  free(copy);
}

static ncclResult_t begin(struct tt_proxy_copy *copy)
{
  const struct tt_conn *from = copy->config.from;
  size_t slot_bytes = from->slot_bytes[TT_PROTO_SIMPLE], at = copy->begun % TT_SLOTS * slot_bytes;
  int64_t size = from->fifo[copy->begun % TT_SLOTS].size;
  if (size < TT_SLOT_HEADER || (uint64_t)size > slot_bytes)
    return TT_FAIL(ncclInternalError, "rank %d to rank %d via %s: step %llu has %lld bytes, and slots have %zu",
                   copy->proxy->rank, copy->config.peer, copy->label, (unsigned long long)copy->begun, (long long)size,
                   slot_bytes);
  ncclResult_t result =
      copy->config.device->copy(copy->config.context, copy->config.to + at, from->slots[TT_PROTO_SIMPLE] + at,
                                (size_t)size, &copy->tickets[copy->begun % TT_SLOTS]);
  if (result != ncclSuccess)
    return TT_FAIL(result, "rank %d: copying to rank %d via %s failed: %s", copy->proxy->rank, copy->config.peer,
                   copy->label, tt_log_thread_error());
  copy->begun++;
  return ncclSuccess;
}

/* A slot that was copied is full at the receiver's end, and free again at the sender's. */
static ncclResult_t advance(struct tt_proxy_copy *copy, bool *moved)
{
  const struct tt_proxy_copy_config *config = &copy->config;
  uint64_t tail = atomic_load_explicit(config->from->tail, memory_order_acquire);
  uint64_t room = atomic_load_explicit(config->head, memory_order_acquire) + TT_SLOTS, done = 0;
  for (; tt_proxy_before(copy->begun, tail) && tt_proxy_before(copy->begun, room); *moved = true) TT_TRY(begin(copy));
  if (copy->done == copy->begun) return ncclSuccess;
  ncclResult_t result = config->device->copied(config->context, &done);
  if (result != ncclSuccess)
    return TT_FAIL(result, "rank %d: copying to rank %d via %s failed: %s", copy->proxy->rank, config->peer,
                   copy->label, tt_log_thread_error());
  for (; copy->done != copy->begun && copy->tickets[copy->done % TT_SLOTS] <= done; *moved = true) {
    unsigned slot = (unsigned)(copy->done++ % TT_SLOTS);
    config->fifo[slot].size = config->from->fifo[slot].size;
    atomic_store_explicit(config->tail, copy->done, memory_order_release);
    atomic_store_explicit(config->from->head, copy->done, memory_order_release);
  }
  return ncclSuccess;
}

ncclResult_t tt_proxy_copies_progress(struct tt_proxy *proxy, bool *moved)
{
  for (struct tt_proxy_copy *copy = proxy->copies; copy; copy = copy->next) TT_TRY(advance(copy, moved));
  return ncclSuccess;
}

int tt_proxy_copies_peer(const struct tt_proxy *proxy)
{
  for (const struct tt_proxy_copy *copy = proxy->copies; copy; copy = copy->next)
    if (copy->done != atomic_load_explicit(copy->config.from->tail, memory_order_acquire)) return copy->config.peer;
  return -1;
}
