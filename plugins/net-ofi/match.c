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
      TT_FAIL(ncclInvalidUsage,
              "net ofi: a message of %zu bytes with tag %d from %s is larger than its receive buffer of %zu bytes; both "
              "sides must agree on counts and types",
              bytes, slot->tag, comm->link.peer, slot->room));
}

/* ---- Acknowledgements ---- */

static bool acknowledge(struct tt_ofi_recv_comm *comm, struct tt_ofi_met *met)
{
  if (!tt_ofi_link_say(&comm->link, TT_OFI_ACK, met->tag, met->count)) return false;
  *met = comm->met[--comm->met_count];
  return true;
}

static void count_met(struct tt_ofi_recv_comm *comm, int32_t tag)
{
  int i = comm->met_last < comm->met_count && comm->met[comm->met_last].tag == tag ? comm->met_last : 0;
  while (i < comm->met_count && comm->met[i].tag != tag) i++;
  /* More tags than are counted: the first is told early. If that cannot be, its sender has the rest of its window. */
  if (i == TT_OFI_TAGS && !acknowledge(comm, &comm->met[0])) return;
  if (i >= comm->met_count) {
    i = comm->met_count++;
    comm->met[i] = (struct tt_ofi_met){.tag = tag};
  }
  comm->met_last = i;
  if (++comm->met[i].count >= ACKNOWLEDGE) acknowledge(comm, &comm->met[i]);
}

static void acknowledge_rest(struct tt_ofi_recv_comm *comm)
{
  for (int i = 0; i < comm->met_count; i++)
    if (comm->met[i].count >= ACKNOWLEDGE && acknowledge(comm, &comm->met[i])) i--;
}

/* ---- Large messages ---- */

static uint32_t index_of(const struct tt_ofi_recv_comm *comm, const struct tt_ofi_slot *slot)
{
  for (uint32_t r = 0; r < TT_OFI_RECV_REQUESTS; r++)
    if (slot >= comm->requests[r].slot && slot < comm->requests[r].slot + TT_OFI_RECVS)
      return r * TT_OFI_RECVS + (uint32_t)(slot - comm->requests[r].slot);
  return 0;
}

static ncclResult_t send_clear(struct tt_ofi_recv_comm *comm, struct tt_ofi_packet *packet, uint32_t id,
                               const struct tt_ofi_slot *slot)
{
  struct tt_ofi_clear clear;
  memset(&clear, 0, sizeof clear);
  clear.header = (struct tt_ofi_header){.kind = TT_OFI_CTS, .id = id, .place = slot->place};
  for (int i = 0; i < comm->link.rails; i++) {
    clear.address[i] = tt_ofi_memory_remote(&comm->link, slot->memory, i, slot->data);
    clear.key[i] = fi_mr_key(slot->memory->mr[i]);
  }
  memcpy(packet->data, &clear, sizeof clear);
  packet->bytes = sizeof clear;
  return tt_ofi_link_send(&comm->link, 0, packet);
}

static ncclResult_t clear_waiting(struct tt_ofi_recv_comm *comm)
{
  while (comm->clearing_count) {
    struct tt_ofi_packet *packet = tt_ofi_link_packet(&comm->link, 0);
    if (!packet) return ncclSuccess;
    struct tt_ofi_clearing *clearing = &comm->clearing[comm->clearing_first];
    comm->clearing_first = (comm->clearing_first + 1) % SLOTS;
    comm->clearing_count--;
    TT_TRY(send_clear(comm, packet, clearing->id, clearing->slot));
  }
  return ncclSuccess;
}

static ncclResult_t begin_large(struct tt_ofi_recv_comm *comm, const struct tt_ofi_header *header,
                                struct tt_ofi_slot *slot)
{
  if (!slot->memory) {
    TT_TRY(tt_ofi_memory_make(&comm->link, slot->data, header->bytes, NCCL_PTR_HOST, 0, -1, &slot->own));
    slot->memory = slot->own;
  }
  TT_TRY(tt_ofi_memory_holds(slot->memory, slot->data, header->bytes, "irecv"));
  slot->place = (++comm->places % (UINT32_MAX / SLOTS)) * SLOTS + index_of(comm, slot);
  slot->left = tt_ofi_link_pieces(&comm->link, header->bytes);
  comm->large_open++;
  int at = (comm->clearing_first + comm->clearing_count++) % SLOTS; /* a slot each, so there is room */
  comm->clearing[at] = (struct tt_ofi_clearing){.id = header->id, .slot = slot};
  return clear_waiting(comm);
}

ncclResult_t tt_ofi_match_written(struct tt_ofi_link *link, uint64_t place)
{
  struct tt_ofi_recv_comm *comm = (struct tt_ofi_recv_comm *)link;
  struct tt_ofi_slot *slot = &comm->requests[place % SLOTS / TT_OFI_RECVS].slot[place % TT_OFI_RECVS];
  if (place == 0 || place != slot->place || slot->left == 0) return corrupt(comm, "a part for a place", place);
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
  if (header->kind == TT_OFI_RTS) return begin_large(comm, header, slot);
  if (header->bytes) memcpy(slot->data, payload, header->bytes);
  count_met(comm, header->tag);
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
  if (header->kind != TT_OFI_EAGER && header->kind != TT_OFI_RTS) return corrupt(comm, "a packet of kind", header->kind);
  size_t wanted = header->kind == TT_OFI_EAGER ? header->bytes : 0;
  if (header->bytes > NCCL_MAX_NET_SIZE_BYTES || bytes - sizeof *header != wanted)
    return corrupt(comm, "a message whose packet does not fit its size of", header->bytes);
  if (header->sequence < comm->expected) return corrupt(comm, "a second message of number", header->sequence);
  if (header->sequence > comm->expected) return keep(comm, &comm->ahead, header, payload);
  TT_TRY(take_message(comm, header, payload));
  return comm->ahead.first ? take_ahead(comm) : ncclSuccess;
}

ncclResult_t tt_ofi_match_receive(struct tt_ofi_recv_comm *comm, struct tt_ofi_recv_request *request)
{
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
  return ncclSuccess;
}

ncclResult_t tt_ofi_match_progress(struct tt_ofi_recv_comm *comm)
{
  acknowledge_rest(comm);
  return clear_waiting(comm);
}

void tt_ofi_match_free(struct tt_ofi_recv_comm *comm)
{
  while (comm->early.first) drop(&comm->early, &comm->early.first);
  while (comm->ahead.first) drop(&comm->ahead, &comm->ahead.first);
}
