/* Which message goes to which buffer: to the oldest receive that has a free slot of its tag. Messages are taken in the
 * order of their numbers, whatever order they come in; those that have no receive yet are kept aside. The sender's
 * window for each tag bounds them. */
#include "recv.h"

#include <stdlib.h>
#include <string.h>

#define ACKNOWLEDGE 32 /* small messages of a tag: half of the sender's window */

/* A place is the number of a slot, and of its use, so that a write that comes too late or was not asked for is seen. */
#define SLOTS (TT_OFI_RECV_REQUESTS * TT_OFI_RECVS)
_Static_assert(SLOTS == 256, "a place has 8 bits for the slot");

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

static ncclResult_t send_clear(struct tt_ofi_recv_comm *comm, struct tt_ofi_packet *packet,
                               const struct tt_ofi_slot *slot)
{
  struct tt_ofi_clear clear;
  memset(&clear, 0, sizeof clear);
  clear.header = (struct tt_ofi_header){
      .kind = TT_OFI_CTS, .tag = slot->tag, .bytes = slot->room, .sequence = slot->number, .place = slot->place};
  for (int i = 0; i < comm->link.rails; i++) {
    clear.address[i] = tt_ofi_memory_remote(&comm->link, slot->memory, i, slot->data);
    clear.key[i] = fi_mr_key(slot->memory->mr[i]);
  }
  memcpy(packet->data, &clear, sizeof clear);
  packet->bytes = sizeof clear;
  tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SENDS, 1);
  return tt_ofi_link_send(&comm->link, 0, packet);
}

static ncclResult_t clear_waiting(struct tt_ofi_recv_comm *comm)
{
  while (comm->clearing_count) {
    struct tt_ofi_clearing *clearing = &comm->clearing[comm->clearing_first];
    if (clearing->slot->place == clearing->place) {
      struct tt_ofi_packet *packet = tt_ofi_link_packet(&comm->link, 0);
      if (!packet) return ncclSuccess;
      TT_TRY(send_clear(comm, packet, clearing->slot));
    }
    comm->clearing_first = (comm->clearing_first + 1) % TT_OFI_CLEARINGS;
    comm->clearing_count--;
  }
  return ncclSuccess;
}

static void give_place(struct tt_ofi_recv_comm *comm, struct tt_ofi_slot *slot)
{
  slot->place = (++comm->places % (UINT32_MAX / SLOTS)) * SLOTS + index_of(comm, slot);
  int at = (comm->clearing_first + comm->clearing_count++) % TT_OFI_CLEARINGS;
  comm->clearing[at] = (struct tt_ofi_clearing){.place = slot->place, .slot = slot};
}

/* The message of a slot is written, or will be. */
static ncclResult_t begin_large(struct tt_ofi_recv_comm *comm, size_t bytes, struct tt_ofi_slot *slot)
{
  uint32_t pieces = tt_ofi_link_pieces(&comm->link, bytes);
  if (!slot->memory) {
    TT_TRY(tt_ofi_memory_make(&comm->link, slot->data, slot->room, NCCL_PTR_HOST, 0, -1, &slot->own));
    slot->memory = slot->own;
  }
  TT_TRY(tt_ofi_memory_holds(slot->memory, slot->data, slot->room, "irecv"));
  if (!slot->place) give_place(comm, slot);
  if (slot->came > pieces) return corrupt(comm, "too many parts of a message of", bytes);
  slot->left = pieces - slot->came;
  if (slot->left)
    comm->large_open++;
  else
    slot->place = 0;
  return clear_waiting(comm);
}

ncclResult_t tt_ofi_match_written(struct tt_ofi_link *link, uint64_t place)
{
  struct tt_ofi_recv_comm *comm = (struct tt_ofi_recv_comm *)link;
  struct tt_ofi_slot *slot = &comm->requests[place % SLOTS / TT_OFI_RECVS].slot[place % TT_OFI_RECVS];
  if (place == 0 || place != slot->place) return corrupt(comm, "a part for a place", place);
  if (!slot->matched) {
    slot->came++;
    return ncclSuccess;
  }
  if (--slot->left > 0) return ncclSuccess;
  slot->place = 0;
  comm->large_open--;
  return ncclSuccess;
}

/* ---- Matching ---- */

/* A receive whose slots are all matched leaves the queue. */
static ncclResult_t give(struct tt_ofi_recv_comm *comm, struct tt_ofi_recv_request *request, struct tt_ofi_slot *slot,
                         const struct tt_ofi_header *header, const char *payload)
{
  TT_TRY(fits(comm, slot, header->bytes));
  slot->matched = true;
  slot->bytes = header->bytes;
  slot->left = 0;
  request->matched++;
  struct tt_ofi_count *count;
  TT_TRY(tt_ofi_counts_get(&comm->counts, header->tag, &count));
  count->large = header->kind == TT_OFI_RTS;
  if (count->large) return begin_large(comm, header->bytes, slot);
  if (header->bytes) memcpy(slot->data, payload, header->bytes);
  slot->place = 0;
  if (++count->met >= ACKNOWLEDGE) acknowledge(comm, count);
  return ncclSuccess;
}

