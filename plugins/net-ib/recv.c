/* The receiving side. Each receive has a slot of a ring; its buffers are announced to the sender, and it is done when
 * all pieces have been announced back. */
#include "net_ib.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct recv_request {
  struct tt_ib_request base;
  struct tt_ib_recv_comm *comm;
  int n;
  uint64_t number;
  uint32_t arrived, wanted; /* pieces, as bits */
  bool record, done;
  bool told; /* the sender, over this queue pair: */
  int told_qp;
  uint64_t bytes[TT_IB_RECVS]; /* that came */
  size_t room[TT_IB_RECVS];
};

/* A read of what was received, through each NIC that may have written it: when it is done, so are the writes. */
struct flush_request {
  struct tt_ib_request base;
  struct tt_ib_recv_comm *comm;
  struct flush_request *next;
  uint64_t address;
  const struct tt_ib_memory *memory;
  uint32_t to_post, left;     /* rails, as bits */
  tt_deadline outlasts;       /* the connection, at most so long; 0: it has not failed */
  uint32_t read[TT_IB_RAILS]; /* the number of its request on each */
};

#define TOGETHER 8  /* receives that are told at once; each is 512 bytes */
#define ENOUGH 3    /* receives that keep a sender busy until it hears of more */
#define FLUSHES 256 /* numbers of flushes that are under way; slot and piece of wr_id together */
/* For a flush to end, once its connection has failed since the peer left: it needs no peer. */
#define OUTLAST_MS 1000

struct memory {
  struct tt_ib_inbox inbox; /* written and read by the sender */
  struct tt_ib_ring ring;   /* what is written into its ring */
  uint64_t flushed;         /* where flushes read to */
};

struct tt_ib_recv_comm {
  struct tt_ib_link link; /* first: registrations know only it */
  struct memory *memory;
  uint64_t next, oldest; /* receive; that is not done */
  struct recv_request request[TT_IB_SLOTS];
  int told, untold; /* receives that are not done, of which the sender knows or does not */
  int ended;        /* of which no other has taken the place */
  bool gaps;        /* some of the untold may come before others that are told, which the sender does not see then */
  int tag;          /* of the receives from `alike` on, which have one buffer each */
  uint64_t alike;
  bool unsure;                 /* the sender has not said of all ways that failed that its end is stopped, too */
  bool stopped[TT_IB_QPS];     /* it has, of the way of this queue pair */
  uint64_t doubt[TT_IB_SLOTS]; /* 1 + the number of the receive that was told over one of which it has not; or 0 */
  struct flush_request *flush[FLUSHES], *free_flushes;
  int flushes_to_post;
};

static const struct tt_ib_hooks hooks;

struct tt_ib_link *tt_ib_recv_link(struct tt_ib_recv_comm *comm)
{
  return &comm->link;
}

void *tt_ib_recv_memory(struct tt_ib_recv_comm *comm)
{
  return comm->memory;
}

