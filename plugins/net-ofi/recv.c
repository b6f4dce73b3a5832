/* The receiving side: requests, and what comes when. */
#include "recv.h"

#include <stdlib.h>
#include <string.h>

#define FLUSH_NS ((uint64_t)1000000000) /* for a flush to end, once its link has failed since the peer left */

static void flush_done(struct tt_ofi_link *link, struct tt_ofi_op *op);
static void packet_sent(struct tt_ofi_link *link, void *owner)
{
  (void)link, (void)owner;
}
static ncclResult_t note_came(struct tt_ofi_link *link, const struct tt_ofi_note *note)
{
  (void)link, (void)note; /* the link deals with goodbyes */
  return ncclSuccess;
}
static const struct tt_ofi_events recv_events = {.packet = tt_ofi_match_packet,
                                                 .sent = packet_sent,
                                                 .written = tt_ofi_match_written,
                                                 .done = flush_done,
                                                 .note = note_came};

ncclResult_t tt_ofi_recv_make(int dev, int fd, struct tt_ofi_link **out)
{
  struct tt_ofi_recv_comm *comm;
  ncclResult_t result = TT_CALLOC(&comm, 1);
  if (result != ncclSuccess) {
    tt_socket_close(&fd);
    return result;
  }
  comm->open_end = &comm->open;
  comm->early.end = &comm->early.first;
  for (int i = 0; i < TT_OFI_RECV_REQUESTS; i++) {
    comm->requests[i].comm = comm;
    comm->requests[i].next = comm->free;
    comm->free = &comm->requests[i];
  }
  for (int i = 0; i < TT_OFI_FLUSHES; i++) {
    comm->flushes[i].comm = comm;
    comm->flushes[i].next = comm->free_flushes;
    comm->free_flushes = &comm->flushes[i];
  }
  result = tt_ofi_link_open(&comm->link, false, dev, fd);
  if (result != ncclSuccess) {
    free(comm);
    return result;
  }
  comm->link.events = &recv_events;
  *out = &comm->link;
  return ncclSuccess;
}

/* ---- Flushes: a read of each rail from this side's own memory, which passes behind what was written there ---- */

/* A flush needs no peer: what came from one that has left is flushed also when a receive behind it has failed for that.
 */
static bool has_left(const struct tt_ofi_link *link)
{
  return link->gone || link->bye;
}

static ncclResult_t post_flush(struct tt_ofi_flush *flush)
{
  struct tt_ofi_link *link = &flush->comm->link;
  while (flush->posted < link->rails) {
    struct tt_ofi_rail *rail = &link->rail[flush->posted];
    struct tt_ofi_read *read = &flush->read[flush->posted];
    read->op.kind = TT_OFI_OP_READ;
    read->flush = flush;
    ssize_t error = fi_read(rail->ep, tt_ofi_rail_scratch(rail), 1, rail->mr ? fi_mr_desc(rail->mr) : NULL, rail->self,
                            tt_ofi_memory_remote(link, flush->memory, flush->posted, flush->data),
                            fi_mr_key(flush->memory->mr[flush->posted]), &read->op);
    if (error == -FI_EAGAIN) return ncclSuccess;
    if (error) return tt_ofi_link_broken(link, flush->posted, "flushing what came", (int)error, NULL);
    flush->posted++;
  }
  return ncclSuccess;
}

static void flush_done(struct tt_ofi_link *link, struct tt_ofi_op *op)
{
  (void)link;
  ((struct tt_ofi_read *)op)->flush->left--;
}

static ncclResult_t post_flushes(struct tt_ofi_recv_comm *comm)
{
  while (comm->flushing) {
    TT_TRY(post_flush(comm->flushing));
    if (comm->flushing->posted < comm->link.rails) return ncclSuccess;
    comm->flushing = comm->flushing->next;
  }
  return ncclSuccess;
}

ncclResult_t tt_ofi_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **out)
{
  struct tt_ofi_recv_comm *comm = recv_comm;
  *out = NULL;
  if (!comm) return TT_FAIL(ncclInternalError, "net ofi: iflush on NULL");
  if (comm->link.failed != ncclSuccess && !has_left(&comm->link)) return comm->link.failed;
  int i = 0;
  while (i < n && (sizes[i] == 0 || !mhandles[i] || ((struct tt_ofi_memory *)mhandles[i])->type != NCCL_PTR_CUDA)) i++;
  if (i == n) return ncclSuccess; /* the host's memory is visible as it is */
  struct tt_ofi_flush *flush = comm->free_flushes;
  if (!flush) return TT_FAIL(ncclInternalError, "net ofi: more than %d flushes in flight", TT_OFI_FLUSHES);
  TT_TRY(tt_ofi_memory_holds(mhandles[i], data[i], 1, "iflush"));
  comm->free_flushes = flush->next;
  flush->base = (struct tt_ofi_request){.kind = TT_OFI_FLUSH, .live = true};
  flush->memory = mhandles[i];
  flush->data = data[i];
  flush->outlasts_ns = 0;
  flush->posted = 0;
  flush->left = comm->link.rails;
  flush->next = NULL;
  struct tt_ofi_flush **at = &comm->flushing;
  while (*at) at = &(*at)->next;
  *at = flush;
  TT_TRY(post_flushes(comm));
  *out = flush;
  return ncclSuccess;
}

