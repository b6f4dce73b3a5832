/* The service that hands out this rank's memory descriptor to ranks of the same communicator. */
#ifndef TT_TRANSPORT_MEMORY_SERVICE_H
#define TT_TRANSPORT_MEMORY_SERVICE_H

#include <stdint.h>
#include "nccl.h"
#include "base/hash.h"
#include "base/uds.h"

struct tt_memory_service;

/* Listens; clients wait until the service is started. `memory_fd` outlives it. */
ncclResult_t tt_memory_service_create(int rank, int memory_fd, struct tt_memory_service **out);
/* Starts the thread. */
ncclResult_t tt_memory_service_start(struct tt_memory_service *service);
void tt_memory_service_destroy(struct tt_memory_service *service); /* NULL is allowed */

const char *tt_memory_service_name(const struct tt_memory_service *service);
const struct tt_key *tt_memory_service_key(const struct tt_memory_service *service);
/* Clients that were dropped: no or wrong proof, silent, malformed. */
uint64_t tt_memory_service_dropped(const struct tt_memory_service *service);

#endif
