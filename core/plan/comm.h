/* The communicator: what one rank knows and owns. Made by the API layer, used by the plan. */
#ifndef TT_PLAN_COMM_H
#define TT_PLAN_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include "nccl.h"
#include "base/zone.h"
#include "bootstrap/bootstrap.h"
#include "connect/connect.h"
#include "health/health.h"
#include "plan/multicast.h"
#include "plan/pending.h"
#include "plan/programs.h"
#include "plugin/collnet.h"
#include "transport/transport.h"
#include "tuning/tuning.h"
#include "tutti/device.h"

struct tt_agreed;   /* plan/agreed.h */
struct tt_captured; /* plan/captured.h */
struct tt_context;
struct tt_gate;          /* plan/gate.h */
struct tt_graphs;        /* plan/graphs.h */
struct tt_handle;        /* api/handle.c */
struct tt_machine;       /* api/machine.h */
struct tt_monitor;       /* plan/monitor.h */
struct tt_offers;        /* plan/offers.h */
struct tt_proxy_thread;  /* proxy/thread.h */
struct tt_redops;        /* api/redop.c */
struct tt_registrations; /* api/register.c */
struct tt_scratch;       /* plan/scratch.h */
struct tt_shared_memory; /* plan/shared.h */

/* One call of the user, waiting for the end of its group. */
struct tt_task {
  struct tt_task *next;
  int collective; /* TT_FUNC_SEND and TT_FUNC_RECV for point to point */
  const void *input;
  void *output;
  size_t count; /* elements, as nccl.h defines it for the call */
  ncclDataType_t datatype;
  ncclRedOp_t op;
  bool scaled;          /* inputs are multiplied by `scale` first: an op of ncclRedOpCreatePreMulSum */
  uint64_t scale;       /* bits of struct tt_reduction's scale, for the type */
  const void *scale_at; /* where the device finds it when the operation runs; NULL: it is `scale` */
  int root;             /* or the peer */
  void *stream;
  uint64_t op_count; /* of tt_plan_number */
};

/* Whether a collective of a size would use buffers of members, as the cost model has it (tt_plan_prefers_mapped). */
struct tt_preference {
  size_t bytes;
  uint32_t question; /* the collective, and what may be used; 0: none */
  bool mapped;
};

/* What a report may read of a communicator: only its name and numbers, before it is made and while it ends. */
enum tt_stage {
  TT_STAGE_JOINING, /* meets the other ranks */
  TT_STAGE_AGREEING,
  TT_STAGE_SHARING,   /* makes memory and learns who shares the host */
  TT_STAGE_SEARCHING, /* sees its machine, finds rings and trees */
  TT_STAGE_TUNING,
  TT_STAGE_LAST_BARRIER,
  TT_STAGE_READY,
  TT_STAGE_ENDING,
};

enum { TT_COMM_IDLE, TT_COMM_IN_GROUP, TT_COMM_IN_BACKGROUND, TT_COMM_ABANDONED };

struct ncclComm {
  struct tt_handle *handle;     /* api/handle.c: its entry in the table of live handles; NULL: none yet */
  struct ncclComm *report_next; /* report/report.c, which has a lock for it */
  int process;                  /* that made it, and has its threads: its id, for messages */
  unsigned forks;               /* api/handle.c: that there had been before, which tells it from its children */
  bool reported;                /* it is on that list */
  uint64_t report_passes;       /* a report's own */
  _Atomic int stage;            /* of its life, for reports: enum tt_stage */
  bool left;                    /* it ends, and the others know: its works have ended, its memory may still be there */
  bool dismantled;              /* it could not be made, or ends: nothing is left but itself and its failure */
  struct tt_zone zone;          /* what lives as long as the communicator */
  struct tt_pool *pool;         /* tasks, works, and what a group needs while it runs */
  struct tt_comm_undo *undo;    /* of tt_comm_at_end */
  int rank, nranks, device_index;
  uint64_t id_hash;    /* names the communicator in logs */
  uint64_t number;     /* tells it from all others, which an id of NCCL_COMM_ID does not; alike on all ranks */
  char *name;          /* config.commName, or NULL */
  char *net_name;      /* config.netName, or NULL */
  ncclConfig_t config; /* as it was read, for children that have none; names are this communicator's own */
  bool check_pointers; /* NCCL_CHECK_POINTERS, where the device can tell */

