/* Making a machine's team (tutti/device.h): its ranks go through the steps together, and what fails on one ends it on
 * all. */
#ifndef TT_PLAN_TEAM_H
#define TT_PLAN_TEAM_H

#include <stddef.h>
#include "nccl.h"

struct ncclComm;
struct tt_device_team;

struct tt_team {
  struct tt_device_team *handle; /* NULL: none */
  void *own, *all;               /* this rank's copy; the multicast address */
};

/* Takes part of all ranks, where comm->multicast.possible: each machine makes a team of its ranks (comm->node), of
 * which the first creates it, with `bytes` for each copy. Fails on all ranks if it does on one, and then there is no
 * team. */
ncclResult_t tt_team_join(struct ncclComm *comm, size_t bytes, struct tt_team *team);
/* Before the device's context is closed. */
void tt_team_leave(struct ncclComm *comm, struct tt_team *team);

#endif
