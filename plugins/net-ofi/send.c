/* The sending side. A small message becomes a packet at once. Of a large one a packet tells, and it is written, in
 * pieces over all rails, once the receiver has said where, which it may have done ahead. Each tag has its requests, and
 * only so many small messages that have not met their receives (the window); those beyond it are held, and others pass.
 */
#include "counts.h"
#include "net_ofi.h"

#include <stdlib.h>
#include <string.h>

#define TAGS 256                                      /* in flight at once */
#define WINDOW 64                                     /* small messages of a tag that are on their way or kept aside */
#define WRITES 32                                     /* pieces under way */
#define PLACES (NCCL_NET_MAX_REQUESTS * TT_OFI_RECVS) /* buffers that the receiver has at a time, at most */
#define LISTEN_EVERY 16u                              /* small messages after which acknowledgements are looked for */

struct tag;
struct send_request {
  struct tt_ofi_request base;
  struct send_comm *comm;
  struct tag *owner;
  struct send_request *next;  /* in the list that it is in: free, ready or held */
  struct send_request *other; /* of a large one, in asking or writing */
  char *data;
  size_t bytes;
  const struct tt_ofi_memory *memory;
  struct tt_ofi_memory *own; /* made for this message alone, of memory that is not registered */
  bool small;
  bool told; /* its packet has left */
  bool done;
  uint64_t number; /* of the tag's messages */
  struct tt_ofi_clear clear;
  /* Of a large one that is being written. */
  int rail;         /* the next piece's */
  int first_rail;   /* the first stripe's */
  size_t stripe_at; /* bytes of that rail's stripe that are posted */
  uint32_t writes;  /* under way */
  bool posted;      /* all of it */
};

struct list {
  struct send_request *first, **end;
};

struct tag {
  int32_t tag;
  int in_flight;
  uint32_t unmet; /* small messages without an acknowledgement */
  struct list held;
  struct send_request *free;
  struct tag *next;
  struct send_request requests[NCCL_NET_MAX_REQUESTS];
};

struct write_op {
  struct tt_ofi_op op;
  struct send_request *request;
  struct write_op *next;
};

struct send_comm {
  struct tt_ofi_link link; /* must be first */
  struct tag *tags, *last;
  int tag_count, held_count;
  struct list ready;                           /* have no packet yet */
  struct send_request *asking;                 /* large ones without a place */
  struct send_request *writing, **writing_end; /* have a place, and pieces to be posted */
  struct tt_ofi_counts counts;
  struct tt_ofi_clear clears[PLACES]; /* that came ahead of their messages */
  int clear_count;
  uint64_t sequence;
  unsigned since_heard; /* small messages */
  struct write_op writes[WRITES], *free_writes;
};

static const struct tt_ofi_events send_events;

static void append(struct list *list, struct send_request *request)
{
  request->next = NULL;
  *list->end = request;
  list->end = &request->next;
}

static void clear(struct list *list)
{
  list->first = NULL;
  list->end = &list->first;
}

static struct send_request *take(struct list *list)
{
  struct send_request *request = list->first;
  list->first = request->next;
  if (!list->first) list->end = &list->first;
  return request;
}

ncclResult_t tt_ofi_send_make(int dev, int fd, struct tt_ofi_link **out)
{
  struct send_comm *comm;
  ncclResult_t result = TT_CALLOC(&comm, 1);
  if (result != ncclSuccess) {
    tt_socket_close(&fd);
    return result;
  }
  clear(&comm->ready);
  comm->writing_end = &comm->writing;
  for (int i = 0; i < WRITES; i++) {
    comm->writes[i].op.kind = TT_OFI_OP_WRITE;
    comm->writes[i].next = comm->free_writes;
    comm->free_writes = &comm->writes[i];
  }
  result = tt_ofi_link_open(&comm->link, true, dev, fd);
  if (result != ncclSuccess) {
    free(comm);
    return result;
  }
  comm->link.events = &send_events;
  *out = &comm->link;
  return ncclSuccess;
}

/* ---- Tags ---- */

