/* Which message goes to which buffer: the n-th of a tag to the n-th buffer of that tag, whatever order they come in.
 * Those that have no receive yet are kept aside. The sender's window for each tag bounds them. */
#include "recv.h"

#include <stdlib.h>
#include <string.h>

#define ACKNOWLEDGE 32 /* small messages of a tag: half of the sender's window */
/* Places of a tag that the peer knows and has not filled, while which further ones wait for company: until the comm is
 * moved, and until there are some. */
#define ENOUGH_NOW 1
#define ENOUGH 4

/* A place is the number of a slot, and of its use, so that a write that comes too late or was not asked for is seen. */
#define SLOTS (TT_OFI_RECV_REQUESTS * TT_OFI_RECVS)
_Static_assert(SLOTS == 256, "a place has 8 bits for the slot");
#define USES (TT_OFI_WHOLE / SLOTS)

static ncclResult_t corrupt(struct tt_ofi_recv_comm *comm, const char *what, uint64_t value)
{
  return tt_ofi_link_fail(&comm->link,
                          TT_FAIL(ncclRemoteError, "net ofi: device %s: %s sent %s %llu; the stream is corrupt",
                                  comm->link.device->name, comm->link.peer, what, (unsigned long long)value));
}

static ncclResult_t fits(struct tt_ofi_recv_comm *comm, const struct tt_ofi_slot *slot, size_t bytes)
{
  if (bytes <= slot->room) return ncclSuccess;
  return tt_ofi_link_fail(
      &comm->link,
      TT_FAIL(
          ncclInvalidUsage,
          "net ofi: a message of %zu bytes with tag %d from %s is larger than its receive buffer of %zu bytes; both "
          "sides must agree on counts and types",
          bytes, slot->tag, comm->link.peer, slot->room));
}

/* ---- Acknowledgements ---- */

static void acknowledge(struct tt_ofi_recv_comm *comm, struct tt_ofi_count *count)
{
  if (tt_ofi_link_say(&comm->link, TT_OFI_ACK, count->tag, count->met))
    count->met = 0;
  else
    comm->unsaid = true;
}

static void acknowledge_rest(struct tt_ofi_recv_comm *comm)
{
  comm->unsaid = false;
  for (uint32_t i = 0; i < comm->counts.size && !comm->unsaid; i++)
    if (comm->counts.entries[i].met >= ACKNOWLEDGE) acknowledge(comm, &comm->counts.entries[i]);
}

/* ---- Large messages ---- */

static uint32_t index_of(const struct tt_ofi_recv_comm *comm, const struct tt_ofi_slot *slot)
{
  for (uint32_t r = 0; r < TT_OFI_RECV_REQUESTS; r++)
    if (slot >= comm->requests[r].slot && slot < comm->requests[r].slot + TT_OFI_RECVS)
      return r * TT_OFI_RECVS + (uint32_t)(slot - comm->requests[r].slot);
  return 0;
}

static void describe(const struct tt_ofi_recv_comm *comm, const struct tt_ofi_clearing *clearing,
                     struct tt_ofi_clear *clear)
{
  const struct tt_ofi_slot *slot = clearing->slot;
  memset(clear, 0, sizeof *clear);
  clear->header = (struct tt_ofi_header){.kind = TT_OFI_CTS, .tag = clearing->tag, .number = clearing->number};
  if (!clearing->place) return;
  clear->header.bytes = slot->room;
  clear->place = clearing->place;
  for (int i = 0; i < comm->link.rails; i++) {
    clear->rail[i].address = tt_ofi_memory_remote(&comm->link, slot->memory, i, slot->data);
    clear->rail[i].key = fi_mr_key(slot->memory->mr[i]);
  }
}

/* A packet with as many places as fit. */
static ncclResult_t send_clears(struct tt_ofi_recv_comm *comm, struct tt_ofi_packet *packet)
{
  size_t each = tt_ofi_clear_bytes(comm->link.rails);
  packet->bytes = 0;
  packet->injects = true;
  while (comm->clearing_count && packet->bytes < TT_OFI_GATHER * each) {
    struct tt_ofi_clearing *clearing = &comm->clearing[comm->clearing_first];
    struct tt_ofi_slot *slot = clearing->slot;
    comm->clearing_first = (comm->clearing_first + 1) % TT_OFI_CLEARINGS;
    comm->clearing_count--;
    if (clearing->place && clearing->place != slot->place) continue; /* it was given up */
    struct tt_ofi_clear clear;
    struct tt_ofi_count *count;
    TT_TRY(tt_ofi_counts_get(&comm->counts, clearing->tag, &count));
    describe(comm, clearing, &clear);
    if (clearing->place) {
      if (count->posted == slot->number + 1) count->promised = TT_MIN(count->promised, count->posted);
      clear.promise = slot->number + 1 >= count->promised;
      slot->told = true;
      count->told++;
      tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SENDS, 1);
    }
    memcpy(packet->data + packet->bytes, &clear, each);
    packet->bytes += each;
  }
  if (packet->bytes) {
    comm->link.clears++;
    return tt_ofi_link_send(&comm->link, 0, packet);
  }
  tt_ofi_link_return(&comm->link, 0, packet);
  return ncclSuccess;
}

