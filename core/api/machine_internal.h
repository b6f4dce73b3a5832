/* What the files about a communicator's machine call of each other. */
#ifndef TT_API_MACHINE_INTERNAL_H
#define TT_API_MACHINE_INTERNAL_H

#include "api/machine.h"

/* The machine as all ranks of this host see it together; the caller's to free. Takes part of them. */
ncclResult_t tt_machine_see(struct ncclComm *comm, const struct tt_device_properties *properties, struct tt_xml **xml);

/* For transports (transport.h): `machine` is a struct tt_machine. */
bool tt_machine_apart(const void *machine, int from, int to);
bool tt_machine_route(const void *machine, int peer, int channel, int index, bool send, struct tt_route *route);

#endif
