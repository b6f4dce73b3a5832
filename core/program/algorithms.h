/* The emitters, one file an algorithm. The request has been checked: ranks and root in range, and the algorithm has a
 * program for the collective. Each adds to a builder that its caller finishes. */
#ifndef TT_PROGRAM_ALGORITHMS_H
#define TT_PROGRAM_ALGORITHMS_H

#include <stdbool.h>
#include "program/builder.h"

/* Reports a ring that this rank is not in exactly once, or that names a rank out of range. */
ncclResult_t tt_emit_ring(struct tt_builder *builder, const struct tt_emit_request *request);
/* Reports a tree that links this rank to itself, twice to one rank, out of range, or to no one. */
ncclResult_t tt_emit_tree(struct tt_builder *builder, const struct tt_emit_request *request);
ncclResult_t tt_emit_one_shot(struct tt_builder *builder, const struct tt_emit_request *request);
ncclResult_t tt_emit_two_shot(struct tt_builder *builder, const struct tt_emit_request *request);
ncclResult_t tt_emit_direct(struct tt_builder *builder, const struct tt_emit_request *request);
ncclResult_t tt_emit_pat(struct tt_builder *builder, const struct tt_emit_request *request);
/* Both report nodes that are not numbered from 0 without gaps. */
ncclResult_t tt_emit_collnet_direct(struct tt_builder *builder, const struct tt_emit_request *request);
ncclResult_t tt_emit_collnet_chain(struct tt_builder *builder, const struct tt_emit_request *request);
/* Reports ranks on several nodes. */
ncclResult_t tt_emit_nvls(struct tt_builder *builder, const struct tt_emit_request *request);
/* Reports nodes of different sizes or of one rank. */
ncclResult_t tt_emit_nvls_tree(struct tt_builder *builder, const struct tt_emit_request *request);
ncclResult_t tt_emit_mapped(struct tt_builder *builder, const struct tt_emit_request *request);
/* The same algorithm's sends and receives. Reports a rank that is its own partner, or one of another node. */
ncclResult_t tt_emit_mapped_message(struct tt_builder *builder, const struct tt_emit_request *request);
ncclResult_t tt_emit_point_to_point(struct tt_builder *builder, const struct tt_emit_request *request);

/* Where all ranks talk to all: peer i of a rank is rank + 1 + i, so that ranks start with different peers. */
void tt_emit_all_peers(struct tt_builder *builder, const struct tt_emit_request *request);
/* The index of `rank` among those. */
uint16_t tt_emit_peer_index(const struct tt_emit_request *request, int32_t rank);

#endif
