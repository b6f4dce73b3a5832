/* One strand: does what can be done now of the instruction at hand, remembers what was done, and goes on with the
 * next. Moves are done one by one as they become ready, the reduction when all of its operands are. */
#include "kernels/host/executor.h"

#include "kernels/host/host.h"

/* Bytes that are reduced at a time where the result is then packed in lines: they stay in the first-level cache. A
 * multiple of 8 and of every type's size. */
#define PACK_BYTES 2048

/* Whether an earlier use of the same connection in this instruction comes first. Those within the reduction are done
 * together, but become ready in order. */
static bool must_wait(const struct tt_host_strand *strand, const struct tt_host_operand *operand)
{
  if (operand->after == 0) return false;
  const struct tt_host_operand *before = &strand->operands[operand->after - 1];
  return before->result && operand->result ? !before->ready : !before->done;
}

/* Looks whether the operand of a connection can be used now. */
static ncclResult_t poll_operand(struct tt_host_strand *strand, struct tt_host_operand *operand, bool *moved)
{
  if (operand->ready || must_wait(strand, operand)) return ncclSuccess;
  if (operand->kind == TT_SEND) {
    operand->ready = tt_host_has_room(operand);
    return ncclSuccess;
  }
  if (strand->run->work->protocol != TT_PROTO_LL) return tt_host_simple_poll(strand->run, operand);
  TT_TRY(tt_host_ll_poll(strand->run, operand, moved));
  if (operand->ready) tt_host_release(operand); /* it was copied out */
  return ncclSuccess;
}

static void finish_send(const struct tt_host_run *run, struct tt_host_operand *operand)
{
  if (run->work->protocol == TT_PROTO_LL) {
    tt_host_post(operand, tt_host_ll_bytes(operand->bytes), operand->conn->flags & TT_CONN_PROXIED);
  } else {
    tt_host_ll_clean(operand);
    tt_host_write_header(run, operand, tt_host_slot(run, operand));
    tt_host_post(operand, operand->bytes, true);
  }
  operand->done = true;
}

/* Reduces one piece into local memory and into the slots of sends. src, dst and scaled are the strand's arrays,
 * filled. */
static void reduce_simple(struct tt_host_strand *strand, int ndst, int nsrc, bool final, size_t bytes)
{
  const struct tt_host_run *run = strand->run;
  if (bytes == 0 || ndst == 0 || nsrc == 0) return;
  tt_host_reduce(&run->work->reduction, strand->dst, ndst, strand->src, nsrc, strand->scaled, final,
                 bytes / run->element_bytes);
}

/* The operands among [first, first + n) that send what is being reduced or moved. */
static bool sends(const struct tt_host_operand *first, uint32_t k)
{
  return first[k].kind == TT_SEND && first[k].result == first->result;
}

static void begin_ll(const struct tt_host_run *run, struct tt_host_operand *first, uint32_t n)
{
  for (uint32_t k = 0; k < n; k++) {
    if (!sends(first, k)) continue;
    tt_host_ll_clean(&first[k]);
    tt_host_ll_begin(run, &first[k]);
  }
}

/* Reduces one piece, which begins at `start` of the message, bit by bit, and packs each bit into the slots of sends. */
static void reduce_ll(struct tt_host_strand *strand, struct tt_host_operand *first, uint32_t n, int ndst, int nsrc,
                      bool final, size_t start, size_t bytes)
{
  const struct tt_host_run *run = strand->run;
  _Alignas(64) unsigned char piece[PACK_BYTES];
  bool in_piece = ndst == 0;
  for (size_t offset = 0, now; offset < bytes; offset += now) {
    now = TT_MIN(bytes - offset, (size_t)PACK_BYTES);
    if (in_piece) strand->dst[0] = piece;
    tt_host_reduce(&run->work->reduction, strand->dst, in_piece ? 1 : ndst, strand->src, nsrc, strand->scaled, final,
                   now / run->element_bytes);
    for (uint32_t k = 0; k < n; k++)
      if (sends(first, k)) tt_host_ll_pack(run, &first[k], start + offset, strand->dst[0], now);
    for (int s = 0; s < nsrc; s++) strand->src[s] = (const unsigned char *)strand->src[s] + now;
    for (int d = 0; d < ndst; d++) strand->dst[d] = (unsigned char *)strand->dst[d] + now;
  }
}