ncclResult_t tt_ib_recv_make(const struct tt_ib_device *device, int qps, int pieces, struct tt_ib_recv_comm **out)
{
  struct tt_ib_recv_comm *comm = NULL;
  ncclResult_t result = ncclSuccess;
  TT_TRY(TT_CALLOC(&comm, 1));
  comm->memory = mmap(NULL, sizeof *comm->memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (comm->memory == MAP_FAILED) {
    comm->memory = NULL;
    result = TT_FAIL(ncclSystemError, "net ib: no memory for a connection");
    goto out;
  }
  TT_TRY_GOTO(tt_ib_link_make(&comm->link, &hooks, false, device, qps, pieces, comm->memory, sizeof *comm->memory),
              result, out);
  *out = comm;
  return ncclSuccess;
out:
  if (comm->memory) munmap(comm->memory, sizeof *comm->memory);
  free(comm);
  return result;
}

ncclResult_t tt_ib_recv_start(struct tt_ib_recv_comm *comm)
{
  bool gpus = false;
  for (int i = 0; i < comm->link.qps; i++)
    for (int k = 0; k < TT_IB_SLOTS * comm->link.pieces && !comm->link.qp[i].dead; k++)
      TT_TRY(tt_ib_link_post_receive(&comm->link, i));
  for (int i = 0; i < comm->link.rails; i++)
    gpus |= comm->link.rail[i].port->takes_peer_memory || comm->link.rail[i].port->takes_dmabuf;
  return gpus ? tt_ib_link_add_loops(&comm->link) : ncclSuccess;
}

static void describe(struct tt_ib_link *link, struct tt_ib_note *note);

/* Answers of the NIC that were lost are not sent again once the queue pairs are gone. */
static void say_end(struct tt_ib_link *link)
{
  struct tt_ib_note note = {.kind = TT_IB_END};
  if (link->failed != ncclSuccess || link->lost_since) return;
  describe(link, &note);
  tt_ib_note_send(link, &note);
}

ncclResult_t tt_ib_close_recv(void *recv_comm)
{
  struct tt_ib_recv_comm *comm = recv_comm;
  if (!comm) return ncclSuccess;
  say_end(&comm->link);
  tt_ib_link_end(&comm->link);
  for (int i = 0; i < FLUSHES; i++) free(comm->flush[i]);
  while (comm->free_flushes) {
    struct flush_request *flush = comm->free_flushes;
    comm->free_flushes = flush->next;
    free(flush);
  }
  munmap(comm->memory, sizeof *comm->memory);
  free(comm);
  return ncclSuccess;
}

/* ---- Completions ---- */

static ncclResult_t finish(struct tt_ib_recv_comm *comm, struct recv_request *request, int slot)
{
  if (request->record) memcpy(request->bytes, comm->memory->inbox.record[slot].bytes, sizeof request->bytes);
  for (int i = 0; i < request->n; i++)
    if (request->bytes[i] > request->room[i]) {
      comm->link.told = true; /* the sender knows */
      return tt_ib_link_fail(&comm->link,
                             TT_FAIL(ncclInvalidUsage,
                                     "net ib: the peer %s sent %llu bytes, and the receive "
                                     "has room for %zu; do the ranks call with the same "
                                     "counts and types?",
                                     comm->link.peer, (unsigned long long)request->bytes[i], request->room[i]));
    }
  request->done = true;
  __atomic_store_n(&comm->memory->inbox.done[slot], request->number + 1, __ATOMIC_RELEASE);
  comm->told -= request->told;
  comm->untold -= !request->told;
  comm->ended = TT_MIN(comm->ended + 1, comm->told + comm->untold);
  return ncclSuccess;
}

static ncclResult_t piece_arrived(struct tt_ib_recv_comm *comm, uint32_t imm)
{
  int slot = (int)(imm >> TT_IB_IMM_SLOT_SHIFT & (TT_IB_SLOTS - 1));
  int piece = (int)(imm >> TT_IB_IMM_PIECE_SHIFT & (TT_IB_PIECES - 1));
  struct recv_request *request = &comm->request[slot];
  if (request->base.kind != TT_IB_REQUEST_RECV || request->done || (request->arrived & 1u << piece))
    return tt_ib_link_fail(&comm->link, TT_FAIL(ncclRemoteError,
                                                "net ib: the peer %s announced piece %d of receive %d, which "
                                                "nobody waits for",
                                                comm->link.peer, piece, slot));
  request->arrived |= 1u << piece;
  if (imm & TT_IB_IMM_ONLY) request->wanted = 1;
  if (piece == 0) {
    request->record = imm & TT_IB_IMM_RECORD;
    request->bytes[0] = imm & TT_IB_IMM_BYTES;
  }
  return request->arrived == request->wanted ? finish(comm, request, slot) : ncclSuccess;
}

static ncclResult_t done(struct tt_ib_link *link, const struct tt_ib_done *done)
{
  struct tt_ib_recv_comm *comm = (struct tt_ib_recv_comm *)link;
  if (done->work == TT_IB_WORK_RECEIVE) {
    tt_ib_unflushed(link, link->qp[done->qp].rail);
    return piece_arrived(comm, done->imm);
  }
  /* The number may be another's by now: who needed it no more has not waited. */
  struct flush_request *flush = done->work == TT_IB_WORK_FLUSH ? comm->flush[done->slot] : NULL;
  if (flush && flush->read[done->piece] == link->qp[done->qp].retired) flush->left &= ~(1u << done->piece);
  return ncclSuccess;
}

/* ---- Receives ---- */

/* Writes the entries of some receives, whose slots lie side by side, into the sender's ring, if there is room on the
 * first queue pair that is well; else a later call does. Doing it twice does no harm: they stay the same until the
 * receive is done, and then the sender knows; and on one queue pair none comes behind those that take its place. */
static ncclResult_t tell_run(struct tt_ib_recv_comm *comm, int slot, int count)
{
  struct recv_request *first = &comm->request[slot], *last = first + count - 1;
  int index = tt_ib_alive(&comm->link, 0);
  if (!tt_ib_link_room(&comm->link, index, 1)) return ncclSuccess;
  struct tt_ib_qp *qp = &comm->link.qp[index];
  struct ibv_sge sge = {.addr = (uintptr_t)comm->memory->ring.entry[slot],
                        .length = (uint32_t)((size_t)(count - 1) * sizeof comm->memory->ring.entry[slot] +
                                             (size_t)last->n * sizeof(struct tt_ib_clear)),
                        .lkey = comm->link.rail[qp->rail].mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1};
  wr.wr.rdma.remote_addr = comm->link.remote.memory + offsetof(struct tt_ib_ring, entry[slot]);
  wr.wr.rdma.rkey = comm->link.remote.rail[qp->remote_rail].rkey;
  if (sge.length <= qp->max_inline) wr.send_flags = IBV_SEND_INLINE;
  for (struct recv_request *request = first; request <= last; request++) {
    request->told = true;
    request->told_qp = index;
  }
  comm->told += count;
  comm->untold -= count;
  comm->ended = TT_MAX(comm->ended - count, 0);
  return tt_ib_link_post(&comm->link, index, &wr, (struct tt_ib_done){.work = TT_IB_WORK_CLEAR, .slot = slot}, false);
}

/* Whether its entries are to be written now. Behind them might come those of the slot's last receive, if these are
 * still on a way that has failed, so they wait until the sender's end of it takes nothing any more. */
static bool is_to_be_told(const struct recv_request *request, const struct tt_ib_recv_comm *comm)
{
  if (request->base.kind != TT_IB_REQUEST_RECV || request->done || request->told) return false;
  uint64_t before = comm->unsure ? comm->doubt[request->number % TT_IB_SLOTS] : 0;
  return !before || before == request->number + 1;
}

/* In order, since the sender takes them so. */
static ncclResult_t tell_rest(struct tt_ib_recv_comm *comm)
{
  for (uint64_t number = comm->oldest; comm->untold > 0 && number < comm->next;) {
    int slot = (int)(number % TT_IB_SLOTS), count = 0;
    while (slot + count < TT_IB_SLOTS && number + (uint64_t)count < comm->next && count < TOGETHER &&
           is_to_be_told(&comm->request[slot + count], comm))
      count++;
    if (count > 0) TT_TRY(tell_run(comm, slot, count));
    number += (uint64_t)TT_MAX(count, 1);
  }
  comm->gaps = comm->untold > 0; /* there was no room for them, or they wait */
  return ncclSuccess;
}

/* Whether the sender may be told later, and of several receives at once, which costs both sides as much as one. It must
 * know of enough others to go on with meanwhile, whichever message is next: those have the same tag. And only receives
 * that take the place of others wait, so that who posts some and does something else has them all posted. */
static bool may_wait(const struct tt_ib_recv_comm *comm)
{
  return !comm->gaps && comm->oldest >= comm->alike && comm->told >= ENOUGH && comm->told > comm->untold &&
         comm->untold <= comm->ended;
}

/* After a receive was posted, and whenever some may be done. */
static ncclResult_t tell_sender(struct tt_ib_recv_comm *comm)
{
  while (comm->oldest < comm->next && comm->request[comm->oldest % TT_IB_SLOTS].done) comm->oldest++;
  return comm->untold > 0 && !may_wait(comm) ? tell_rest(comm) : ncclSuccess;
}

/* ---- Failing over ---- */

static void untell(struct tt_ib_recv_comm *comm, struct recv_request *request)
{
  request->told = false;
  if (request->done) return;
  comm->doubt[request->number % TT_IB_SLOTS] = request->number + 1;
  comm->told--;
  comm->untold++;
}

static void look_if_sure(struct tt_ib_recv_comm *comm)
{
  comm->unsure = false;
  for (int i = 0; i < comm->link.qps; i++) comm->unsure |= comm->link.qp[i].dead && !comm->stopped[i];
  if (!comm->unsure) memset(comm->doubt, 0, sizeof comm->doubt);
}

static ncclResult_t down(struct tt_ib_link *link, int qp)
{
  struct tt_ib_recv_comm *comm = (struct tt_ib_recv_comm *)link;
  for (int i = 0; i < TT_IB_SLOTS; i++)
    if (comm->request[i].told && tt_ib_same_way(link, qp, comm->request[i].told_qp)) untell(comm, &comm->request[i]);
  comm->gaps = comm->untold > 0;
  look_if_sure(comm);
  return ncclSuccess;
}

static ncclResult_t take_down(struct tt_ib_link *link, const struct tt_ib_note *note)
{
  struct tt_ib_recv_comm *comm = (struct tt_ib_recv_comm *)link;
  bool saved;
  TT_TRY(tt_ib_fail_over(link, (int)note->value, "the peer lost it", &saved));
  for (int i = 0; i < link->qps; i++) comm->stopped[i] |= tt_ib_same_way(link, (int)note->value, i);
  look_if_sure(comm);
  if (saved) return ncclSuccess;
  return tt_ib_link_fail(link,
                         TT_FAIL(ncclRemoteError, "net ib: the peer %s lost the last way here, over %s port %d",
                                 link->peer, link->qp[note->value].port->name, link->qp[note->value].port->number));
}

static void describe(struct tt_ib_link *link, struct tt_ib_note *note)
{
  struct tt_ib_recv_comm *comm = (struct tt_ib_recv_comm *)link;
  for (int i = 0; i < TT_IB_SLOTS; i++) {
    const struct recv_request *request = &comm->request[i];
    note->slot[i].number = request->n ? (uint32_t)(request->number + 1) : 0;
    note->slot[i].arrived = request->done ? UINT32_MAX : request->arrived;
  }
}

static const struct tt_ib_hooks hooks = {.done = done, .down = down, .note = take_down};

ncclResult_t tt_ib_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **memory,
                         void **out)
{
  struct tt_ib_recv_comm *comm = recv_comm;
  *out = NULL;
  if (!comm || n < 1 || n > TT_IB_RECVS)
    return TT_FAIL(ncclInternalError, "net ib: irecv of %d buffers; 1 to %d are possible", n, TT_IB_RECVS);
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  int slot = (int)(comm->next % TT_IB_SLOTS);
  struct recv_request *request = &comm->request[slot];
  if (request->base.kind != TT_IB_REQUEST_NONE) {
    tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
    return ncclSuccess;
  }
  for (int i = 0; i < n; i++)
    if (sizes[i] && !memory[i])
      return TT_FAIL(ncclInternalError, "net ib: irecv into %zu bytes that are not registered", sizes[i]);
  for (int i = 0; i < n; i++) TT_TRY(tt_ib_link_look_for(&comm->link, memory[i]));
  for (int i = 0; i < n; i++) {
    const struct tt_ib_memory *registered = memory[i];
    struct tt_ib_clear *entry = &comm->memory->ring.entry[slot][i];
    memset(entry, 0, sizeof *entry);
    entry->address = (uintptr_t)data[i];
    entry->bytes = sizes[i];
    entry->tag = (uint32_t)tags[i];
    entry->count = (uint32_t)n;
    for (int r = 0; registered && r < registered->count; r++)
      if (registered->mr[r]) entry->rkey[r] = registered->mr[r]->rkey;
    /* Last, since a NIC may be about to read the slot for what is told again of its last receive. */
    __atomic_store_n(&entry->sequence, comm->next + 1, __ATOMIC_RELEASE);
  }
  memset(request, 0, sizeof *request);
  request->comm = comm;
  request->number = comm->next++;
  request->n = n;
  request->wanted = comm->link.pieces == 32 ? UINT32_MAX : (1u << comm->link.pieces) - 1;
  for (int i = 0; i < n; i++) request->room[i] = sizes[i];
  request->base.kind = TT_IB_REQUEST_RECV;
  tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SENDS, 1);
  tt_count_begun(&comm->link.counted);
  if (n != 1 || tags[0] != comm->tag) comm->alike = n == 1 ? request->number : comm->next;
  comm->tag = tags[0];
  comm->untold++;
  TT_TRY(tell_sender(comm));
  *out = request;
  return ncclSuccess;
}