  const struct tt_device *device;
  struct tt_context *context; /* device/context.h; NULL for a device without contexts */
  struct tt_net *net;         /* NULL when there is no network */
  struct tt_collnet *collnet; /* NULL when no network reduces */
  struct tt_collnet_offer collnet_offer;
  int collnet_networks, collnet_channels;
  struct tt_bootstrap *bootstrap;
  struct tt_peer_info *peers;
  struct tt_transport_env *env;
  struct tt_connect *connect;
  struct tt_health *health;
  struct tt_tuning *tuning;
  struct tt_tuner *tuner;   /* NULL when none has a say */
  struct tt_agreed *agreed; /* its choices */
  struct tt_programs *programs;
  struct tt_preference preferences[32]; /* those asked last */
  struct tt_kept *kept;                 /* plan/kept.h; NULL: nothing yet */
  struct tt_machine *machine;           /* api/machine.h; NULL for one rank */
  int nnodes;                           /* machines: sets of ranks that reach each other without a network */
  int local_ranks;                      /* on this rank's, itself included */
  int32_t *node;                        /* of each rank, from 0 */
  bool *far;          /* of each rank, on a device with memory of its own: by network from this one; NULL: none */
  int far_channels;   /* of a send to such a rank, or a receive, at most */
  int32_t *rounds[2]; /* in which point-to-point operations with each rank come: [0] receives, [1] sends */

  struct tt_multicast multicast;
  struct tt_shared_memory *shared; /* NULL if no algorithm uses any */
  struct tt_scratch *scratch;      /* of the collectives, which run one after another */
  _Atomic size_t scratch_bytes;    /* of all of it */
  /* Of a device with streams, from the first launch on; else NULL. */
  struct tt_monitor *_Atomic monitor;
  struct tt_proxy_thread *carrier; /* plan/carrier.h; who launches, drains and ends has it, one at a time */
  struct tt_gate *gate;
  struct tt_captured *captured; /* plan/captured.h; NULL: it cannot have any */
  struct tt_offers *offers;     /* plan/offers.h, likewise */
  struct tt_graphs *graphs;     /* plan/graphs.h; NULL: none ever */

  _Atomic uint64_t op_count; /* operations called, as logs and reports number them */
  uint64_t message_number;   /* of the open group's sends and receives */
  bool message_numbered;
  struct tt_pending pending;          /* what the running group is at */
  _Atomic uint64_t collectives;       /* collectives launched: their sequence numbers */
  uint64_t *sends, *recvs;            /* point-to-point operations launched, by peer */
  struct tt_task *tasks, **tasks_end; /* of the open group */
  int ntasks;
  struct ncclComm *group_next; /* list of the group's communicators */
  /* TT_COMM_IN_GROUP: on the list of a thread's open or running group, or being made by one, which clears it as the
   * last thing it does. TT_COMM_IN_BACKGROUND: the same, and the group runs on a thread of the library.
   * TT_COMM_ABANDONED: either, and was aborted meanwhile, so that the group frees it. */
  _Atomic int in_group;

  /* On host streams (plan/host_stream.h): items that ever entered, and that are done, which their lock guards; how many
   * are left; and whether the last one frees the communicator. */
  uint64_t host_entered, host_done;
  _Atomic uint32_t host_pending;
  bool host_abandoned;

  _Atomic int finalized, revoked;
  struct tt_redops *redops;                 /* NULL: none yet */
  struct tt_registrations *registrations;   /* NULL: none yet */
  _Atomic uint64_t turns_taken, turns_done; /* api/turn.h */
  _Atomic uint64_t splits; /* calls of ncclCommSplit, also those that were refused: the same on all ranks */
  uint64_t shrinks;        /* in the turns of calls: those that this rank called the others to (api/survivors.c) */
  pthread_mutex_t children_lock;
  struct ncclComm *children; /* those being made, by children_next: who aborts the parent ends their making */
  struct ncclComm *children_next;
  _Atomic uint32_t abort;  /* non-zero ends every wait */
  _Atomic int async_error; /* first failure, or ncclSuccess */
  pthread_mutex_t error_lock;
  char error_text[1024];
};

/* Whoever acquires something for the communicator's whole life says here how it is given up. Order is the reverse of
 * these calls; `end` may find that there is nothing (yet), so that it can be registered early where the order asks for
 * it. If there is no memory to note it, `end` is called at once. One thread at a time. */
typedef void tt_comm_end(struct ncclComm *comm);
ncclResult_t tt_comm_at_end(struct ncclComm *comm, tt_comm_end *end);
/* Gives up everything. */
void tt_comm_undo(struct ncclComm *comm);

/* Keeps the first failure of a communicator, with the calling thread's last error sentence. Returns whether this was
 * the first. */
bool tt_comm_note(struct ncclComm *comm, ncclResult_t result);
/* Tells the other ranks what was noted. May wait a little for them. */
void tt_comm_tell(struct ncclComm *comm);
/* Both: after a first failure the others are told. Returns `result`. */
ncclResult_t tt_comm_fail(struct ncclComm *comm, ncclResult_t result);

#endif