/* Between two pieces there may be a line that neither fills; the receiver waits for it too. */
static void fill_gap(const struct tt_host_run *run, struct tt_host_operand *first, uint32_t n, size_t end, size_t next)
{
  static const unsigned char zeros[TT_PIECE_ALIGN];
  size_t line = (end + 7) / 8 * 8;
  for (uint32_t k = 0; line < next && k < n; k++)
    if (sends(first, k)) tt_host_ll_pack(run, &first[k], line, zeros, next - line);
}

/* A list that was received, to its places. */
static void store_list(struct tt_host_strand *strand, const struct tt_host_operand *operand)
{
  size_t at = 0;
  for (uint32_t p = 0; p < operand->count; p++) {
    struct tt_host_piece piece = tt_host_piece(strand, operand, p);
    strand->src[0] = operand->data + at;
    strand->dst[0] = piece.local;
    reduce_simple(strand, 1, 1, false, piece.bytes);
    at = tt_host_next_piece(at, piece.bytes);
  }
}

/* Local chunks into a slot. */
static void send_list(struct tt_host_strand *strand, struct tt_host_operand *operand)
{
  const struct tt_host_run *run = strand->run;
  bool ll = run->work->protocol == TT_PROTO_LL;
  size_t at = 0;
  if (ll) begin_ll(run, operand, 1);
  for (uint32_t p = 0; p < operand->count; p++) {
    struct tt_host_piece piece = tt_host_piece(strand, operand, p);
    size_t next = tt_host_next_piece(at, piece.bytes);
    strand->src[0] = piece.local;
    if (ll) {
      reduce_ll(strand, operand, 1, 0, 1, false, at, piece.bytes);
      if (p + 1 < operand->count) fill_gap(run, operand, 1, at + piece.bytes, next);
    } else {
      strand->dst[0] = tt_host_slot(run, operand) + TT_SLOT_HEADER + at;
      reduce_simple(strand, 1, 1, false, piece.bytes);
    }
    at = next;
  }
}

/* A move that is ready: local chunks into a slot, or a slot into local chunks. */
static void do_move(struct tt_host_strand *strand, struct tt_host_operand *operand)
{
  const struct tt_host_run *run = strand->run;
  bool ll = run->work->protocol == TT_PROTO_LL;
  strand->scaled[0] = operand->scaled;
  if (operand->kind == TT_RECV) {
    if (!ll || operand->count > 1) store_list(strand, operand);
    if (!ll) tt_host_release(operand);
    operand->done = true;
    return;
  }
  send_list(strand, operand);
  finish_send(run, operand);
}

/* A piece of all members' copies: an input or output for each. `first` is where it lies in the first copy; NULL where
 * the piece is empty. */
static void gather_copies(struct tt_host_strand *strand, const struct tt_host_operand *operand, unsigned char *first,
                          int *nsrc, int *ndst)
{
  const struct tt_work *work = strand->run->work;
  for (uint32_t m = 0; m < strand->channel->work->program->nmembers; m++) {
    unsigned char *base = work->copies[m];
    unsigned char *at = first == NULL ? NULL : base + (first - (unsigned char *)work->copies[0]);
    if (operand->kind == TT_SRC) {
      strand->scaled[*nsrc] = 0;
      strand->src[(*nsrc)++] = at;
    } else {
      strand->dst[(*ndst)++] = at;
    }
  }
}

/* The reduction's inputs and outputs for one piece, which begins at `at` of its messages. */
static void gather_piece(struct tt_host_strand *strand, const struct tt_instruction *instruction, uint32_t number,
                         size_t at, int *nsrc, int *ndst, size_t *bytes)
{
  const struct tt_host_run *run = strand->run;
  *nsrc = *ndst = 0;
  for (uint32_t k = 0; k < instruction->noperands; k++) {
    const struct tt_host_operand *operand = &strand->operands[k];
    if (!operand->result) continue;
    struct tt_host_piece piece = tt_host_piece(strand, operand, number);
    *bytes = piece.bytes;
    if (operand->source->buffer == TT_MULTICAST) {
      gather_copies(strand, operand, piece.local, nsrc, ndst);
    } else if (operand->kind == TT_SRC || operand->kind == TT_RECV) {
      strand->scaled[*nsrc] = operand->scaled;
      strand->src[(*nsrc)++] = operand->kind == TT_SRC ? piece.local : operand->data + at;
    } else if (operand->kind == TT_DST) {
      strand->dst[(*ndst)++] = piece.local;
    } else if (run->work->protocol != TT_PROTO_LL) {
      strand->dst[(*ndst)++] = tt_host_slot(run, operand) + TT_SLOT_HEADER + at;
    }
  }
}

