/* Large messages: where they go, and their writes. */
#include "send.h"

#include <string.h>

void tt_ofi_write_init(struct tt_ofi_send_comm *comm)
{
  comm->writing_end = &comm->writing;
  for (int i = 0; i < TT_OFI_WRITES; i++) {
    comm->writes[i].op.kind = TT_OFI_OP_WRITE;
    comm->writes[i].next = comm->free_writes;
    comm->free_writes = &comm->writes[i];
  }
}

/* ---- Places ---- */

static void begin_writing(struct tt_ofi_send_comm *comm, struct tt_ofi_send_request *request,
                          const struct tt_ofi_clear *clear)
{
  request->clear = *clear;
  request->first_rail = request->rail = (int)(request->number % (uint64_t)comm->link.rails);
  request->other = NULL;
  *comm->writing_end = request;
  comm->writing_end = &request->other;
}

/* One of which no packet has told, and none needs to if its writes can. */
static void begin_unasked(struct tt_ofi_send_comm *comm, struct tt_ofi_send_request *request,
                          const struct tt_ofi_clear *clear)
{
  bool tells = comm->link.wide ? request->bytes <= UINT32_MAX : request->bytes == clear->header.bytes;
  request->whole = request->quiet = request->told = tells;
  begin_writing(comm, request, clear);
}

/* The place of the message that was just counted, if it came already. One that is not large does without. */
static bool take_place(struct tt_ofi_send_comm *comm, int32_t tag, uint64_t number, struct tt_ofi_clear *out)
{
  for (int i = 0; i < comm->clear_count; i++) {
    if (comm->clears[i].header.tag != tag || comm->clears[i].header.number != number) continue;
    *out = comm->clears[i];
    comm->clears[i] = comm->clears[--comm->clear_count];
    return true;
  }
  return false;
}

/* A message that is too large for its place is not written: the receiver, which hears of its size, ends the comm. */
void tt_ofi_write_begin(struct tt_ofi_send_comm *comm, struct tt_ofi_send_request *request, bool promised)
{
  struct tt_ofi_clear clear;
  bool have = take_place(comm, request->sending.tag->number, request->number, &clear);
  if (request->small) return;
  if (have && request->bytes <= clear.header.bytes) {
    begin_unasked(comm, request, &clear);
  } else {
    tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SEND_WAITS, 1);
    request->quiet = !have && promised;
    request->other = comm->asking;
    comm->asking = request;
  }
}

static void give_place(struct tt_ofi_send_comm *comm, const struct tt_ofi_clear *clear)
{
  struct tt_ofi_send_request **at = &comm->asking;
  while (*at && ((*at)->sending.tag->number != clear->header.tag || (*at)->number != clear->header.number))
    at = &(*at)->other;
  struct tt_ofi_send_request *request = *at;
  if (!request) return; /* the message was small */
  bool quiet = request->quiet;
  if (request->bytes <= clear->header.bytes) {
    *at = request->other;
    if (quiet)
      begin_unasked(comm, request, clear);
    else
      begin_writing(comm, request, clear);
  } else {
    request->quiet = false;
  }
  if (quiet && !request->quiet) tt_ofi_send_tell(request);
}

/* Messages of the tag from `number` on have to ask. */
static void end_promise(struct tt_ofi_send_comm *comm, int32_t tag, uint64_t number)
{
  for (struct tt_ofi_send_request *request = comm->asking; request; request = request->other) {
    if (!request->quiet || request->sending.tag->number != tag || request->number < number) continue;
    request->quiet = false;
    tt_ofi_send_tell(request);
  }
}

static ncclResult_t take_clear(struct tt_ofi_send_comm *comm, const struct tt_ofi_clear *clear)
{
  struct tt_ofi_link *link = &comm->link;
  struct tt_ofi_count *count;
  if (clear->header.kind != TT_OFI_CTS || clear->place >= TT_OFI_WHOLE || comm->clear_count == TT_OFI_PLACES)
    return tt_ofi_link_fail(link, TT_FAIL(ncclRemoteError,
                                          "net ofi: device %s: %s sent a packet of kind 0x%x, for place %u, with %d "
                                          "places known; the stream is corrupt",
                                          link->device->name, link->peer, clear->header.kind, clear->place,
                                          comm->clear_count));
  TT_TRY(tt_ofi_counts_get(&comm->counts, clear->header.tag, &count));
  if (clear->place == 0) {
    if (count->promised <= clear->header.number) count->promised = UINT64_MAX;
    count->refused = TT_MAX(count->refused, clear->header.number);
    end_promise(comm, clear->header.tag, clear->header.number);
    return ncclSuccess;
  }
  tt_count(&link->counted, TT_COUNT_CLEAR_TO_SENDS, 1);
  /* A promise that was taken back may come behind that. */
  if (clear->promise && clear->header.number >= count->refused)
    count->promised = TT_MIN(count->promised, clear->header.number + 1);
  if (clear->header.number < count->posted)
    give_place(comm, clear);
  else
    comm->clears[comm->clear_count++] = *clear;
  return ncclSuccess;
}

