/* The service that hands out this rank's memory to ranks of the same communicator: descriptors of its shared memory and
 * of other objects. */
#ifndef TT_TRANSPORT_MEMORY_SERVICE_H
#define TT_TRANSPORT_MEMORY_SERVICE_H

#include <stdint.h>
#include "nccl.h"
#include "base/hash.h"
#include "base/uds.h"

struct tt_memory_service;

/* A new descriptor of an object other than the shared memory, which the service closes, and its bytes; -1 if there is
 * none such. Called by the service's thread. */
typedef int tt_memory_source(void *context, uint64_t object, uint64_t *bytes);

/* Listens; clients wait until the service is started. `memory_fd`, of `bytes`, outlives it. */
ncclResult_t tt_memory_service_create(int rank, int memory_fd, uint64_t bytes, struct tt_memory_service **out);
/* Where other objects come from. NULL: from nowhere any more; the last source is not called again, nor still at work.
 */
void tt_memory_service_set_source(struct tt_memory_service *service, tt_memory_source *source, void *context);
/* Starts the thread. */
ncclResult_t tt_memory_service_start(struct tt_memory_service *service);
void tt_memory_service_destroy(struct tt_memory_service *service); /* NULL is allowed */

const char *tt_memory_service_name(const struct tt_memory_service *service);
const struct tt_key *tt_memory_service_key(const struct tt_memory_service *service);
/* Clients that were dropped: no or wrong proof, silent, malformed. */
uint64_t tt_memory_service_dropped(const struct tt_memory_service *service);

#endif
