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
};

/* Takes part of all ranks, and returns when all are connected to the bootstrap and agree. *comm is NULL on failure. */
ncclResult_t tt_comm_create(const struct tt_create *create, struct ncclComm **comm);
/* Frees everything. Local: waits for nobody. */
void tt_comm_destroy(struct ncclComm *comm);

/* The device backend that TUTTI_DEVICE names. */
ncclResult_t tt_device_choose(const struct tt_device **device);

#endif
