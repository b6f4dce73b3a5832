/* Grows a program's instructions and operands and packs them into one allocation. An allocation that fails is
 * remembered, so that an emitter reads as a list of instructions and tt_builder_finish reports it. */
#ifndef TT_PROGRAM_BUILDER_H
#define TT_PROGRAM_BUILDER_H

#include "program/emit.h"

struct tt_builder {
  struct tt_program head; /* its pointers are set by finish */
  struct tt_strand *strands;
  struct tt_instruction *instructions;
  struct tt_operand *operands;
  int32_t *peers, *members;
  uint32_t strand_room, instruction_room, operand_room, peer_room;
  ncclResult_t failed;
};

/* Chunks of an operand over the repetitions of its instruction and over its pieces: (start + i * stride + p * step) mod
 * modulo. count 0 is written as 1. */
struct tt_chunks {
  int32_t start, stride, modulo;
  int32_t count, step;
};

/* One chunk out of `total`, the same at each repetition. */
static inline struct tt_chunks tt_chunk_one(int32_t chunk, int32_t total)
{
  return (struct tt_chunks){.start = chunk, .stride = 0, .modulo = total};
}

/* Starts a program. Block counts and parts are those of struct tt_program. */
void tt_builder_start(struct tt_builder *builder, const struct tt_emit_request *request, uint32_t parts,
                      uint32_t input_blocks, uint32_t output_blocks);

/* Adds a rank to the peers and returns its index. The caller adds each rank once. */
uint16_t tt_builder_peer(struct tt_builder *builder, int32_t rank);
/* Adds a semaphore and returns its index. */
uint16_t tt_builder_semaphore(struct tt_builder *builder);

/* Gives this rank and the others among `members` `blocks` blocks of memory to share; 0: they only use each other's
 * buffers. */
void tt_builder_share(struct tt_builder *builder, uint32_t blocks, const int32_t *members, uint32_t nmembers);

/* The following instructions belong to a new strand. */
void tt_builder_strand(struct tt_builder *builder);
/* The following operands belong to a new data instruction. */
void tt_builder_data(struct tt_builder *builder, uint32_t repeat, uint8_t flags);
void tt_builder_signal(struct tt_builder *builder, uint16_t semaphore);
void tt_builder_wait(struct tt_builder *builder, uint16_t semaphore);

void tt_builder_source(struct tt_builder *builder, uint8_t buffer, struct tt_chunks chunks);
void tt_builder_destination(struct tt_builder *builder, uint8_t buffer, struct tt_chunks chunks);
/* A member's input or output, by its index among the members. */
void tt_builder_member_source(struct tt_builder *builder, uint16_t member, uint8_t buffer, struct tt_chunks chunks);
void tt_builder_member_destination(struct tt_builder *builder, uint16_t member, struct tt_chunks chunks);
void tt_builder_receive(struct tt_builder *builder, uint16_t peer, uint8_t buffer, struct tt_chunks chunks);
void tt_builder_send(struct tt_builder *builder, uint16_t peer, uint8_t buffer, struct tt_chunks chunks);

/* A message without data, sent and received. */
void tt_builder_tell(struct tt_builder *builder, uint16_t peer);
void tt_builder_hear(struct tt_builder *builder, uint16_t peer);

/* Packs the program and releases the builder's memory, also on failure. */
ncclResult_t tt_builder_finish(struct tt_builder *builder, struct tt_program **program);

#endif