/* ---- Receives ---- */

static ncclResult_t progress(struct tt_ofi_recv_comm *comm)
{
  TT_TRY(tt_ofi_link_move(&comm->link, false));
  TT_TRY(tt_ofi_match_progress(comm));
  if (comm->flushing) TT_TRY(post_flushes(comm));
  /* All that the peer sent before it closed is here, and none of it is kept aside, which is not counted as heard: what
   * still waits, waits for nothing. */
  if (comm->link.bye && comm->heard >= comm->link.bye_count && comm->large_open == 0 && comm->open)
    return tt_ofi_link_lost(&comm->link, "waiting for a message");
  return ncclSuccess;
}

ncclResult_t tt_ofi_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                          void **out)
{
  struct tt_ofi_recv_comm *comm = recv_comm;
  *out = NULL;
  if (!comm || n < 1 || n > TT_OFI_RECVS)
    return TT_FAIL(ncclInternalError, "net ofi: irecv of %d buffers; 1 to %d are possible", n, TT_OFI_RECVS);
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  struct tt_ofi_recv_request *request = comm->free;
  if (!request) {
    tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
    return ncclSuccess;
  }
  tt_count_begun(&comm->link.counted);
  comm->free = request->next;
  request->base = (struct tt_ofi_request){.kind = TT_OFI_RECV, .live = true};
  request->n = n;
  request->matched = 0;
  for (int i = 0; i < n; i++) {
    struct tt_ofi_slot *slot = &request->slot[i];
    slot->data = data[i];
    slot->room = sizes[i];
    slot->bytes = 0;
    slot->tag = tags[i];
    slot->memory = mhandles ? mhandles[i] : NULL;
    slot->own = NULL;
    slot->matched = slot->told = false;
    slot->place = slot->came = slot->left = 0;
  }
  /* A message that is here already may not fit; the test of the request says so, as for one that comes later. */
  ncclResult_t result = tt_ofi_match_receive(comm, request);
  if (result != ncclSuccess) tt_ofi_link_fail(&comm->link, result);
  *out = request;
  return ncclSuccess;
}

static void end_own(struct tt_ofi_recv_request *request)
{
  for (int i = 0; i < TT_OFI_RECVS; i++) {
    tt_ofi_memory_free(&request->comm->link, request->slot[i].own);
    request->slot[i].own = NULL;
  }
}

static bool is_done(const struct tt_ofi_recv_request *request)
{
  if (request->matched < request->n) return false;
  for (int i = 0; i < request->n; i++)
    if (request->slot[i].left) return false;
  return true;
}

ncclResult_t tt_ofi_recv_test(struct tt_ofi_request *base, int *done, int *sizes)
{
  struct tt_ofi_recv_request *request = (struct tt_ofi_recv_request *)base;
  struct tt_ofi_recv_comm *comm = request->comm;
  *done = 0;
  if (!is_done(request)) {
    ncclResult_t result = progress(comm);
    if (!is_done(request)) return result;
  }
  *done = 1;
  for (int i = 0; i < request->n; i++) {
    if (sizes) sizes[i] = (int)request->slot[i].bytes;
    tt_count_message(&comm->link.counted, request->slot[i].bytes);
  }
  tt_count_ended(&comm->link.counted);
  end_own(request);
  request->base.live = false;
  request->next = comm->free;
  comm->free = request;
  return ncclSuccess;
}

/* Moves nothing but flushes. */
static ncclResult_t outlast(struct tt_ofi_flush *flush)
{
  struct tt_ofi_recv_comm *comm = flush->comm;
  uint64_t now = tt_timer_ns();
  if (!flush->outlasts_ns) flush->outlasts_ns = now;
  TT_TRY(post_flushes(comm));
  TT_TRY(tt_ofi_link_look(&comm->link));
  return now - flush->outlasts_ns < FLUSH_NS ? ncclSuccess : comm->link.failed;
}

ncclResult_t tt_ofi_flush_test(struct tt_ofi_request *base, int *done)
{
  struct tt_ofi_flush *flush = (struct tt_ofi_flush *)base;
  struct tt_ofi_recv_comm *comm = flush->comm;
  *done = 0;
  if (flush->left) {
    ncclResult_t result = progress(comm);
    if (result != ncclSuccess && has_left(&comm->link)) result = outlast(flush);
    if (flush->left) return result;
  }
  *done = 1;
  flush->base.live = false;
  flush->next = comm->free_flushes;
  comm->free_flushes = flush;
  return ncclSuccess;
}

ncclResult_t tt_ofi_close_recv(void *recv_comm)
{
  struct tt_ofi_recv_comm *comm = recv_comm;
  if (!comm) return ncclSuccess;
  for (int i = 0; i < TT_OFI_RECV_REQUESTS; i++) end_own(&comm->requests[i]);
  tt_ofi_link_close(&comm->link);
  tt_ofi_match_free(comm);
  free(comm);
  return ncclSuccess;
}
