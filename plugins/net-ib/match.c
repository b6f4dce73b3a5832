/* Which message goes into which buffer: by tag, the oldest first. */
#include "send.h"

#include <string.h>

static void match(struct tt_ib_send_comm *comm, uint64_t number, int at, struct tt_ib_send_request *request)
{
  struct tt_ib_group *group = tt_ib_group_of(comm, number);
  group->request[at] = request;
  request->too_large = request->bytes > group->entry[at].bytes;
  if (++group->matched == group->count) tt_ib_queue_group(comm, number);
}

bool tt_ib_match_request(struct tt_ib_send_comm *comm, struct tt_ib_send_request *request)
{
  for (uint64_t number = comm->oldest; number < comm->next; number++) {
    struct tt_ib_group *group = tt_ib_group_of(comm, number);
    if (!group->active || group->matched == group->count) continue;
    for (int i = 0; i < group->count; i++)
      if (!group->request[i] && group->entry[i].tag == request->tag) {
        match(comm, number, i, request);
        return true;
      }
  }
  return false;
}

/* Gives the buffers of a new receive to those that wait for them. */
static void match_group(struct tt_ib_send_comm *comm, uint64_t number)
{
  struct tt_ib_group *group = tt_ib_group_of(comm, number);
  for (int i = 0; i < group->count; i++) {
    struct tt_ib_send_request **at = &comm->waiting;
    while (*at && (*at)->tag != group->entry[i].tag) at = &(*at)->next;
    struct tt_ib_send_request *request = *at;
    if (!request) continue;
    *at = request->next;
    if (!request->next) comm->waiting_end = at;
    match(comm, number, i, request);
  }
}

typedef uint64_t __attribute__((may_alias)) word;

/* An entry that a NIC may be writing once more: the receiver tells some twice, in the same words. */
static void read_entry(const struct tt_ib_clear *from, struct tt_ib_clear *to)
{
  const word *in = (const word *)(const void *)from;
  word *out = (word *)(void *)to;
  for (size_t i = 0; i < sizeof *to / sizeof *out; i++) out[i] = __atomic_load_n(&in[i], __ATOMIC_RELAXED);
}

ncclResult_t tt_ib_look_for_clear(struct tt_ib_send_comm *comm)
{
  for (;;) {
    uint64_t number = comm->next;
    struct tt_ib_group *group = tt_ib_group_of(comm, number);
    struct tt_ib_clear *entry = comm->memory->ring.entry[number % TT_IB_SLOTS];
    if (group->active || __atomic_load_n(&entry[0].sequence, __ATOMIC_ACQUIRE) != number + 1) return ncclSuccess;
    struct tt_ib_clear first;
    read_entry(&entry[0], &first);
    uint32_t count = first.count;
    if (count < 1 || count > TT_IB_RECVS)
      return tt_ib_link_fail(&comm->link, TT_FAIL(ncclRemoteError,
                                                  "net ib: the peer %s receives %u messages at once; 1 to %d "
                                                  "are possible",
                                                  comm->link.peer, count, TT_IB_RECVS));
    for (uint32_t i = 1; i < count; i++)
      if (__atomic_load_n(&entry[i].sequence, __ATOMIC_ACQUIRE) != number + 1) return ncclSuccess;
    memset(group, 0, sizeof *group);
    for (uint32_t i = 0; i < count; i++) read_entry(&entry[i], &group->entry[i]);
    group->count = (int)count;
    tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SENDS, 1);
    group->active = true;
    group->number = number;
    comm->next = number + 1;
    match_group(comm, number);
  }
}