ncclResult_t tt_ofi_write_clear(struct tt_ofi_link *link, const struct tt_ofi_header *header, size_t bytes)
{
  struct tt_ofi_send_comm *comm = (struct tt_ofi_send_comm *)link;
  size_t each = tt_ofi_clear_bytes(link->rails), at = 0;
  link->clears++;
  for (; bytes - at >= each; at += each) {
    struct tt_ofi_clear clear;
    memcpy(&clear, (const char *)header + at, each);
    TT_TRY(take_clear(comm, &clear));
  }
  if (at == bytes) return ncclSuccess;
  return tt_ofi_link_fail(link, TT_FAIL(ncclRemoteError,
                                        "net ofi: device %s: %s sent a packet of kind 0x%x and %zu bytes, which is no "
                                        "number of places; the stream is corrupt",
                                        link->device->name, link->peer, header->kind, bytes));
}

/* ---- Writes ---- */

static uint64_t immediate_of(const struct tt_ofi_link *link, const struct tt_ofi_send_request *request)
{
  if (!request->whole) return request->clear.place;
  return request->clear.place | TT_OFI_WHOLE | (link->wide ? (uint64_t)request->bytes << 32 : 0);
}

/* Posts one piece; *again: no room now. */
static ncclResult_t write_piece(struct tt_ofi_send_comm *comm, struct tt_ofi_send_request *request, size_t at,
                                size_t bytes, bool *again)
{
  struct tt_ofi_link *link = &comm->link;
  struct tt_ofi_rail *rail = &link->rail[request->rail];
  struct fid_mr *mr = request->memory->mr[request->rail];
  struct tt_ofi_write *write = comm->free_writes;
  *again = !write;
  if (!write) return ncclSuccess;
  ssize_t error = fi_writedata(rail->ep, request->data + at, bytes, mr ? fi_mr_desc(mr) : NULL,
                               immediate_of(link, request), rail->peer, request->clear.rail[request->rail].address + at,
                               request->clear.rail[request->rail].key, &write->op);
  *again = error == -FI_EAGAIN;
  if (*again) tt_count(&link->counted, TT_COUNT_REFUSED, 1);
  if (*again) return ncclSuccess;
  if (error) return tt_ofi_link_broken(link, request->rail, "writing a part of a message", (int)error, NULL);
  comm->free_writes = write->next;
  write->request = request;
  request->writes++;
  return ncclSuccess;
}

/* Posts what it can of a message, stripe by stripe. */
static ncclResult_t write_message(struct tt_ofi_send_comm *comm, struct tt_ofi_send_request *request, bool *again)
{
  struct tt_ofi_link *link = &comm->link;
  *again = false;
  do {
    size_t at, part;
    tt_ofi_link_stripe(link, request->bytes, request->first_rail, request->rail, &at, &part);
    while (request->stripe_at < part) {
      size_t bytes = TT_MIN(part - request->stripe_at, link->piece_max);
      TT_TRY(write_piece(comm, request, at + request->stripe_at, bytes, again));
      if (*again) return ncclSuccess;
      request->stripe_at += bytes;
    }
    request->stripe_at = 0;
    request->rail = (request->rail + 1) % link->rails;
  } while (request->rail != request->first_rail);
  request->posted = true;
  return ncclSuccess;
}

ncclResult_t tt_ofi_write_all(struct tt_ofi_send_comm *comm)
{
  while (comm->writing) {
    bool again;
    TT_TRY(write_message(comm, comm->writing, &again));
    if (again) return ncclSuccess;
    comm->writing = comm->writing->other;
    if (!comm->writing) comm->writing_end = &comm->writing;
  }
  return ncclSuccess;
}

void tt_ofi_write_done(struct tt_ofi_link *link, struct tt_ofi_op *op)
{
  struct tt_ofi_send_comm *comm = (struct tt_ofi_send_comm *)link;
  struct tt_ofi_write *write = (struct tt_ofi_write *)op;
  struct tt_ofi_send_request *request = write->request;
  write->next = comm->free_writes;
  comm->free_writes = write;
  request->writes--;
  tt_ofi_send_finish(request);
}
