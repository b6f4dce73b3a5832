/* The host executor's own structures. A launch has chains of works (one chain an order key); the first unfinished work
 * of each chain is run; a run has strands; a strand is a resumable state machine that stands at one repetition of one
 * instruction. One thread at a time drives a launch. */
#ifndef TT_KERNELS_HOST_EXECUTOR_H
#define TT_KERNELS_HOST_EXECUTOR_H

#include <stdbool.h>
#include "base/check.h"
#include "base/pool.h"
#include "tutti/device.h"

struct tt_host_run;

/* An operand of the instruction at hand, resolved to memory and connection. */
struct tt_host_operand {
  const struct tt_operand *source;
  uint8_t kind;      /* enum tt_operand_kind */
  bool result;       /* takes part in the reduction; else it is a move */
  bool scaled;       /* its value is scaled when it is read */
  bool first;        /* the first slot of this work on this connection: carries the signature */
  bool after_result; /* an earlier use of the same connection takes part in the reduction */
  bool ready;        /* RECV: all is here; SEND: there is room */
  bool done;
  uint32_t after;       /* 1 + index of the operand that uses the same connection before this one; 0: none */
  struct tt_conn *conn; /* NULL for local operands */
  uint64_t step;        /* of the connection */
  uint32_t count;       /* pieces */
  unsigned char *local; /* the only piece in this rank's memory; NULL for TT_RESULT, empty chunks and lists */
  size_t bytes;         /* of the only piece, or of the message that holds the list */
  uint64_t line;        /* LL: lines taken so far, line 0 included */
  unsigned char *data;  /* RECV that is ready: where its bytes are */
};

/* A piece of an operand. */
struct tt_host_piece {
  unsigned char *local; /* NULL for TT_RESULT and empty chunks */
  size_t bytes;
};

/* A channel of a work. Arrays are indexed [TT_HOST_SEND or TT_HOST_RECV][peer]. */
enum { TT_HOST_SEND = 0, TT_HOST_RECV = 1 };
struct tt_host_channel {
  const struct tt_work_channel *work;
  uint32_t *semaphores;
  uint64_t *first_step[2]; /* the connection's step when the work began */
  uint32_t *last_use[2];   /* while operands are resolved: 1 + index of the last operand on the connection */
};

struct tt_host_strand {
  struct tt_host_run *run;
  struct tt_host_channel *channel;
  const struct tt_strand *strand;
  uint64_t loop;
  uint32_t instruction; /* from the strand's first */
  uint32_t repetition;
  bool resolved; /* the operands are those of the instruction at hand */
  bool done;
  bool reduced;     /* the reduction of the instruction at hand is done, or there is none */
  uint32_t pending; /* moves not done */
  struct tt_host_operand *operands;
  const void **src; /* the reduction's inputs and outputs */
  void **dst;
  unsigned char *scaled;
  unsigned char *unpacked; /* LL: where inputs of the reduction and lists arrive; grown when first needed */
  size_t unpacked_bytes;
};

/* A work that is being executed. */
struct tt_host_run {
  const struct tt_work *work;
  int index; /* in the launch */
  size_t element_bytes;
  bool scale; /* values from TT_INPUT are scaled */
  uint64_t signature_hash;
  uint32_t nstrands, left; /* strands, and those not done */
  struct tt_host_strand *strands;
  struct tt_host_channel *channels;
  void *memory; /* of the arrays; kept for the chain's next work */
  size_t memory_bytes;
};

/* Prepares a run for a work, reusing its memory. */
ncclResult_t tt_host_run_begin(struct tt_host_run *run, const struct tt_work *work);
void tt_host_run_free(struct tt_host_run *run);
/* Passes over the strands until nothing moves or enough was done for once. */
ncclResult_t tt_host_run_advance(struct tt_host_run *run, bool *moved);

/* Executes at most `budget` repetitions of instructions. */
ncclResult_t tt_host_strand_advance(struct tt_host_strand *strand, int budget, bool *moved);
void tt_host_strand_clear(struct tt_host_strand *strand);

/* Resolves the operands of the instruction at hand. */
ncclResult_t tt_host_resolve(struct tt_host_strand *strand);
/* Piece number `piece` of a resolved operand. */
struct tt_host_piece tt_host_piece(const struct tt_host_strand *strand, const struct tt_host_operand *operand,
                                   uint32_t piece);
/* Where the next piece of a message begins, behind one of `bytes` that begins at `offset`. */
static inline size_t tt_host_next_piece(size_t offset, size_t bytes)
{
  return (offset + bytes + TT_PIECE_ALIGN - 1) / TT_PIECE_ALIGN * TT_PIECE_ALIGN;
}

/* What the protocols share. */
/* The operand's slot, header first. */
unsigned char *tt_host_slot(const struct tt_host_run *run, const struct tt_host_operand *operand);
bool tt_host_has_room(const struct tt_host_operand *operand);
/* Sender: the slot is complete: entry for the proxy, tail, bell. `bytes` without the header. */
void tt_host_post(const struct tt_host_operand *operand, size_t bytes, bool publish_tail);
/* Receiver: the slot may be used again. */
void tt_host_release(const struct tt_host_operand *operand);
void tt_host_write_header(const struct tt_host_run *run, const struct tt_host_operand *operand, unsigned char *slot);
/* Receiver: whether a slot published by tail is there, and if so whether it is the one expected. */
ncclResult_t tt_host_arrived(const struct tt_host_run *run, const struct tt_host_operand *operand, size_t payload,
                             bool *here);
/* ncclInternalError: the ends disagree on a slot although their signatures are equal. */
ncclResult_t tt_host_wrong_slot(const struct tt_host_run *run, const struct tt_host_operand *operand, const char *what,
                                uint64_t expected, uint64_t got);

/* Simple. */
ncclResult_t tt_host_simple_poll(const struct tt_host_run *run, struct tt_host_operand *operand);

/* LL. */
/* Bytes of the lines that carry `bytes`, line 0 included. */
size_t tt_host_ll_bytes(size_t bytes);
/* Takes what has arrived to operand->data; ready when that is all. */
ncclResult_t tt_host_ll_poll(const struct tt_host_run *run, struct tt_host_operand *operand, bool *moved);
/* Begins a message: header and line 0. */
void tt_host_ll_begin(const struct tt_host_run *run, const struct tt_host_operand *operand);
/* Writes the lines of data[0, bytes), which begins `offset` bytes, a multiple of 8, into the message. */
void tt_host_ll_pack(const struct tt_host_run *run, const struct tt_host_operand *operand, size_t offset,
                     const void *data, size_t bytes);
/* Rewrites all lines of the connection's LL slot with a flag of the past, in the steps in which that is due. */
void tt_host_ll_clean(const struct tt_host_operand *operand);
/* True if a sender that shares memory has put an LL message where this step's message is expected. */
bool tt_host_ll_peek(const struct tt_host_operand *operand);

/* Signatures. */
uint64_t tt_host_signature_hash(const struct tt_signature *signature);
/* ncclInvalidUsage, naming both sides, if they differ. */
ncclResult_t tt_host_signature_check(const struct tt_host_run *run, const struct tt_host_operand *operand,
                                     const struct tt_signature *theirs);
/* "AllReduce (operation 7, channel ...)": for messages. */
void tt_host_describe(const struct tt_work *work, char *text, size_t size);

/* buffer.c: see tt_device. */
ncclResult_t tt_host_check_buffer(struct tt_device_context *context, struct tt_device_check *check);

#endif
