/* The simulator: what the programs of all ranks take, by a description of what messages and instructions cost. It runs
 * no data and proves nothing: programs are taken to have passed the validator.
 *
 * Links follow LogGP (Alexandrov et al. 1995): a message of k bytes occupies its link for gap + k * byte, and is there
 * `latency` after that. A freed slot is seen by the sender one latency later. An instruction begins when all its
 * messages have arrived and all its sends have room; when it ends, its messages start and its slots are free. */
#ifndef TT_PROGRAM_SIMULATE_H
#define TT_PROGRAM_SIMULATE_H

#include <stdbool.h>
#include "tutti/device.h"

/* Who has a link's bandwidth: each connection by itself; or all that a rank, or a node, sends over links of this class
 * together, and likewise all that it receives. */
enum tt_simulate_sharing { TT_SHARE_NONE, TT_SHARE_RANK, TT_SHARE_NODE };

struct tt_simulate_link {
  double latency; /* all times in nanoseconds, or in whatever unit the caller thinks */
  double gap;     /* for each message */
  double byte;    /* for each byte */
  enum tt_simulate_sharing sharing;
};

struct tt_simulate_cost {
  struct tt_simulate_link near;    /* between ranks of a node */
  struct tt_simulate_link far;     /* between nodes */
  struct tt_simulate_link network; /* to a network that reduces; the latency is there and back */
  /* An instruction with operands in buffers of other members takes the latency of a link to them longer, and bytes for
   * each of them. One with operands in TT_MULTICAST takes `latency` longer, and gap and bytes for each of them. */
  struct tt_simulate_link multicast;
  double instruction; /* for each repetition of an instruction with operands */
  double message;     /* for each message that it receives or sends */
  double semaphore;   /* signal, wait */
  double reduce_byte; /* for each byte of an input of a reduction of several */
  double copy_byte;   /* for each byte of the only input of a reduction, of a result, or of a move */
};

/* All ranks' programs on one channel. */
struct tt_simulate_channel {
  const struct tt_program *const *programs; /* nranks; NULL for a rank that takes no part */
  struct tt_geometry geometry;
};

struct tt_simulate_input {
  int nranks;
  const int32_t *node; /* of each rank, from 0; NULL: all on one */
  const struct tt_simulate_channel *channels;
  int nchannels;
  uint32_t slots; /* of each connection; 0: TT_SLOTS */
  size_t element_bytes;
  const struct tt_simulate_cost *cost;
  /* false: strands run concurrently. true: a rank executes the instructions of a channel one at a time, of those that
   * can go on the first in the program, and begins a loop when it is through with the one before. */
  bool sequential;
  bool record; /* spans and flights too */
};

/* One repetition of an instruction in a loop. The strand waited for it from `arrived` to `start`. */
struct tt_simulate_span {
  int32_t channel, rank;
  uint32_t strand, instruction, repetition; /* the instruction's index in the program */
  uint64_t loop;
  double arrived, start, end;
};

/* One message, from the end of the instruction that sent it until it is there. To a network (`to` is below 0): until
 * the result could be there, if this message is the last of its step. */
struct tt_simulate_flight {
  int32_t channel, from, to;
  size_t bytes;
  double start, end;
};

struct tt_simulate_rank {
  double finish;      /* its last instruction ended */
  uint64_t messages;  /* sent */
  uint64_t bytes;     /* in them, and read from or written to other members' buffers */
  uint64_t multicast; /* bytes that it read or stored through the multicast address */
};

struct tt_simulation {
  double time; /* the last rank has finished */
  struct tt_simulate_rank *ranks;
  struct tt_simulate_span *spans; /* in the order in which they ended */
  size_t nspans;
  struct tt_simulate_flight *flights; /* in the order in which they started */
  size_t nflights;
};

/* Deterministic. A deadlock is ncclInternalError, naming rank, strand, instruction and what it waits for. On success
 * the caller frees with tt_simulation_free. */
ncclResult_t tt_simulate(const struct tt_simulate_input *input, struct tt_simulation *out);
void tt_simulation_free(struct tt_simulation *simulation);

/* Cost in steps: a message takes one, on a link of its own, whatever its length; all else takes nothing. */
struct tt_simulate_cost tt_simulate_steps(void);
/* Cost for pictures: an instruction takes one, all else nothing. */
struct tt_simulate_cost tt_simulate_instructions(void);

/* `loops` loops of a channel, each part `chunk` elements long. */
struct tt_geometry tt_simulate_even(uint32_t parts, uint64_t loops, size_t chunk);

#endif