static struct tag *find_tag(struct send_comm *comm, int32_t number)
{
  if (comm->last && comm->last->tag == number) return comm->last;
  struct tag *tag = comm->tags;
  while (tag && tag->tag != number) tag = tag->next;
  if (tag) comm->last = tag;
  return tag;
}

/* The tag's entry; for a new one that of an idle tag is reused. *out = NULL if too many are in flight. What of an idle
 * tag was not acknowledged is less than a window, and is forgotten. */
static ncclResult_t get_tag(struct send_comm *comm, int32_t number, struct tag **out)
{
  *out = find_tag(comm, number);
  if (*out) return ncclSuccess;
  struct tag *tag = comm->tags;
  while (tag && tag->in_flight) tag = tag->next;
  if (!tag && comm->tag_count == TAGS) return ncclSuccess;
  if (!tag) {
    TT_TRY(TT_CALLOC(&tag, 1));
    clear(&tag->held);
    for (int i = NCCL_NET_MAX_REQUESTS - 1; i >= 0; i--) {
      struct send_request *request = &tag->requests[i];
      request->comm = comm;
      request->owner = tag;
      request->next = tag->free;
      tag->free = request;
    }
    tag->next = comm->tags;
    comm->tags = tag;
    comm->tag_count++;
  }
  tag->tag = number;
  tag->unmet = 0;
  *out = comm->last = tag;
  return ncclSuccess;
}

static ncclResult_t acknowledged(struct tt_ofi_link *link, const struct tt_ofi_note *note)
{
  struct send_comm *comm = (struct send_comm *)link;
  struct tag *tag = find_tag(comm, note->tag);
  if (!tag) return ncclSuccess;
  tag->unmet -= (uint32_t)TT_MIN(note->value, tag->unmet);
  while (tag->held.first && (!tag->held.first->small || tag->unmet < WINDOW)) {
    struct send_request *request = take(&tag->held);
    comm->held_count--;
    tag->unmet += request->small;
    append(&comm->ready, request);
  }
  return ncclSuccess;
}

/* ---- Packets ---- */

static ncclResult_t send_ready(struct send_comm *comm)
{
  while (comm->ready.first) {
    struct tt_ofi_packet *packet = tt_ofi_link_packet(&comm->link, 0);
    if (!packet) return ncclSuccess;
    struct send_request *request = take(&comm->ready);
    struct tt_ofi_header header = {.kind = request->small ? TT_OFI_EAGER : TT_OFI_RTS,
                                   .tag = request->owner->tag,
                                   .bytes = request->bytes,
                                   .sequence = comm->sequence++};
    memcpy(packet->data, &header, sizeof header);
    packet->bytes = sizeof header;
    packet->owner = request;
    if (request->small) {
      if (request->bytes) memcpy(packet->data + sizeof header, request->data, request->bytes);
      packet->bytes += request->bytes;
      comm->since_heard++;
    }
    TT_TRY(tt_ofi_link_send(&comm->link, 0, packet));
  }
  return ncclSuccess;
}

static void finish(struct send_request *request)
{
  request->done = request->told && (request->small || (request->posted && request->writes == 0));
}

static void packet_sent(struct tt_ofi_link *link, void *owner)
{
  struct send_request *request = owner;
  (void)link;
  request->told = true;
  finish(request);
}

/* ---- Places ---- */

static void begin_writing(struct send_comm *comm, struct send_request *request, const struct tt_ofi_clear *clear)
{
  request->clear = *clear;
  request->first_rail = request->rail = (int)(request->number % (uint64_t)comm->link.rails);
  request->other = NULL;
  *comm->writing_end = request;
  comm->writing_end = &request->other;
}

/* The place of the message that was just counted, if it came already. One that is not large does without. */
static bool take_place(struct send_comm *comm, int32_t tag, uint64_t number, struct tt_ofi_clear *out)
{
  for (int i = 0; i < comm->clear_count; i++) {
    if (comm->clears[i].header.tag != tag || comm->clears[i].header.sequence != number) continue;
    *out = comm->clears[i];
    comm->clears[i] = comm->clears[--comm->clear_count];
    return true;
  }
  return false;
}

