/* What the files about a communicator's machine call of each other. */
#ifndef TT_API_MACHINE_INTERNAL_H
#define TT_API_MACHINE_INTERNAL_H

#include "api/machine.h"
#include "topology/merge.h"

/* The machine as all ranks of this host see it together; the caller's to free. Takes part of them. */
ncclResult_t tt_machine_see(struct ncclComm *comm, struct tt_xml **xml);

/* ---- Network devices that work as one (machine_merge.c) ---- */

/* Whether a device that a plugin lists is one that makeVDevice made, which detection leaves out. */
bool tt_machine_is_fused(const struct tt_net *net, const ncclNetProperties_v12_t *properties, int dev);
struct tt_detect_net tt_machine_describe_net(const struct ncclComm *comm, const ncclNetProperties_v12_t *properties,
                                             int dev);

/* A group of devices, and what the plugin made of it in this process. Ranks of a host send these to each other. */
struct tt_machine_fused {
  struct tt_merge_group group;
  struct tt_detect_net net; /* dev -1: the plugin refused. Its name is below */
  char name[64];
};
/* Has the plugin fuse what is to be fused of the machine that this rank sees. *fused has *count, and is the caller's to
 * free; also on failure. A plugin that refuses is a warning. */
ncclResult_t tt_machine_fuse_nets(const struct ncclComm *comm, const struct tt_xml *machine,
                                  const struct tt_detect_net *nets, int nnets, struct tt_machine_fused **fused,
                                  int *count);
/* Puts into *machine what all ranks of the host have fused alike, and says so. all[i] are the counts[i] of the i-th of
 * `nlocal` ranks, this one the me-th. */
ncclResult_t tt_machine_apply_fused(const struct tt_machine_fused *const *all, const int *counts, int nlocal, int me,
                                    struct tt_xml **machine);

/* What the driver says of the use that GPUs of this host make of each other's memory: tt_topology_rules. */
struct tt_machine_peers {
  int *ranks; /* `count`, ascending; this one's is number `me` */
  int count, me;
  uint8_t *status; /* count * count; NULL: the backend knows nothing of it */
};
/* Takes part of the ranks of this host. To be freed also on failure. */
ncclResult_t tt_machine_ask_peers(const struct ncclComm *comm, struct tt_machine_peers *peers);
void tt_machine_free_peers(struct tt_machine_peers *peers);

/* For transports (transport.h): `machine` is a struct tt_machine. */
bool tt_machine_apart(const void *machine, int from, int to);
bool tt_machine_reads(const void *machine, int from, int to);
bool tt_machine_far(const void *machine, int from, int to, char *why, size_t size);
int tt_machine_between(const void *machine, int from, int to);
bool tt_machine_route(const void *machine, int peer, int channel, int index, bool send, struct tt_route *route);
/* Says of the NICs of this rank's GPU whether they use its memory, and why not. */
void tt_machine_log_direct(const struct tt_machine *machine);

#endif
