/* Collnet plugins as the core sees them: networks that reduce, in a library that may also hold a net plugin, whatever
 * ABI version it speaks, presented as the newest.
 *
 * A `struct tt_collnet` is one communicator's use of one loaded library. Which libraries there are is the net plugins'
 * list (NCCL_NET_PLUGIN and Tutti's own directory); the first that holds a collnet plugin with devices is taken. That
 * there is none is no error.
 *
 * Choosing, per communicator:
 *     tt_collnet_open(id, &collnet, offer);           local; *collnet may be NULL
 *     all ranks gather their offers
 *     tt_collnet_agree(offers, nranks, &agreed, why)  the same answer on all ranks
 *
 * Threads: as plugin/net.h says: tt_collnet_open ... tt_collnet_get_properties take the process-wide lock, the others
 * call straight into the plugin. */
#ifndef TT_PLUGIN_COLLNET_H
#define TT_PLUGIN_COLLNET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "tutti/collnet.h"

struct tt_collnet;

/* What a rank has, to be all-gathered. Plain bytes: all ranks are of one build. */
struct tt_collnet_offer {
  char name[64];       /* "" if it has none */
  char reason[192];    /* why it has none */
  int32_t version;     /* ABI */
  int32_t ndev;        /* devices */
  uint16_t reduces[4]; /* bit t of [op]: reduceSupport(t, op) for ncclSum, ncclProd, ncclMax, ncclMin */
};

/* *out is NULL where no plugin can be used; the offer then says why. `comm_id` is equal on all ranks. */
void tt_collnet_open(uint64_t comm_id, struct tt_collnet **out, struct tt_collnet_offer *offer);
/* All comms must be closed before. NULL is allowed. */
void tt_collnet_close(struct tt_collnet *collnet);

/* Whether all ranks have the same network. Then *agreed is the first rank's offer with what all ranks reduce; else
 * `why` names the first rank that differs. */
bool tt_collnet_agree(const struct tt_collnet_offer *offers, int nranks, struct tt_collnet_offer *agreed, char *why,
                      size_t why_size);
/* `op` may be ncclAvg, which is a sum to the network. */
bool tt_collnet_reduces(const struct tt_collnet_offer *agreed, int datatype, int op);

const char *tt_collnet_name(const struct tt_collnet *collnet);
const char *tt_collnet_path(const struct tt_collnet *collnet);
int tt_collnet_version(const struct tt_collnet *collnet);

enum {
  TT_COLLNET_CAN_DMABUF = 0x1,
  TT_COLLNET_CAN_FLUSH = 0x2,
  TT_COLLNET_CAN_ALL_GATHER = 0x4,
  TT_COLLNET_CAN_REDUCE_SCATTER = 0x8,
  TT_COLLNET_CAN_VDEVICE = 0x10,
  TT_COLLNET_CAN_LARGE = 0x20,  /* more than MAX_COLLNET_SIZE bytes at once (v9 on; see maxCollBytes) */
  TT_COLLNET_CAN_CONTEXT = 0x40 /* the plugin is told of each communicator and of its end (v11 on) */
};
unsigned tt_collnet_can(const struct tt_collnet *collnet);

/* ---- Calls. Semantics are those of ncclCollNet_v12_t; here is only what the shims add ---- */

int tt_collnet_ndev(const struct tt_collnet *collnet);
/* As tt_net_get_properties; maxCollBytes is within 1 .. NCCL_MAX_NET_SIZE_BYTES. */
ncclResult_t tt_collnet_get_properties(struct tt_collnet *collnet, int dev, ncclNetProperties_v12_t *props);

/* `handle` has NCCL_NET_HANDLE_MAXSIZE bytes, zeroed first. *comm is never NULL on success. */
ncclResult_t tt_collnet_listen(struct tt_collnet *collnet, int dev, void *handle, void **comm);
/* May block until all of the group have called it. *comm is never NULL on success. */
ncclResult_t tt_collnet_connect(struct tt_collnet *collnet, void *handles[], int nranks, int rank, void *listen_comm,
                                void **comm);
ncclResult_t tt_collnet_close_listen(struct tt_collnet *collnet, void *comm); /* NULL is allowed, as below */
ncclResult_t tt_collnet_close_coll(struct tt_collnet *collnet, void *comm);

/* *mhandle is cleared first. Through v6 and v7: ncclInternalError for 2 GiB or more. */
ncclResult_t tt_collnet_reg_mr(struct tt_collnet *collnet, void *comm, void *data, size_t bytes, int type,
                               void **mhandle);
ncclResult_t tt_collnet_dereg_mr(struct tt_collnet *collnet, void *comm, void *mhandle);

/* *request is cleared first; NULL afterwards means "not posted, try again". Through v8 and older: ncclInternalError
 * above MAX_COLLNET_SIZE bytes. */
struct tt_collnet_all_reduce {
  void *send, *recv;
  size_t count;
  ncclDataType_t datatype;
  ncclRedOp_t op; /* ncclSum, ncclProd, ncclMax or ncclMin */
  void *send_mhandle, *recv_mhandle;
};
ncclResult_t tt_collnet_iallreduce(struct tt_collnet *collnet, void *comm, const struct tt_collnet_all_reduce *what,
                                   void **request);
/* *done is 0 or 1. */
ncclResult_t tt_collnet_test(struct tt_collnet *collnet, void *request, int *done);

#endif