/* Each packet costs the peer about as much as a message. While it knows places enough of a tag, the next ones wait
 * until there are some to tell of: it needs them only behind those. */
static bool may_wait(struct tt_ofi_recv_comm *comm, uint32_t enough)
{
  if (comm->asked || comm->clearing_count >= TT_OFI_GATHER) return false;
  for (int i = 0; i < comm->clearing_count; i++) {
    int32_t tag = comm->clearing[(comm->clearing_first + i) % TT_OFI_CLEARINGS].tag;
    struct tt_ofi_count *count;
    if (tt_ofi_counts_get(&comm->counts, tag, &count) != ncclSuccess || count->told < enough) return false;
  }
  return true;
}

/* Who has left, or said that it sends no more, needs no places, and what comes to an endpoint that is closed may cost
 * what came from it and is not read yet: over tcp it resets the connection. That the socket was heard shortly before is
 * enough, since a sender reads on for longer than that after its goodbye. */
static ncclResult_t drop_unwanted(struct tt_ofi_recv_comm *comm)
{
  struct tt_ofi_link *link = &comm->link;
  uint64_t now = tt_timer_ns();
  if (now - link->heard_ns >= TT_OFI_HEAR_NS) TT_TRY(tt_ofi_link_hear(link, now));
  if (link->gone || link->bye) comm->clearing_count = 0;
  return ncclSuccess;
}

static ncclResult_t clear_waiting(struct tt_ofi_recv_comm *comm, uint32_t enough)
{
  while (comm->clearing_count && !may_wait(comm, enough)) {
    TT_TRY(drop_unwanted(comm));
    if (!comm->clearing_count) break;
    struct tt_ofi_packet *packet = tt_ofi_link_packet(&comm->link, 0);
    if (!packet) return ncclSuccess;
    TT_TRY(send_clears(comm, packet));
  }
  if (comm->clearing_count == 0) comm->asked = false;
  return ncclSuccess;
}

static void tell(struct tt_ofi_recv_comm *comm, struct tt_ofi_slot *slot)
{
  int at = (comm->clearing_first + comm->clearing_count++) % TT_OFI_CLEARINGS;
  comm->clearing[at] =
      (struct tt_ofi_clearing){.place = slot->place, .slot = slot, .tag = slot->tag, .number = slot->number};
}

static void give_place(struct tt_ofi_recv_comm *comm, struct tt_ofi_slot *slot)
{
  if (++comm->places == USES) comm->places = 1;
  slot->place = comm->places * SLOTS + index_of(comm, slot);
  tell(comm, slot);
}

static void give_none(struct tt_ofi_recv_comm *comm, struct tt_ofi_slot *slot, struct tt_ofi_count *count)
{
  slot->place = 0;
  tell(comm, slot);
  comm->asked = true;
  count->promised = UINT64_MAX;
}

/* Nothing more is written there. */
static ncclResult_t end_place(struct tt_ofi_recv_comm *comm, struct tt_ofi_slot *slot)
{
  struct tt_ofi_count *count;
  TT_TRY(tt_ofi_counts_get(&comm->counts, slot->tag, &count));
  count->told -= slot->told;
  slot->told = false;
  slot->place = 0;
  return ncclSuccess;
}

/* Of the message of a slot a piece came, or will. */
static ncclResult_t count_pieces(struct tt_ofi_recv_comm *comm, struct tt_ofi_slot *slot)
{
  uint32_t pieces = tt_ofi_link_pieces(&comm->link, slot->bytes);
  if (slot->came > pieces) return corrupt(comm, "too many parts of a message of", slot->bytes);
  slot->left = pieces - slot->came;
  if (slot->left == 0) return end_place(comm, slot);
  comm->large_open++;
  return ncclSuccess;
}

/* The message of a slot is written, or will be. Its place is told later: a promise that goes with it is good only once
 * the other slots of a new receive have been told of theirs, or of none. */
