/* The sending side's requests: see send.h. */
#include "send.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 64        /* small messages of a tag that are on their way or kept aside */
#define LISTEN_EVERY 16u /* small messages after which acknowledgements are looked for */
/* How long the answer to a goodbye is waited for: from the last message on, and at least. */
#define ANSWER_NS ((uint64_t)50000000)
#define ANSWER_LEAST_NS (2 * TT_OFI_HEAR_NS)

static const struct tt_ofi_events send_events;

ncclResult_t tt_ofi_send_make(int dev, int fd, struct tt_ofi_link **out)
{
  struct tt_ofi_send_comm *comm;
  ncclResult_t result = TT_CALLOC(&comm, 1);
  if (result != ncclSuccess) {
    tt_socket_close(&fd);
    return result;
  }
  comm->tags.request_bytes = sizeof(struct tt_ofi_send_request);
  tt_sending_clear(&comm->ready);
  tt_ofi_write_init(comm);
  result = tt_ofi_link_open(&comm->link, true, dev, fd);
  if (result != ncclSuccess) {
    free(comm);
    return result;
  }
  comm->link.events = &send_events;
  *out = &comm->link;
  return ncclSuccess;
}

/* ---- The window of a tag: only so many of its small messages are ahead of the receiver's acknowledgements, also where
 * others had the tag's requests in between ---- */

static ncclResult_t acknowledged(struct tt_ofi_link *link, const struct tt_ofi_note *note)
{
  struct tt_ofi_send_comm *comm = (struct tt_ofi_send_comm *)link;
  struct tt_ofi_count *count = tt_ofi_counts_find(&comm->counts, note->tag);
  struct tt_send_tag *tag = tt_send_tags_find(&comm->tags, note->tag);
  if (!count) return ncclSuccess;
  count->ahead -= (uint32_t)TT_MIN(note->value, count->ahead);
  while (tag && tag->held.first && count->ahead < WINDOW) {
    tt_sending_append(&comm->ready, tt_sending_take(&tag->held));
    comm->held_count--;
    count->ahead++;
  }
  return ncclSuccess;
}

/* Large messages pass: they wait for their places instead. */
void tt_ofi_send_tell(struct tt_ofi_send_request *request)
{
  struct tt_ofi_send_comm *comm = request->comm;
  struct tt_send_tag *tag = request->sending.tag;
  struct tt_ofi_count *count = tt_ofi_counts_find(&comm->counts, tag->number); /* its messages are counted */
  if (request->small && count->ahead >= WINDOW) {
    tt_sending_append(&tag->held, request);
    comm->held_count++;
  } else {
    count->ahead += request->small;
    tt_sending_append(&comm->ready, request);
  }
}

/* ---- Packets ---- */

static ncclResult_t send_ready(struct tt_ofi_send_comm *comm)
{
  while (comm->ready.first) {
    struct tt_ofi_packet *packet = tt_ofi_link_packet(&comm->link, 0);
    if (!packet) return ncclSuccess;
    struct tt_ofi_send_request *request = tt_sending_take(&comm->ready);
    struct tt_ofi_header header = {.kind = request->small ? TT_OFI_EAGER : TT_OFI_RTS,
                                   .tag = request->sending.tag->number,
                                   .bytes = request->bytes,
                                   .number = request->number};
    memcpy(packet->data, &header, sizeof header);
    packet->bytes = sizeof header;
    packet->owner = request;
    packet->injects = !request->small;
    if (request->small) {
      if (request->bytes) memcpy(packet->data + sizeof header, request->data, request->bytes);
      packet->bytes += request->bytes;
      comm->since_heard++;
    }
    TT_TRY(tt_ofi_link_send(&comm->link, 0, packet));
  }
  return ncclSuccess;
}

void tt_ofi_send_finish(struct tt_ofi_send_request *request)
{
  request->done = request->told && (request->small || (request->posted && request->writes == 0));
}

static void packet_sent(struct tt_ofi_link *link, void *owner)
{
  struct tt_ofi_send_request *request = owner;
  (void)link;
  request->told = true;
  tt_ofi_send_finish(request);
}

static ncclResult_t written_here(struct tt_ofi_link *link, uint64_t place)
{
  return tt_ofi_link_fail(link, TT_FAIL(ncclRemoteError,
                                        "net ofi: device %s: %s wrote to this side's place %llu, which only sends; the "
                                        "stream is corrupt",
                                        link->device->name, link->peer, (unsigned long long)place));
}

static const struct tt_ofi_events send_events = {.packet = tt_ofi_write_clear,
                                                 .sent = packet_sent,
                                                 .written = written_here,
                                                 .done = tt_ofi_write_done,
                                                 .note = acknowledged};

/* ---- The ABI's calls ---- */

static ncclResult_t progress(struct tt_ofi_send_comm *comm)
{
  bool listen = comm->held_count || comm->since_heard >= LISTEN_EVERY;
  if (listen) comm->since_heard = 0;
  TT_TRY(tt_ofi_link_move(&comm->link, listen));
  TT_TRY(send_ready(comm));
  return tt_ofi_write_all(comm);
}