/* All operands of the reduction are ready. */
static void do_reduction(struct tt_host_strand *strand, const struct tt_instruction *instruction)
{
  const struct tt_host_run *run = strand->run;
  bool ll = run->work->protocol == TT_PROTO_LL, final = instruction->flags & TT_FLAG_FINAL;
  uint32_t begin = 0;
  while (!strand->operands[begin].result) begin++;
  struct tt_host_operand *first = &strand->operands[begin];
  uint32_t n = instruction->noperands - begin;
  size_t at = 0;
  if (ll) begin_ll(run, first, n);
  for (uint32_t p = 0; p < first->count; p++) {
    int nsrc, ndst;
    size_t bytes = 0;
    gather_piece(strand, instruction, p, at, &nsrc, &ndst, &bytes);
    size_t next = tt_host_next_piece(at, bytes);
    if (!ll) {
      reduce_simple(strand, ndst, nsrc, final, bytes);
    } else {
      reduce_ll(strand, first, n, ndst, nsrc, final, at, bytes);
      if (p + 1 < first->count) fill_gap(run, first, n, at + bytes, next);
    }
    at = next;
  }
  for (uint32_t k = 0; k < n; k++) {
    if (!first[k].result) continue;
    if (first[k].kind == TT_SEND) finish_send(run, &first[k]);
    if (first[k].kind == TT_RECV && !ll) tt_host_release(&first[k]);
    first[k].done = true;
  }
  strand->reduced = true;
}

/* Does what is possible of the resolved instruction; *complete when that was the rest. */
static ncclResult_t advance_data(struct tt_host_strand *strand, const struct tt_instruction *instruction,
                                 bool *complete, bool *moved)
{
  bool all_ready = true;
  for (uint32_t k = 0; k < instruction->noperands; k++) {
    struct tt_host_operand *operand = &strand->operands[k];
    if (operand->done || operand->conn == NULL) continue;
    TT_TRY(poll_operand(strand, operand, moved));
    if (operand->result) {
      all_ready &= operand->ready;
    } else if (operand->ready) {
      do_move(strand, operand);
      strand->pending--;
      *moved = true;
    }
  }
  if (!strand->reduced && all_ready) {
    do_reduction(strand, instruction);
    *moved = true;
  }
  *complete = strand->reduced && strand->pending == 0;
  return ncclSuccess;
}

/* Goes to the next repetition, instruction or loop. */
static void step_forward(struct tt_host_strand *strand, const struct tt_instruction *instruction)
{
  strand->resolved = false;
  if (++strand->repetition < instruction->repeat) return;
  strand->repetition = 0;
  if (++strand->instruction < strand->strand->ninstructions) return;
  strand->instruction = 0;
  strand->done = ++strand->loop == strand->channel->work->geometry.loops;
}

ncclResult_t tt_host_strand_advance(struct tt_host_strand *strand, int budget, bool *moved)
{
  const struct tt_instruction *instructions =
      strand->channel->work->program->instructions + strand->strand->first_instruction;
  for (; budget > 0 && !strand->done; budget--) {
    const struct tt_instruction *instruction = &instructions[strand->instruction];
    uint32_t *semaphore = &strand->channel->semaphores[instruction->semaphore];
    if (instruction->opcode == TT_OP_SIGNAL) {
      ++*semaphore;
    } else if (instruction->opcode == TT_OP_WAIT) {
      if (*semaphore == 0) return ncclSuccess;
      --*semaphore;
    } else {
      bool complete;
      if (!strand->resolved) TT_TRY(tt_host_resolve(strand));
      TT_TRY(advance_data(strand, instruction, &complete, moved));
      if (!complete) return ncclSuccess;
    }
    *moved = true;
    step_forward(strand, instruction);
  }
  return ncclSuccess;
}

void tt_host_strand_clear(struct tt_host_strand *strand)
{
  tt_pool_give(strand->unpacked);
  strand->unpacked = NULL;
  strand->unpacked_bytes = 0;
}