static struct tt_ofi_slot *free_slot(struct tt_ofi_recv_request *request, int32_t tag)
{
  for (int i = 0; i < request->n; i++)
    if (!request->slot[i].matched && request->slot[i].tag == tag) return &request->slot[i];
  return NULL;
}

static ncclResult_t keep(struct tt_ofi_recv_comm *comm, struct tt_ofi_earlies *list, const struct tt_ofi_header *header,
                         const char *payload)
{
  size_t bytes = header->kind == TT_OFI_EAGER ? header->bytes : 0;
  struct tt_ofi_early *early = malloc(sizeof *early + bytes);
  if (!early)
    return tt_ofi_link_fail(&comm->link,
                            TT_FAIL(ncclSystemError, "net ofi: no memory for %zu bytes that came early", bytes));
  early->header = *header;
  early->next = NULL;
  if (bytes) memcpy(early->data, payload, bytes);
  *list->end = early;
  list->end = &early->next;
  return ncclSuccess;
}

static void drop(struct tt_ofi_earlies *list, struct tt_ofi_early **at)
{
  struct tt_ofi_early *early = *at;
  *at = early->next;
  if (!*at) list->end = at;
  free(early);
}

static ncclResult_t take_message(struct tt_ofi_recv_comm *comm, const struct tt_ofi_header *header, const char *payload)
{
  comm->expected++;
  for (struct tt_ofi_recv_request **at = &comm->open; *at; at = &(*at)->next) {
    struct tt_ofi_recv_request *request = *at;
    struct tt_ofi_slot *slot = free_slot(request, header->tag);
    if (!slot) continue;
    TT_TRY(give(comm, request, slot, header, payload));
    if (request->matched == request->n) {
      *at = request->next;
      if (!*at) comm->open_end = at;
    }
    return ncclSuccess;
  }
  return keep(comm, &comm->early, header, payload);
}

static ncclResult_t take_ahead(struct tt_ofi_recv_comm *comm)
{
  struct tt_ofi_early **at = &comm->ahead.first;
  while (*at) {
    if ((*at)->header.sequence != comm->expected) {
      at = &(*at)->next;
      continue;
    }
    TT_TRY(take_message(comm, &(*at)->header, (*at)->data));
    drop(&comm->ahead, at);
    at = &comm->ahead.first;
  }
  return ncclSuccess;
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
  if (header->sequence < comm->expected) return corrupt(comm, "a second message of number", header->sequence);
  if (header->sequence > comm->expected) return keep(comm, &comm->ahead, header, payload);
  TT_TRY(take_message(comm, header, payload));
  return comm->ahead.first ? take_ahead(comm) : ncclSuccess;
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
static ncclResult_t tell_places(struct tt_ofi_recv_comm *comm, struct tt_ofi_recv_request *request)
{
  for (int i = 0; i < request->n; i++) {
    struct tt_ofi_slot *slot = &request->slot[i];
    struct tt_ofi_count *count;
    if (slot->matched || slot->room <= comm->link.eager || !slot->memory) continue;
    TT_TRY(tt_ofi_counts_get(&comm->counts, slot->tag, &count));
    if (!count->large || comm->clearing_count >= TT_OFI_CLEARINGS / 2) continue;
    TT_TRY(tt_ofi_memory_holds(slot->memory, slot->data, slot->room, "irecv"));
    give_place(comm, slot);
  }
  return clear_waiting(comm);
}

ncclResult_t tt_ofi_match_receive(struct tt_ofi_recv_comm *comm, struct tt_ofi_recv_request *request)
{
  TT_TRY(count_buffers(comm, request));
  for (struct tt_ofi_early **at = &comm->early.first; *at && request->matched < request->n;) {
    struct tt_ofi_early *early = *at;
    struct tt_ofi_slot *slot = free_slot(request, early->header.tag);
    if (!slot) {
      at = &early->next;
      continue;
    }
    TT_TRY(give(comm, request, slot, &early->header, early->data));
    drop(&comm->early, at);
  }
  if (request->matched == request->n) return ncclSuccess;
  request->next = NULL;
  *comm->open_end = request;
  comm->open_end = &request->next;
  return tell_places(comm, request);
}

ncclResult_t tt_ofi_match_progress(struct tt_ofi_recv_comm *comm)
{
  if (comm->unsaid) acknowledge_rest(comm);
  return clear_waiting(comm);
}

void tt_ofi_match_free(struct tt_ofi_recv_comm *comm)
{
  while (comm->early.first) drop(&comm->early, &comm->early.first);
  while (comm->ahead.first) drop(&comm->ahead, &comm->ahead.first);
  tt_ofi_counts_free(&comm->counts);
}
