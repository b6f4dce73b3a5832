/* Making and ending communicators. */
#ifndef TT_API_CREATE_H
#define TT_API_CREATE_H

#include "nccl.h"
#include "plan/comm.h"

struct tt_create {
  const char *function; /* that makes it, for logs */
  ncclUniqueId id;
  const ncclUniqueId *ids; /* NULL: the one above is all */
  int nids;
  int rank, nranks;
  int device;          /* -1: the device that the calling thread has chosen, if its kind knows of that; else the rank's
                          index among those of its host */
  ncclConfig_t config; /* read and checked */
  /* Of a parent, whose memory may be shared if all ranks can, and the ranks' numbers in it; NULL: none. */
  struct tt_resources *resources;
  const int *numbers;
  struct tt_bootstrap_probe *probe; /* asked while the ranks meet; NULL: none */
};

/* Makes the communicator and its handle, alone. What needs the other ranks is not there yet. */
ncclResult_t tt_comm_alloc(const struct tt_create *create, struct ncclComm **comm);
/* The rest: takes part of all ranks, and returns when all are connected to the bootstrap and agree. A failure is also
 * the communicator's, which stays to be destroyed. */
ncclResult_t tt_comm_init(struct ncclComm *comm, const struct tt_create *create);
/* destroy.c. Frees everything, unless graphs hold works of it: then it is freed when these are gone (parked.h).
 * Local: waits for nobody. The handle was taken, and nobody holds it. */
void tt_comm_destroy(struct ncclComm *comm);
/* Gives up all that it shares with others, once; it stays, with its failure. */
void tt_comm_dismantle(struct ncclComm *comm);
/* Takes the handle, waits for those that hold it, and frees everything; unless another thread took it and does so. */
void tt_comm_discard(struct ncclComm *comm);

/* The device backend that TUTTI_DEVICE names. */
ncclResult_t tt_device_choose(const struct tt_device **device);

#endif
