/* What a communicator's running group is at, for reports: other threads look while one plans, connects and drives.
 *
 * Who runs the group says where its works are, and takes that back before they are freed. Both cost a few atomic stores
 * and no lock; taking it back waits for who is just looking, who in turn waits for nothing meanwhile. What a looker
 * reads is either constant while the works are published or atomic. */
#ifndef TT_PLAN_PENDING_H
#define TT_PLAN_PENDING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tutti/device.h"

struct ncclComm;
struct tt_connector;   /* transport/transport.h */
struct tt_watch_clock; /* plan/watch.h */

enum tt_pending_phase {
  TT_PENDING_NONE,       /* nothing runs, or a device does that is asked itself */
  TT_PENDING_CONNECTING, /* planned; what is missing of connections is being made */
  TT_PENDING_GATED,      /* ready, and waits for other ranks of this process (plan/gate.h) */
  TT_PENDING_RUNNING,    /* driven by a thread */
};

/* A communicator's. All zero at first. */
struct tt_pending {
  _Atomic int phase;   /* enum tt_pending_phase; what follows is valid while it is not NONE */
  _Atomic int lookers; /* threads in tt_pending_look */
  struct tt_work *const *works;
  int nworks;
  uint64_t since;                     /* when the group was planned, on the clock of tt_timer_ns */
  const struct tt_watch_clock *clock; /* of RUNNING */
};

/* For who runs a group; one thread at a time. */
void tt_pending_begin(struct ncclComm *comm, struct tt_work *const *works, int nworks); /* CONNECTING */
void tt_pending_gate(struct ncclComm *comm);                                            /* GATED, if begun */
void tt_pending_run(struct ncclComm *comm, const struct tt_watch_clock *clock);         /* RUNNING, if begun */
void tt_pending_end(struct ncclComm *comm);                                             /* NONE; may be so already */

/* One end of a connection that an operation uses. */
struct tt_pending_end_state {
  const struct tt_connector *connector;
  int channel;
  bool send;
  uint64_t done, steps; /* of this operation: posted by a sender, taken by a receiver; in all */
  bool awaited;         /* the operation cannot go on: nothing is there, or there is no room */
};

struct tt_pending_operation {
  const struct tt_work *work;
  bool waits_its_turn; /* for one before it in the group */
  const struct tt_pending_end_state *ends;
  int nends; /* 0 unless RUNNING */
};

/* A group as a whole. */
struct tt_pending_group {
  enum tt_pending_phase phase;
  uint64_t since;
  uint64_t idle_since, looked, passes; /* of struct tt_watch_clock; 0 unless RUNNING */
  int operations, complete;
};

typedef void tt_pending_visit(void *context, const struct tt_pending_operation *operation);
/* Visits the first `most` operations that are not complete, in the order in which they are planned. One thread at a
 * time; `visit` must not wait for anything. With `most` 0 only *group is filled. The communicator cannot be destroyed
 * meanwhile. */
void tt_pending_look(struct ncclComm *comm, int most, struct tt_pending_group *group, tt_pending_visit *visit,
                     void *context);

#endif
