/* Inside the validator: the state of a proof, that is of all ranks running their programs on symbols.
 *
 *   proof_value.c       what a chunk holds: which inputs, reduced in which order
 *   proof_memory.c      a rank's buffers, in-place aliasing, races between its strands
 *   proof_connection.c  bounded FIFOs between ranks
 *   proof_network.c     networks that reduce
 *   proof_shared.c      memory that several ranks share
 *   proof_members.c     user buffers of other ranks
 *   proof_clock.c       what happened before what
 *   proof_instruction.c one repetition of one instruction
 *   proof_definition.c  what each collective must do
 *   validate.c          the order in which ranks and strands advance
 *
 * Functions that return bool return false once the proof has failed; the reason is then in `why`. */
#ifndef TT_PROGRAM_PROOF_H
#define TT_PROGRAM_PROOF_H

#include <stdbool.h>
#include "program/validate.h"

/* A symbolic value. Instead of the tree of its contributions it carries two 64-bit hashes: `order`, of the tree (left
 * fold, in operand order), and `sum`, the sum of the contributions' hashes, which with `count` stands for the multiset.
 * Different values have equal hashes with a probability of about 2^-64. count 0: no value. */
struct tt_value {
  uint64_t order, sum;
  uint32_t count;
  uint32_t part, loop;
  uint8_t scaled; /* how often it was read from the input of a reducing collective */
  uint8_t final;  /* instructions with TT_FLAG_FINAL that it went through */
};

/* What a slot holds: one value, or those of a list. */
struct tt_message {
  struct tt_value value;
  struct tt_value *more; /* of pieces 1 .. count - 1; NULL where there are none. Freed by who pops the message */
  uint32_t count;
  uint32_t step, parts; /* of the sender: together with the values' part and loop they tell the length */
};

/* One direction between two ranks, lasting for the whole sequence of steps. */
struct tt_connection {
  int32_t from, to;
  uint32_t slots;
  uint32_t first, count;    /* slots filled */
  int64_t sender, receiver; /* the strand that waits for room, or for a message; -1: none */
  struct tt_message *messages;
  uint32_t *clocks;
};

struct tt_connections {
  struct tt_connection **table; /* open addressing; capacity is a power of two */
  size_t capacity, count;
};

struct tt_cell {
  struct tt_value value;
  uint64_t written; /* 2 * the event that last wrote it, plus one if as the reduction's destination */
};

/* A rank's buffers during one step. Chunks of user buffers have a cell for each loop; scratch is used again by each. */
struct tt_memory {
  struct tt_cell *cells;
  uint32_t *accesses; /* watched ranks: for each cell who wrote it last and when, and when each strand read it */
  uint32_t output_base, scratch_base; /* first block of the output and of scratch */
  uint32_t input_base;
  bool reached; /* by others: `accesses` are of all strands that have clocks, not of the rank's own */
};

struct tt_semaphore {
  uint64_t value;
  int64_t waiter;
  uint32_t *clocks; /* of all signals so far */
  size_t signals, waits, room;
};

struct tt_proof_strand {
  int32_t rank;
  uint32_t index;
  uint64_t loop;
  uint32_t instruction, repetition;
  uint32_t satisfied; /* operands of the current instruction known not to block */
  uint32_t time;      /* events so far, over all steps */
  uint32_t *clock;
};

struct tt_proof_rank {
  int step;
  const struct tt_program *program;
  struct tt_memory memory;
  struct tt_shared *shared;     /* what members touch: this rank's copy of memory that they share; NULL: no members */
  struct tt_connection **links; /* a receiving and a sending one for each peer of the program, found at first use */
  struct tt_semaphore *semaphores;
  uint32_t live; /* strands still running */
  int64_t watch; /* first entry of its strands in clocks; -1: not watched */
};

/* All-reduce: what the definition wants of a part and what the first rank that was done had. */
struct tt_reference {
  uint64_t sum, order;
  bool summed, ordered;
};