/* ---- Flushes ---- */

/* Does a flush have to read through this rail? Where the NIC is gone there is nothing to read through. Where only the
 * rail is not used any more, the port's link or the peer's port may be to blame, and the NIC still has to flush what
 * has come there; if it has another port, that one does. */
static bool needs_read(const struct tt_ib_recv_comm *comm, int r)
{
  const struct tt_ib_link *link = &comm->link;
  const struct tt_ib_qp *loop = &link->qp[link->qps + r];
  if (loop->dead) return false;
  if (tt_ib_rail_alive(link, r)) return true;
  return !atomic_load(&loop->port->nic->fatal) && !tt_ib_other_flushes(link, r) && !tt_ib_is_flushed(link, r);
}

static void drop_reads(struct tt_ib_recv_comm *comm, struct flush_request *flush)
{
  for (int r = 0; r < comm->link.rails; r++) {
    if (!(flush->left & 1u << r) || needs_read(comm, r)) continue;
    if (flush->to_post == 1u << r) comm->flushes_to_post--;
    flush->to_post &= ~(1u << r);
    flush->left &= ~(1u << r);
  }
}

static ncclResult_t post_flush(struct tt_ib_recv_comm *comm, int number)
{
  struct flush_request *flush = comm->flush[number];
  drop_reads(comm, flush);
  for (int r = 0; r < comm->link.rails; r++) {
    int index = comm->link.qps + r;
    if (!(flush->to_post & 1u << r) || !tt_ib_link_room(&comm->link, index, 1)) continue;
    struct ibv_sge sge = {.addr = (uintptr_t)&comm->memory->flushed, .length = 1, .lkey = comm->link.rail[r].mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1};
    wr.wr.rdma.remote_addr = flush->address;
    wr.wr.rdma.rkey = flush->memory->mr[r]->rkey;
    /* Before, since the rail may fail with it. */
    flush->to_post &= ~(1u << r);
    if (!flush->to_post) comm->flushes_to_post--;
    flush->read[r] = comm->link.qp[index].posted + 1;
    TT_TRY(tt_ib_link_post(&comm->link, index, &wr,
                           (struct tt_ib_done){.work = TT_IB_WORK_FLUSH, .slot = number, .piece = r}, true));
  }
  return ncclSuccess;
}

