/* Health: what ranks tell each other about trouble, beside the data. A failure of one rank becomes an error on all; and
 * when an operation stalls, ranks compare what they are doing, so that ranks that disagree find out even where no data
 * passes between them.
 *
 * Threads: any, but one at a time begins collectives and calls create, leave and destroy; messages arrive on the
 * bootstrap's service thread. */
#ifndef TT_HEALTH_HEALTH_H
#define TT_HEALTH_HEALTH_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"
#include "bootstrap/bootstrap.h"
#include "tutti/device.h"

struct tt_health;

/* Puts a signature into words for an error: "AllReduce of 1000 elements of type 7 ..." */
typedef void tt_health_describe(const struct tt_signature *signature, char *text, size_t size);
/* The fields in which two differ, for an error: "count, type" */
typedef void tt_health_differ(const struct tt_signature *a, const struct tt_signature *b, char *text, size_t size);

/* Registers its handler: call before the barrier that ends init. bootstrap outlives it. */
ncclResult_t tt_health_create(struct tt_bootstrap *bootstrap, int rank, int nranks, tt_health_describe *describe,
                              tt_health_differ *differ, struct tt_health **out);
void tt_health_destroy(struct tt_health *health); /* NULL is allowed */

/* Notes a collective that this rank begins; compares it with what others said of the same sequence number. */
void tt_health_begin(struct tt_health *health, const struct tt_signature *signature);
/* Tells all ranks what this one has begun since it last told, and is at now, since nothing has moved for a while.
 * Harmless when it is merely slow: a rank that is late compares when it gets there. */
void tt_health_stalled(struct tt_health *health);
/* The ranks, as "1, 4", that have not said to have begun the collective of that number; "" if all have. */
#define TT_HEALTH_LATEST UINT64_MAX /* the last one that this rank has begun */
void tt_health_late(struct tt_health *health, uint64_t sequence, char *text, size_t size);
/* The same for reports: how many collectives this rank has begun, and how many each rank has said to have begun, which
 * ranks say only while they stall. `reached` has room for all ranks. */
uint64_t tt_health_look(struct tt_health *health, uint64_t *reached);
/* To be called before leaving the communicator. Tells the nearest ranks how many collectives this one has begun, since
 * who is in a later one would wait for it in vain; or, if it leaves because of a failure, hands that on. */
void tt_health_leave(struct tt_health *health);
/* Tells all ranks, once, that this one failed, with the sentence. */
void tt_health_failed(struct tt_health *health, ncclResult_t result, const char *text);

/* ncclSuccess, or what another rank reported: ncclRemoteError with its rank and sentence, or ncclInvalidUsage naming
 * both sides of a disagreement. Reports the sentence to the log at the first call that returns it, and keeps it as the
 * error of every thread that calls. A load while all is
 * well; with `idle`, when there is time, also looks whether a rank is gone without a word. */
ncclResult_t tt_health_check(struct tt_health *health, bool idle);

#endif