/* A message that is too large for its place is not written: the receiver, which hears of its size, ends the comm. */
static void place(struct send_comm *comm, struct send_request *request)
{
  struct tt_ofi_clear clear;
  bool have = take_place(comm, request->owner->tag, request->number, &clear);
  if (request->small) return;
  if (have && request->bytes <= clear.header.bytes) {
    begin_writing(comm, request, &clear);
  } else {
    tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SEND_WAITS, 1);
    request->other = comm->asking;
    comm->asking = request;
  }
}

static ncclResult_t give_place(struct send_comm *comm, const struct tt_ofi_clear *clear)
{
  struct send_request **at = &comm->asking;
  while (*at && ((*at)->owner->tag != clear->header.tag || (*at)->number != clear->header.sequence)) at = &(*at)->other;
  struct send_request *request = *at;
  if (!request || request->bytes > clear->header.bytes) return ncclSuccess; /* the message was small, or is too large */
  *at = request->other;
  begin_writing(comm, request, clear);
  return ncclSuccess;
}

static ncclResult_t clear_to_send(struct tt_ofi_link *link, const struct tt_ofi_header *header, size_t bytes)
{
  struct send_comm *comm = (struct send_comm *)link;
  struct tt_ofi_clear clear;
  struct tt_ofi_count *count;
  if (header->kind != TT_OFI_CTS || bytes != sizeof clear || comm->clear_count == PLACES)
    return tt_ofi_link_fail(link, TT_FAIL(ncclRemoteError,
                                          "net ofi: device %s: %s sent a packet of kind 0x%x and %zu bytes with %d "
                                          "places known; the stream is corrupt",
                                          link->device->name, link->peer, header->kind, bytes, comm->clear_count));
  memcpy(&clear, header, sizeof clear);
  tt_count(&link->counted, TT_COUNT_CLEAR_TO_SENDS, 1);
  TT_TRY(tt_ofi_counts_get(&comm->counts, clear.header.tag, &count));
  if (clear.header.sequence < count->posted) return give_place(comm, &clear);
  comm->clears[comm->clear_count++] = clear;
  return ncclSuccess;
}

/* ---- Writes ---- */