ncclResult_t tt_ib_iflush(void *recv_comm, int n, void **data, const int *sizes, void **memory, void **out)
{
  struct tt_ib_recv_comm *comm = recv_comm;
  int last = -1, number = 0;
  *out = NULL; /* complete */
  if (!comm) return TT_FAIL(ncclInternalError, "net ib: iflush on NULL");
  if (comm->link.failed != ncclSuccess && !comm->link.left) return comm->link.failed;
  /* The last one's read is behind the writes of all. */
  for (int i = 0; i < n; i++)
    if (sizes[i] > 0 && memory[i] && !((struct tt_ib_memory *)memory[i])->host) last = i;
  if (last < 0) return ncclSuccess;
  TT_TRY(tt_ib_link_look_for(&comm->link, memory[last]));
  while (number < FLUSHES && comm->flush[number]) number++;
  if (number == FLUSHES)
    return TT_FAIL(ncclInternalError, "net ib: more than %d flushes under way; test those that are done", FLUSHES);
  struct flush_request *flush = comm->free_flushes;
  if (flush)
    comm->free_flushes = flush->next;
  else
    TT_TRY(TT_CALLOC(&flush, 1));
  *flush = (struct flush_request){
      .base.kind = TT_IB_REQUEST_FLUSH, .comm = comm, .address = (uintptr_t)data[last], .memory = memory[last]};
  for (int r = 0; r < comm->link.rails; r++)
    if (needs_read(comm, r)) flush->to_post |= 1u << r;
  flush->left = flush->to_post;
  comm->flush[number] = flush;
  comm->flushes_to_post += flush->to_post != 0;
  *out = flush;
  return post_flush(comm, number);
}

