/* One strand: does what can be done now of the instruction at hand, remembers what was done, and goes on with the
 * next. Moves are done one by one as they become ready, the reduction when all of its operands are. */
#include "kernels/host/executor.h"

#include <stdlib.h>
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

/* Reduces into local memory and into the slots of sends. src, dst and scaled are the strand's arrays, filled. */
static void reduce_simple(struct tt_host_strand *strand, int ndst, int nsrc, bool final, size_t bytes)
{
  const struct tt_host_run *run = strand->run;
  if (bytes == 0 || ndst == 0 || nsrc == 0) return;
  tt_host_reduce(&run->work->reduction, strand->dst, ndst, strand->src, nsrc, strand->scaled, final,
                 bytes / run->element_bytes);
}

/* Reduces piece by piece, and packs each piece into the slots of the operands among [first, first + n) that send. */
static void reduce_ll(struct tt_host_strand *strand, struct tt_host_operand *first, uint32_t n, int ndst, int nsrc,
                      bool final, size_t bytes)
{
  const struct tt_host_run *run = strand->run;
  _Alignas(64) unsigned char piece[PACK_BYTES];
  bool in_piece = ndst == 0;
  for (uint32_t k = 0; k < n; k++) {
    if (first[k].kind != TT_SEND || first[k].result != first->result) continue;
    tt_host_ll_clean(&first[k]);
    tt_host_ll_begin(run, &first[k]);
  }
  for (size_t offset = 0, now; offset < bytes; offset += now) {
    now = TT_MIN(bytes - offset, (size_t)PACK_BYTES);
    if (in_piece) strand->dst[0] = piece;
    tt_host_reduce(&run->work->reduction, strand->dst, in_piece ? 1 : ndst, strand->src, nsrc, strand->scaled, final,
                   now / run->element_bytes);
    for (uint32_t k = 0; k < n; k++) {
      if (first[k].kind == TT_SEND && first[k].result == first->result)
        tt_host_ll_pack(run, &first[k], offset, strand->dst[0], now);
    }
    for (int s = 0; s < nsrc; s++) strand->src[s] = (const unsigned char *)strand->src[s] + now;
    for (int d = 0; d < ndst; d++) strand->dst[d] = (unsigned char *)strand->dst[d] + now;
  }
}

/* A move that is ready: a local chunk into a slot, or a slot into a local chunk. */
static void do_move(struct tt_host_strand *strand, struct tt_host_operand *operand)
{
  const struct tt_host_run *run = strand->run;
  bool ll = run->work->protocol == TT_PROTO_LL;
  strand->scaled[0] = operand->scaled;
  if (operand->kind == TT_RECV) {
    strand->src[0] = operand->data;
    strand->dst[0] = operand->local;
    if (!ll) {
      reduce_simple(strand, 1, 1, false, operand->bytes);
      tt_host_release(operand);
    }
    operand->done = true;
    return;
  }
  strand->src[0] = operand->local;
  if (ll) {
    reduce_ll(strand, operand, 1, 0, 1, false, operand->bytes);
  } else {
    strand->dst[0] = tt_host_slot(run, operand) + TT_SLOT_HEADER;
    reduce_simple(strand, 1, 1, false, operand->bytes);
  }
  finish_send(run, operand);
}

/* All operands of the reduction are ready. */
static void do_reduction(struct tt_host_strand *strand, const struct tt_instruction *instruction)
{
  const struct tt_host_run *run = strand->run;
  bool ll = run->work->protocol == TT_PROTO_LL, final = instruction->flags & TT_FLAG_FINAL;
  int nsrc = 0, ndst = 0;
  uint32_t begin = UINT32_MAX;
  size_t bytes = 0;
  for (uint32_t k = 0; k < instruction->noperands; k++) {
    const struct tt_host_operand *operand = &strand->operands[k];
    if (!operand->result) continue;
    if (begin == UINT32_MAX) begin = k;
    bytes = operand->bytes;
    if (operand->kind == TT_SRC || operand->kind == TT_RECV) {
      strand->scaled[nsrc] = operand->scaled;
      strand->src[nsrc++] = operand->kind == TT_SRC ? operand->local : operand->data;
    } else if (operand->kind == TT_DST) {
      strand->dst[ndst++] = operand->local;
    } else if (!ll) {
      strand->dst[ndst++] = tt_host_slot(run, operand) + TT_SLOT_HEADER;
    }
  }
  if (ll) {
    reduce_ll(strand, &strand->operands[begin], instruction->noperands - begin, ndst, nsrc, final, bytes);
  } else {
    reduce_simple(strand, ndst, nsrc, final, bytes);
  }
  for (uint32_t k = begin; k < instruction->noperands; k++) {
    struct tt_host_operand *operand = &strand->operands[k];
    if (!operand->result) continue;
    if (operand->kind == TT_SEND) finish_send(run, operand);
    if (operand->kind == TT_RECV && !ll) tt_host_release(operand);
    operand->done = true;
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
  free(strand->unpacked);
  strand->unpacked = NULL;
  strand->unpacked_bytes = 0;
}
