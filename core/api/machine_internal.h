/* What the files about a communicator's machine call of each other. */
#ifndef TT_API_MACHINE_INTERNAL_H
#define TT_API_MACHINE_INTERNAL_H

#include "api/machine.h"

/* The machine as all ranks of this host see it together; the caller's to free. Takes part of them. */
ncclResult_t tt_machine_see(struct ncclComm *comm, struct tt_xml **xml);

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
bool tt_machine_route(const void *machine, int peer, int channel, int index, bool send, struct tt_route *route);

#endif