ncclResult_t tt_ofi_isend(void *send_comm, void *data, size_t bytes, int number, void *mhandle, void **out)
{
  struct tt_ofi_send_comm *comm = send_comm;
  const struct tt_ofi_memory *memory = mhandle;
  struct tt_ofi_memory *own = NULL;
  struct tt_ofi_count *count;
  struct tt_send_tag *tag;
  *out = NULL;
  if (!comm || (bytes && !data)) return TT_FAIL(ncclInternalError, "net ofi: isend of %zu bytes from NULL", bytes);
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  bool small = bytes == 0 || (bytes <= comm->link.eager && !(memory && memory->type == NCCL_PTR_CUDA));
  if (!small && memory) TT_TRY(tt_ofi_memory_holds(memory, data, bytes, "isend"));
  TT_TRY(tt_send_tags_get(&comm->tags, number, &tag));
  if (!tag || !tag->free) {
    tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
    return ncclSuccess;
  }
  TT_TRY(tt_ofi_counts_get(&comm->counts, number, &count));
  if (!small && !memory) TT_TRY(tt_ofi_memory_make(&comm->link, data, bytes, NCCL_PTR_HOST, 0, -1, &own));
  struct tt_ofi_send_request *request = tt_send_tag_take(tag);
  *request = (struct tt_ofi_send_request){.sending = request->sending,
                                          .base = {.kind = TT_OFI_SEND, .live = true},
                                          .comm = comm,
                                          .data = data,
                                          .bytes = bytes,
                                          .memory = own ? own : memory,
                                          .own = own,
                                          .small = small,
                                          .number = count->posted++};
  tt_count_begun(&comm->link.counted);
  tt_ofi_write_begin(comm, request, request->number >= count->promised);
  comm->told++;
  if (!request->quiet) tt_ofi_send_tell(request);
  TT_TRY(send_ready(comm));
  TT_TRY(tt_ofi_write_all(comm));
  *out = &request->base;
  return ncclSuccess;
}

ncclResult_t tt_ofi_send_test(struct tt_ofi_request *base, int *done, int *sizes)
{
  struct tt_ofi_send_request *request =
      (struct tt_ofi_send_request *)((char *)base - offsetof(struct tt_ofi_send_request, base));
  struct tt_ofi_send_comm *comm = request->comm;
  *done = 0;
  if (!request->done) {
    ncclResult_t result = progress(comm);
    if (!request->done) return result;
  }
  *done = 1;
  comm->done_ns = tt_timer_ns();
  if (sizes) *sizes = (int)request->bytes;
  tt_count_message(&comm->link.counted, request->bytes);
  tt_count_ended(&comm->link.counted);
  tt_ofi_memory_free(&comm->link, request->own);
  request->own = NULL;
  request->base.live = false;
  tt_send_tag_return(request);
  return ncclSuccess;
}

/* Registrations of requests that were never tested to their end. */
static void free_own(struct tt_ofi_send_comm *comm, struct tt_send_tag *tag)
{
  struct tt_ofi_send_request *requests = (struct tt_ofi_send_request *)tag->requests;
  for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++) tt_ofi_memory_free(&comm->link, requests[i].own);
}

static bool is_idle(const struct tt_ofi_send_comm *comm)
{
  for (struct tt_send_tag *tag = comm->tags.first; tag; tag = tag->next)
    if (tag->in_use) return false;
  return true;
}

/* The receiver may tell places until it has heard the goodbye. One that comes when the endpoint is closed, or is unread
 * then, may cost what the receiver has not read yet (see match.c); so this side reads on until the receiver has
 * answered, and all that it told is here. One that is not called cannot answer, and tells nothing. It is not waited for
 * long, and once for all comms that are closed one after the other, since the time runs from the last message. */
static void await_answer(struct tt_ofi_send_comm *comm)
{
  struct tt_ofi_link *link = &comm->link;
  uint64_t now = tt_timer_ns(), end = TT_MAX(comm->done_ns + ANSWER_NS, now + ANSWER_LEAST_NS);
  while (link->failed == ncclSuccess && !link->gone && now < end) {
    if (link->answered && link->clears >= link->answer) return;
    struct pollfd answer = {.fd = link->fd, .events = POLLIN};
    poll(&answer, 1, 1); /* the rails are read now and then, too */
    tt_ofi_link_move(link, true);
    now = tt_timer_ns();
  }
}

static void say_goodbye(struct tt_ofi_send_comm *comm)
{
  struct tt_ofi_link *link = &comm->link;
  /* What is unread when a socket is closed would take the goodbye with it. */
  if (link->failed == ncclSuccess) tt_ofi_link_move(link, true);
  if (link->failed != ncclSuccess || !is_idle(comm)) return;
  tt_ofi_link_say(link, TT_OFI_BYE, 0, comm->told);
  if (comm->told) await_answer(comm);
}

ncclResult_t tt_ofi_close_send(void *send_comm)
{
  struct tt_ofi_send_comm *comm = send_comm;
  if (!comm) return ncclSuccess;
  say_goodbye(comm);
  for (struct tt_send_tag *tag = comm->tags.first; tag; tag = tag->next) free_own(comm, tag);
  tt_ofi_link_close(&comm->link);
  tt_send_tags_free(&comm->tags);
  tt_ofi_counts_free(&comm->counts);
  free(comm);
  return ncclSuccess;
}