struct tt_proof {
  int nranks, nsteps;
  const struct tt_validate_step *steps;
  uint32_t slots;
  bool same_everywhere;
  uint64_t seed, random;
  uint32_t max_strands;
  struct tt_proof_rank *ranks;
  struct tt_proof_strand *strands; /* max_strands a rank */
  uint32_t *ready;                 /* strands that can be tried */
  uint32_t nready;
  int unfinished; /* ranks */
  struct tt_connections connections;
  struct tt_proof_network *networks;
  int32_t nnetworks;
  uint32_t width; /* entries of a clock: strands of watched ranks */
  uint32_t *clocks, *reduced_clock, *moved_clock, *network_clock;
  struct tt_reference **references; /* by step: parts x loops */
  struct tt_value *results;         /* of a reduction's pieces; as many as the longest list has */
  uint32_t most_pieces;
  uint64_t event;
  char *why;
  size_t why_size;
};

/* Writes the reason and returns false. `strand` NULL: not about a strand. */
bool tt_proof_fail(struct tt_proof *proof, const struct tt_proof_strand *strand, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool tt_proof_out_of_memory(struct tt_proof *proof);

/* proof_value.c */
uint64_t tt_proof_mix(uint64_t bits);
struct tt_value tt_proof_leaf(int step, int32_t rank, uint32_t block, uint32_t part, uint32_t loop);
uint64_t tt_proof_leaf_sum(int step, int32_t rank, uint32_t block, uint32_t part, uint32_t loop);
/* Folds the next input of a reduction into `value`, which holds none before the first. */
bool tt_proof_fold(struct tt_proof *proof, const struct tt_proof_strand *strand, struct tt_value *value,
                   const struct tt_value *input);

/* proof_memory.c */
bool tt_proof_memory_start(struct tt_proof *proof, int32_t rank);
void tt_proof_memory_end(struct tt_memory *memory);
/* Marks the chunks that the instruction writes, so that reads can be held against them. */
bool tt_proof_mark_write(struct tt_proof *proof, const struct tt_proof_strand *strand, const struct tt_operand *operand,
                         uint32_t chunk);
/* `clock` is what the access is known to follow. */
bool tt_proof_read(struct tt_proof *proof, const struct tt_proof_strand *strand, const struct tt_operand *operand,
                   uint32_t chunk, const uint32_t *clock, struct tt_value *value);
bool tt_proof_write(struct tt_proof *proof, const struct tt_proof_strand *strand, const struct tt_operand *operand,
                    uint32_t chunk, const uint32_t *clock, const struct tt_value *value);
/* What a chunk of the output holds; NULL if nothing was written and it is no input either. */
bool tt_proof_output(const struct tt_proof *proof, int32_t rank, uint32_t chunk, uint64_t loop, struct tt_value *value);

/* proof_shared.c */
bool tt_proof_is_shared(const struct tt_operand *operand);
/* Whether all members of a rank's program name the same members. */
bool tt_proof_shared_agree(struct tt_proof *proof, int step, int32_t rank);
/* Begins and ends the rank's copy; free at the end of a proof that failed. */
bool tt_proof_shared_start(struct tt_proof *proof, int32_t rank);
bool tt_proof_shared_end(struct tt_proof *proof, int32_t rank);
void tt_proof_shared_free(struct tt_proof_rank *state);
/* Those of proof_memory.c for TT_SHARED and TT_MULTICAST. */
bool tt_proof_shared_mark(struct tt_proof *proof, const struct tt_proof_strand *strand,
                          const struct tt_operand *operand, uint32_t chunk);
bool tt_proof_shared_read(struct tt_proof *proof, const struct tt_proof_strand *strand,
                          const struct tt_operand *operand, uint32_t chunk, const uint32_t *clock,
                          struct tt_value *value);
bool tt_proof_shared_write(struct tt_proof *proof, const struct tt_proof_strand *strand,
                           const struct tt_operand *operand, uint32_t chunk, const uint32_t *clock,
                           const struct tt_value *value);

/* Whether the memory of `owner` that members may touch is there for this operation, as far as `clock` knows (NULL: that
 * does not matter), and that the strand touches it at `time`. */
bool tt_proof_shared_open(struct tt_proof *proof, const struct tt_proof_strand *strand,
                          const struct tt_operand *operand, uint32_t chunk, int32_t owner, const uint32_t *clock);
void tt_proof_shared_touch(struct tt_proof *proof, const struct tt_proof_strand *strand, int32_t owner, uint32_t time);

/* proof_members.c */
/* Whether the operand is of a member's user buffer; whether a program has such ones. */
bool tt_proof_is_members(const struct tt_operand *operand);
bool tt_proof_uses_members(const struct tt_program *program);
/* Whether any member of the rank's program uses members' buffers in this step. */
bool tt_proof_is_reached(const struct tt_proof *proof, int step, int32_t rank);
/* Whose user buffer a local operand names, and which of the two: TT_INPUT or TT_OUTPUT; the operand's own where it is
 * no member's. */
int32_t tt_proof_owner(const struct tt_proof *proof, const struct tt_proof_strand *strand,
                       const struct tt_operand *operand, uint8_t *buffer);

/* proof_connection.c */
/* From one rank or network to another, as programs name their peers; NULL if memory is short. */
struct tt_connection *tt_proof_connection(struct tt_proof *proof, int32_t from, int32_t to);
/* The connection of a strand's operand; NULL if memory is short, which is reported. */
struct tt_connection *tt_proof_link(struct tt_proof *proof, const struct tt_proof_strand *strand,
                                    const struct tt_operand *operand);
void tt_proof_push(struct tt_proof *proof, struct tt_connection *connection, const struct tt_message *message,
                   const uint32_t *clock);
/* The oldest message and its clock; valid until the next push. */
struct tt_message tt_proof_pop(struct tt_proof *proof, struct tt_connection *connection, const uint32_t **clock);
bool tt_proof_no_leftover(struct tt_proof *proof);
void tt_proof_connections_free(struct tt_connections *connections);

/* proof_network.c */
/* Who the members of each network are. */
bool tt_proof_networks_start(struct tt_proof *proof);
void tt_proof_networks_free(struct tt_proof *proof);
/* Lets the networks that the instruction exchanged messages with reduce all that they can. */
bool tt_proof_networks_advance(struct tt_proof *proof, const struct tt_proof_strand *strand,
                               const struct tt_instruction *instruction);
/* "rank 3", "network 0". */
const char *tt_proof_peer_name(int32_t peer, char name[32]);

/* proof_clock.c */
/* Chooses the ranks to watch and creates all clocks. */
bool tt_proof_clocks_start(struct tt_proof *proof);
void tt_proof_clock_copy(const struct tt_proof *proof, uint32_t *to, const uint32_t *from);
/* Makes `to` follow all that `from` follows. */
void tt_proof_clock_join(const struct tt_proof *proof, uint32_t *to, const uint32_t *from);
/* The strand's entry in a clock; NULL if its rank is not watched. */
uint32_t *tt_proof_clock_own(const struct tt_proof *proof, const struct tt_proof_strand *strand, uint32_t *clock);
/* All strands of a rank follow each other: between two steps. */
void tt_proof_clock_barrier(struct tt_proof *proof, int32_t rank);

/* proof_instruction.c */
enum tt_progress { TT_BLOCKED, TT_MOVED, TT_FINISHED, TT_FAILED };
enum tt_progress tt_proof_advance(struct tt_proof *proof, struct tt_proof_strand *strand);

/* proof_definition.c */
bool tt_definition_reduces(int collective);
/* Of two ranks, others taking no part: send, receive, and both at once. */
bool tt_definition_is_message(int collective);
/* Blocks that the rank's input and output have by the collective's definition; false: there is no such collective. */
bool tt_definition_blocks(const struct tt_program *program, uint32_t *input_blocks, uint32_t *output_blocks);
/* The block of the output (all-gather, gather) or of the input (reduce-scatter, scatter) that the smaller buffer is
 * when in place. */
uint32_t tt_definition_in_place_block(const struct tt_program *program, bool *inside_output);
/* Checks all that a rank holds at the end of a step. */
bool tt_definition_met(struct tt_proof *proof, int32_t rank);

/* validate.c */
void tt_proof_wake(struct tt_proof *proof, int64_t *waiter);
static inline int64_t tt_proof_strand_id(const struct tt_proof *proof, const struct tt_proof_strand *strand)
{
  return strand - proof->strands;
}

#endif