static ncclResult_t begin_large(struct tt_ofi_recv_comm *comm, struct tt_ofi_slot *slot)
{
  if (!slot->memory) {
    TT_TRY(tt_ofi_memory_make(&comm->link, slot->data, slot->room, NCCL_PTR_HOST, 0, -1, &slot->own));
    slot->memory = slot->own;
  }
  TT_TRY(tt_ofi_memory_holds(slot->memory, slot->data, slot->room, "irecv"));
  if (!slot->place) give_place(comm, slot);
  if (!slot->told) comm->asked = true;
  return count_pieces(comm, slot);
}

/* ---- Matching ---- */

/* A receive whose slots are all matched leaves the queue. `large`: it is complete only once its pieces are counted, and
 * never if that fails. */
static void take_slot(struct tt_ofi_recv_comm *comm, struct tt_ofi_recv_request *request, struct tt_ofi_slot *slot,
                      size_t bytes, bool large)
{
  slot->matched = true;
  slot->bytes = bytes;
  slot->left = large;
  comm->heard++;
  if (++request->matched < request->n) return;
  struct tt_ofi_recv_request **at = &comm->open;
  while (*at && *at != request) at = &(*at)->next;
  if (!*at) return; /* it is not there yet: tt_ofi_match_receive */
  *at = request->next;
  if (!*at) comm->open_end = at;
}

ncclResult_t tt_ofi_match_written(struct tt_ofi_link *link, uint64_t data)
{
  struct tt_ofi_recv_comm *comm = (struct tt_ofi_recv_comm *)link;
  uint32_t place = (uint32_t)data & ~TT_OFI_WHOLE;
  struct tt_ofi_recv_request *request = &comm->requests[place % SLOTS / TT_OFI_RECVS];
  struct tt_ofi_slot *slot = &request->slot[place % TT_OFI_RECVS];
  if (place == 0 || place != slot->place) return corrupt(comm, "a part for a place", place);
  if (!slot->matched) {
    slot->came++;
    if (!(data & TT_OFI_WHOLE)) return ncclSuccess; /* a packet tells the message's size */
    size_t bytes = comm->link.wide ? data >> 32 : slot->room;
    if (bytes == 0) return corrupt(comm, "a part of no bytes for place", place);
    TT_TRY(fits(comm, slot, bytes));
    struct tt_ofi_count *count;
    TT_TRY(tt_ofi_counts_get(&comm->counts, slot->tag, &count));
    count->large = true;
    take_slot(comm, request, slot, bytes, true);
    return count_pieces(comm, slot);
  }
  if (--slot->left > 0) return ncclSuccess;
  comm->large_open--;
  return end_place(comm, slot);
}

static ncclResult_t give(struct tt_ofi_recv_comm *comm, struct tt_ofi_recv_request *request, struct tt_ofi_slot *slot,
                         const struct tt_ofi_header *header, const char *payload)
{
  TT_TRY(fits(comm, slot, header->bytes));
  take_slot(comm, request, slot, header->bytes, header->kind == TT_OFI_RTS);
  struct tt_ofi_count *count;
  TT_TRY(tt_ofi_counts_get(&comm->counts, header->tag, &count));
  count->large = header->kind == TT_OFI_RTS;
  if (count->large) return begin_large(comm, slot);
  if (header->bytes) memcpy(slot->data, payload, header->bytes);
  TT_TRY(end_place(comm, slot));
  if (++count->met >= ACKNOWLEDGE) acknowledge(comm, count);
  return ncclSuccess;
}

static struct tt_ofi_slot *free_slot(struct tt_ofi_recv_request *request, int32_t tag, uint64_t number)
{
  for (int i = 0; i < request->n; i++) {
    struct tt_ofi_slot *slot = &request->slot[i];
    if (!slot->matched && slot->tag == tag && slot->number == number) return slot;
  }
  return NULL;
}

static ncclResult_t keep(struct tt_ofi_recv_comm *comm, const struct tt_ofi_header *header, const char *payload)
{
  size_t bytes = header->kind == TT_OFI_EAGER ? header->bytes : 0;
  struct tt_ofi_early *early = malloc(sizeof *early + bytes);
  if (!early)
    return tt_ofi_link_fail(&comm->link,
                            TT_FAIL(ncclSystemError, "net ofi: no memory for %zu bytes that came early", bytes));
  early->header = *header;
  early->next = NULL;
  if (bytes) memcpy(early->data, payload, bytes);
  *comm->early.end = early;
  comm->early.end = &early->next;
  return ncclSuccess;
}

