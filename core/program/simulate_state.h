/* Inside the simulator: the state of all ranks at a time.
 *
 *   simulate_link.c   connections, networks that reduce, and how long messages travel
 *   simulate_cost.c   how long instructions take
 *   simulate_start.c  from the input to the state before anything has happened
 *   simulate.c        events in the order of time */
#ifndef TT_PROGRAM_SIMULATE_STATE_H
#define TT_PROGRAM_SIMULATE_STATE_H

#include "program/simulate.h"

/* Nobody waits. */
#define TT_SIM_NONE UINT32_MAX

/* One direction between two ranks, on one channel. times[k % slots] is when message k arrives, or, once it was taken,
 * when its slot is seen to be free. */
struct tt_sim_connection {
  int32_t channel, from, to;
  uint64_t sent, landed, taken; /* landed: it is known when it arrives */
  double busy;                  /* until then a message is on the link; where the link is its own */
  uint32_t sender, receiver;    /* strands that wait */
  double times[];
};

/* A message that has left its sender's port and not reached the receiver's. */
struct tt_sim_journey {
  struct tt_sim_connection *link;
  size_t bytes;
  double sent;
  uint32_t next; /* that is free */
};

struct tt_sim_connections {
  struct tt_sim_connection **table; /* open addressing; capacity is a power of two */
  size_t capacity, count;
};

struct tt_sim_network;

/* A rank's place at a network that reduces. */
struct tt_sim_member {
  struct tt_sim_network *network;
  uint64_t sent, taken;
  double busy;
  uint32_t sender, receiver;
};

/* A network that reduces, on one channel: step k is reduced once all members have sent to it and have room for its
 * result. */
struct tt_sim_network {
  uint32_t nmembers;
  struct tt_sim_member *members;
  uint64_t reduced; /* steps */
  uint32_t full;    /* members without room */
  uint32_t *sent;   /* by step % slots: members that have sent to it */
  double *sent_at;  /* by step % slots: when the last of those messages is there */
  double *result;   /* by step % slots: when the result of a step that was reduced is there */
};

struct tt_sim_semaphore {
  uint64_t value;
  uint32_t waiter;
};

/* TRYING: it waits, or is about to look. READY: sequential: it could go on. BUSY: an instruction runs. ENDED:
 * sequential: through with the loop. */
enum tt_sim_state { TT_SIM_TRYING, TT_SIM_READY, TT_SIM_BUSY, TT_SIM_ENDED, TT_SIM_DONE };

struct tt_sim_strand {
  uint32_t rank, index;
  enum tt_sim_state state;
  uint64_t loop;
  uint32_t instruction, repetition;
  uint32_t satisfied; /* operands of the instruction known not to wait */
  double arrived, start;
};

/* A rank on a channel. */
struct tt_sim_rank {
  int32_t channel, rank;
  const struct tt_program *program; /* NULL: takes no part */
  uint32_t first_strand;
  struct tt_sim_connection **links; /* receiving and sending, by peer; found at first use */
  struct tt_sim_member **places;    /* by peer, where it is a network */
  struct tt_sim_semaphore *semaphores;
  uint32_t live, ended; /* strands */
  bool busy, dispatched;
};

enum tt_sim_event_kind { TT_SIM_FINISH, TT_SIM_TRY, TT_SIM_LAND, TT_SIM_DISPATCH };

struct tt_sim_event {
  double time;
  uint64_t order; /* among those of one time: dispatches last, else as they were made */
  uint32_t target;
  uint32_t kind;
};

struct tt_sim {
  const struct tt_simulate_input *input;
  struct tt_simulation *out;
  uint32_t slots;
  int32_t nnodes;
  struct tt_sim_rank *ranks; /* by channel, then rank */
  struct tt_sim_strand *strands;
  uint32_t nstrands, unfinished;
  struct tt_sim_connections connections;
  struct tt_sim_network *networks; /* by channel, then number; as many a channel as any has */
  uint32_t nnetworks;              /* on a channel */
  double *ports;                   /* until when each is busy */
  struct tt_sim_journey *journeys;
  size_t njourneys, journey_room;
  uint32_t free_journey; /* TT_SIM_NONE: none of them */
  struct tt_sim_event *heap;
  size_t nevents, event_room;
  uint64_t made; /* events */
  size_t span_room, flight_room;
  bool failed; /* out of memory, reported */
};

static inline const struct tt_instruction *tt_sim_current(const struct tt_sim *sim, const struct tt_sim_strand *strand)
{
  const struct tt_program *program = sim->ranks[strand->rank].program;
  return &program->instructions[program->strands[strand->index].first_instruction + strand->instruction];
}

/* simulate.c */
void tt_sim_schedule(struct tt_sim *sim, double time, enum tt_sim_event_kind kind, uint32_t target);
/* The strand that waits in *waiter, if any, looks again at `time`. */
void tt_sim_wake(struct tt_sim *sim, uint32_t *waiter, double time);
/* Makes room for one more entry of an array; NULL if memory is short, which is reported. */
void *tt_sim_grow(struct tt_sim *sim, void *array, size_t count, size_t *room, size_t size);

/* simulate_start.c */
ncclResult_t tt_sim_start(struct tt_sim *sim);
void tt_sim_end(struct tt_sim *sim);

/* simulate_cost.c */
/* Bytes of an operand in a message. */
size_t tt_sim_bytes(const struct tt_sim *sim, const struct tt_sim_strand *strand, const struct tt_operand *operand);
/* Whether the operand is of another member's buffer. */
bool tt_sim_is_remote(const struct tt_program *program, const struct tt_operand *operand);
double tt_sim_duration(const struct tt_sim *sim, const struct tt_sim_strand *strand,
                       const struct tt_instruction *instruction);

/* simulate_link.c */
/* Whether a strand's operand need not wait at `now`. If it must, the strand will be woken. */
bool tt_sim_passes(struct tt_sim *sim, uint32_t strand, const struct tt_operand *operand, double now);
/* The instruction has ended: its message starts, or its slot is free. */
void tt_sim_send(struct tt_sim *sim, const struct tt_sim_strand *strand, const struct tt_operand *operand, double now);
/* A journey's message reaches its receiver's port. */
void tt_sim_land(struct tt_sim *sim, uint32_t journey, double now);
void tt_sim_take(struct tt_sim *sim, const struct tt_sim_strand *strand, const struct tt_operand *operand, double now);

#endif