/* Posts one piece; *again: no room now. */
static ncclResult_t write_piece(struct send_comm *comm, struct send_request *request, size_t at, size_t bytes,
                                bool *again)
{
  struct tt_ofi_link *link = &comm->link;
  struct tt_ofi_rail *rail = &link->rail[request->rail];
  struct fid_mr *mr = request->memory->mr[request->rail];
  struct write_op *write = comm->free_writes;
  *again = !write;
  if (!write) return ncclSuccess;
  ssize_t error = fi_writedata(rail->ep, request->data + at, bytes, mr ? fi_mr_desc(mr) : NULL,
                               request->clear.header.place, rail->peer, request->clear.address[request->rail] + at,
                               request->clear.key[request->rail], &write->op);
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
static ncclResult_t write_message(struct send_comm *comm, struct send_request *request, bool *again)
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

static ncclResult_t write_all(struct send_comm *comm)
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

static void write_done(struct tt_ofi_link *link, struct tt_ofi_op *op)
{
  struct send_comm *comm = (struct send_comm *)link;
  struct write_op *write = (struct write_op *)op;
  struct send_request *request = write->request;
  write->next = comm->free_writes;
  comm->free_writes = write;
  request->writes--;
  finish(request);
}

static ncclResult_t written_here(struct tt_ofi_link *link, uint64_t place)
{
  return tt_ofi_link_fail(link, TT_FAIL(ncclRemoteError,
                                        "net ofi: device %s: %s wrote to this side's place %llu, which only sends; the "
                                        "stream is corrupt",
                                        link->device->name, link->peer, (unsigned long long)place));
}

static const struct tt_ofi_events send_events = {
    .packet = clear_to_send, .sent = packet_sent, .written = written_here, .done = write_done, .note = acknowledged};

/* ---- The ABI's calls ---- */

static ncclResult_t progress(struct send_comm *comm)
{
  bool listen = comm->held_count || comm->since_heard >= LISTEN_EVERY;
  if (listen) comm->since_heard = 0;
  TT_TRY(tt_ofi_link_move(&comm->link, listen));
  TT_TRY(send_ready(comm));
  return write_all(comm);
}

ncclResult_t tt_ofi_isend(void *send_comm, void *data, size_t bytes, int number, void *mhandle, void **out)
{
  struct send_comm *comm = send_comm;
  const struct tt_ofi_memory *memory = mhandle;
  struct tt_ofi_count *count;
  struct tag *tag;
  *out = NULL;
  if (!comm || (bytes && !data)) return TT_FAIL(ncclInternalError, "net ofi: isend of %zu bytes from NULL", bytes);
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  bool small = bytes == 0 || (bytes <= comm->link.eager && !(memory && memory->type == NCCL_PTR_CUDA));
  if (!small && memory) TT_TRY(tt_ofi_memory_holds(memory, data, bytes, "isend"));
  TT_TRY(get_tag(comm, number, &tag));
  struct send_request *request = tag ? tag->free : NULL;
  if (!request) {
    tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
    return ncclSuccess;
  }
  request->own = NULL;
  if (!small && !memory) TT_TRY(tt_ofi_memory_make(&comm->link, data, bytes, NCCL_PTR_HOST, 0, -1, &request->own));
  tag->free = request->next;
  tag->in_flight++;
  tt_count_begun(&comm->link.counted);
  request->base = (struct tt_ofi_request){.kind = TT_OFI_SEND, .live = true};
  request->data = data;
  request->bytes = bytes;
  request->memory = request->own ? request->own : memory;
  request->small = small;
  request->told = request->done = request->posted = false;
  TT_TRY(tt_ofi_counts_get(&comm->counts, number, &count));
  request->number = count->posted++;
  place(comm, request);
  request->writes = 0;
  request->stripe_at = 0;
  if (tag->held.first || (small && tag->unmet >= WINDOW)) {
    append(&tag->held, request);
    comm->held_count++;
  } else {
    tag->unmet += small;
    append(&comm->ready, request);
  }
  TT_TRY(send_ready(comm));
  TT_TRY(write_all(comm));
  *out = request;
  return ncclSuccess;
}

ncclResult_t tt_ofi_send_test(struct tt_ofi_request *base, int *done, int *sizes)
{
  struct send_request *request = (struct send_request *)base;
  struct send_comm *comm = request->comm;
  *done = 0;
  if (!request->done) {
    ncclResult_t result = progress(comm);
    if (!request->done) return result;
  }
  *done = 1;
  if (sizes) *sizes = (int)request->bytes;
  tt_count_message(&comm->link.counted, request->bytes);
  tt_count_ended(&comm->link.counted);
  tt_ofi_memory_free(&comm->link, request->own);
  request->own = NULL;
  request->base.live = false;
  request->next = request->owner->free;
  request->owner->free = request;
  request->owner->in_flight--;
  return ncclSuccess;
}

ncclResult_t tt_ofi_close_send(void *send_comm)
{
  struct send_comm *comm = send_comm;
  if (!comm) return ncclSuccess;
  bool idle = true;
  for (struct tag *tag = comm->tags; tag; tag = tag->next) idle = idle && tag->in_flight == 0;
  /* What is unread when a socket is closed would take the goodbye with it. */
  if (comm->link.failed == ncclSuccess) tt_ofi_link_move(&comm->link, true);
  if (idle && comm->link.failed == ncclSuccess) tt_ofi_link_say(&comm->link, TT_OFI_BYE, 0, comm->sequence);
  for (struct tag *tag = comm->tags; tag; tag = tag->next)
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++) tt_ofi_memory_free(&comm->link, tag->requests[i].own);
  tt_ofi_link_close(&comm->link);
  while (comm->tags) {
    struct tag *tag = comm->tags;
    comm->tags = tag->next;
    free(tag);
  }
  tt_ofi_counts_free(&comm->counts);
  free(comm);
  return ncclSuccess;
}