static void drop(struct tt_ofi_recv_comm *comm, struct tt_ofi_early **at)
{
  struct tt_ofi_early *early = *at;
  *at = early->next;
  if (!*at) comm->early.end = at;
  free(early);
}

static ncclResult_t take_message(struct tt_ofi_recv_comm *comm, const struct tt_ofi_header *header, const char *payload)
{
  struct tt_ofi_count *count;
  for (struct tt_ofi_recv_request *request = comm->open; request; request = request->next) {
    struct tt_ofi_slot *slot = free_slot(request, header->tag, header->number);
    if (slot) return give(comm, request, slot, header, payload);
  }
  TT_TRY(tt_ofi_counts_get(&comm->counts, header->tag, &count));
  if (header->number < count->posted) return corrupt(comm, "a second message of number", header->number);
  return keep(comm, header, payload);
}

ncclResult_t tt_ofi_match_packet(struct tt_ofi_link *link, const struct tt_ofi_header *header, size_t bytes)
{
  struct tt_ofi_recv_comm *comm = (struct tt_ofi_recv_comm *)link;
  const char *payload = (const char *)(header + 1);
  if (header->kind != TT_OFI_EAGER && header->kind != TT_OFI_RTS)
    return corrupt(comm, "a packet of kind", header->kind);
  size_t wanted = header->kind == TT_OFI_EAGER ? header->bytes : 0;
  if (header->bytes > NCCL_MAX_NET_SIZE_BYTES || bytes - sizeof *header != wanted)
    return corrupt(comm, "a message whose packet does not fit its size of", header->bytes);
  return take_message(comm, header, payload);
}

/* Numbers the buffers, in the order in which equal tags match. */
static ncclResult_t count_buffers(struct tt_ofi_recv_comm *comm, struct tt_ofi_recv_request *request)
{
  for (int i = 0; i < request->n; i++) {
    struct tt_ofi_count *count;
    TT_TRY(tt_ofi_counts_get(&comm->counts, request->slot[i].tag, &count));
    request->slot[i].number = count->posted++;
  }
  return ncclSuccess;
}

/* A large message that knows its place needs not ask. Where the tag's last was small, the next may be so too, and the
 * packet would be in vain. */
static bool is_told_ahead(const struct tt_ofi_recv_comm *comm, const struct tt_ofi_slot *slot,
                          const struct tt_ofi_count *count)
{
  return count->large && slot->memory && slot->room > comm->link.eager && comm->clearing_count < TT_OFI_CLEARINGS / 2;
}

static ncclResult_t tell_places(struct tt_ofi_recv_comm *comm, struct tt_ofi_recv_request *request)
{
  for (int i = 0; i < request->n; i++) {
    struct tt_ofi_slot *slot = &request->slot[i];
    struct tt_ofi_count *count;
    if (slot->matched) continue;
    TT_TRY(tt_ofi_counts_get(&comm->counts, slot->tag, &count));
    if (is_told_ahead(comm, slot, count)) {
      TT_TRY(tt_ofi_memory_holds(slot->memory, slot->data, slot->room, "irecv"));
      give_place(comm, slot);
    } else if (slot->number >= count->promised) {
      give_none(comm, slot, count);
    }
  }
  return clear_waiting(comm, ENOUGH_NOW);
}

ncclResult_t tt_ofi_match_receive(struct tt_ofi_recv_comm *comm, struct tt_ofi_recv_request *request)
{
  TT_TRY(count_buffers(comm, request));
  for (struct tt_ofi_early **at = &comm->early.first; *at && request->matched < request->n;) {
    struct tt_ofi_early *early = *at;
    struct tt_ofi_slot *slot = free_slot(request, early->header.tag, early->header.number);
    if (!slot) {
      at = &early->next;
      continue;
    }
    TT_TRY(give(comm, request, slot, &early->header, early->data));
    drop(comm, at);
  }
  if (request->matched == request->n) return clear_waiting(comm, ENOUGH);
  request->next = NULL;
  *comm->open_end = request;
  comm->open_end = &request->next;
  return tell_places(comm, request);
}

ncclResult_t tt_ofi_match_progress(struct tt_ofi_recv_comm *comm)
{
  if (comm->unsaid) acknowledge_rest(comm);
  return clear_waiting(comm, ENOUGH);
}

void tt_ofi_match_free(struct tt_ofi_recv_comm *comm)
{
  while (comm->early.first) drop(comm, &comm->early.first);
  tt_ofi_counts_free(&comm->counts);
}