/* ---- test ---- */

static ncclResult_t post_flushes(struct tt_ib_recv_comm *comm)
{
  for (int i = 0; i < FLUSHES && comm->flushes_to_post; i++)
    if (comm->flush[i] && comm->flush[i]->to_post) TT_TRY(post_flush(comm, i));
  return ncclSuccess;
}

static ncclResult_t progress(struct tt_ib_recv_comm *comm)
{
  TT_TRY(tt_ib_link_progress(&comm->link));
  if (comm->link.drains) TT_TRY(tt_ib_report_drained(&comm->link, describe));
  TT_TRY(tell_sender(comm));
  return post_flushes(comm);
}

/* Moves nothing but flushes. */
static ncclResult_t outlast(struct flush_request *flush)
{
  struct tt_ib_recv_comm *comm = flush->comm;
  if (!flush->outlasts) flush->outlasts = tt_deadline_in_ms(OUTLAST_MS);
  bool over = tt_deadline_passed(flush->outlasts);
  TT_TRY(tt_ib_link_look(&comm->link));
  TT_TRY(post_flushes(comm));
  return over ? comm->link.failed : ncclSuccess;
}

static ncclResult_t test_flush(struct flush_request *flush, int *done)
{
  struct tt_ib_recv_comm *comm = flush->comm;
  if (flush->left) {
    ncclResult_t result = progress(comm);
    if (result != ncclSuccess && comm->link.left) result = outlast(flush);
    if (result != ncclSuccess && flush->left) return result;
  }
  drop_reads(comm, flush);
  if (flush->left) return ncclSuccess;
  for (int i = 0; i < FLUSHES; i++)
    if (comm->flush[i] == flush) comm->flush[i] = NULL;
  flush->base.kind = TT_IB_REQUEST_NONE;
  flush->next = comm->free_flushes;
  comm->free_flushes = flush;
  *done = 1;
  return ncclSuccess;
}

ncclResult_t tt_ib_recv_test(struct tt_ib_request *base, int *done, int *sizes)
{
  if (base->kind == TT_IB_REQUEST_FLUSH) return test_flush((struct flush_request *)base, done);
  struct recv_request *request = (struct recv_request *)base;
  /* What came before the failure is there all the same. */
  ncclResult_t result = request->done ? ncclSuccess : progress(request->comm);
  if (!request->done) return result;
  for (int i = 0; i < request->n; i++) {
    if (sizes) sizes[i] = (int)request->bytes[i];
    tt_count_message(&request->comm->link.counted, request->bytes[i]);
  }
  tt_count_ended(&request->comm->link.counted);
  request->base.kind = TT_IB_REQUEST_NONE;
  *done = 1;
  return ncclSuccess;
}
