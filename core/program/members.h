/* What the emitters that share memory have in common: who the members are, how they wait for each other, and how chunks
 * travel between user buffers and shared memory.
 *
 * Work is done in groups of chunks: the members' copies hold `groups` of them, so that one is copied while another is
 * reduced. Chunk g of member h, in buffers with a chunk for each member and group, is h * groups + g, whether h counts
 * parts of one block or blocks of `groups` parts. */
#ifndef TT_PROGRAM_MEMBERS_H
#define TT_PROGRAM_MEMBERS_H

#include "program/builder.h"

struct tt_members {
  int32_t *ranks; /* of this rank's node, ascending */
  int32_t count;
  int32_t own; /* this rank's place among them */
  int32_t node, nnodes;
  int32_t groups;
};

/* Finds this rank's node. Nodes of different sizes are ncclInvalidUsage, gaps in their numbers ncclInvalidArgument. */
ncclResult_t tt_members_find(const struct tt_emit_request *request, int32_t groups, struct tt_members *members);
void tt_members_free(struct tt_members *members);

/* Makes the other members the program's first peers, and gives them `blocks` blocks of memory to share. */
void tt_members_share(struct tt_builder *builder, const struct tt_members *members, uint32_t blocks);
/* Tells the other members that all that this strand followed is done, and waits until all have said so. */
void tt_members_exchange(struct tt_builder *builder, const struct tt_members *members);

/* The program of a rank that is alone: a copy. */
void tt_members_alone(struct tt_builder *builder, const struct tt_emit_request *request);

/* This rank's chunk of a group. */
struct tt_chunks tt_members_own(const struct tt_members *members, int32_t group);
/* All members' chunks of the user's input to the own copy. */
void tt_members_copy_in(struct tt_builder *builder, const struct tt_members *members, int32_t group);
/* The other members' chunks of the own copy to the output. */
void tt_members_copy_out(struct tt_builder *builder, const struct tt_members *members, int32_t group);

#endif
