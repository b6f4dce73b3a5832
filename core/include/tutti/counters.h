/*
 * tutti/counters.h: what a net plugin has counted, for reports, tools and tuners (which read it as tuttiNetStats_t).
 *
 * A net plugin may export a data object `tuttiNetCounters` of type struct tt_net_counters beside its ncclNetPlugin_vN.
 * It is one for all versions that the library exports, and counts what all of them do in this process. Loaders that do
 * not know it pass it over.
 *
 * Both structs begin with their size and only grow at the end: who reads one reads no further than its size, and takes
 * what is not there for zero. A bit that one side does not know changes nothing in what it does know.
 *
 * The rule: counting costs a few instructions of the thread that counts, and reading costs the data path nothing. So
 * figures are read while others write them: each is a value that it had a moment ago, and two of them need not be of
 * the same moment. None is ever lost, and all but queue_depth only grow while their connection or device is there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TUTTI_COUNTERS_H_
#define TUTTI_COUNTERS_H_

#include <stddef.h>
#include <stdint.h>
#include "nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TT_NET_COUNTERS_SYMBOL "tuttiNetCounters"

/* Whose figures they are. */
enum { TT_COUNTERS_DEVICE = 0, TT_COUNTERS_SEND = 1, TT_COUNTERS_RECV = 2 };

/* What the plugin counts there; what has no bit is 0 and means nothing. */
enum {
  TT_COUNTS_BYTES = 0x1,
  TT_COUNTS_OPERATIONS = 0x2,
  TT_COUNTS_RETRIES = 0x4,
  TT_COUNTS_REFUSED = 0x8,
  TT_COUNTS_CLEAR_TO_SENDS = 0x10,
  TT_COUNTS_CLEAR_TO_SEND_WAITS = 0x20,
  TT_COUNTS_QUEUE_DEPTH = 0x40
};

/* The figures of one comm, or of all that a device has and had. */
struct tt_counters {
  size_t size;      /* of this struct as the plugin knows it; first, always */
  uint64_t counts;  /* TT_COUNTS_* */
  int32_t what;     /* TT_COUNTERS_* */
  int32_t dev;      /* the device's number, that of listen and connect */
  const void *comm; /* the sendComm or recvComm; NULL: a device */
  const char *name; /* of the device, as in its properties; never NULL */
  const char *peer; /* the other end, for people: an address, a GID; "" where it is not known, and for devices */

  uint64_t bytes;      /* of payload, in messages that are complete */
  uint64_t operations; /* messages that are complete; each buffer of a grouped receive is one */
  /* Pieces (packets, segments, writes) that were transmitted again since they or their acknowledgements were lost or
   * came too late, as far as the plugin or what it stands on knows. */
  uint64_t retries;
  /* Attempts to hand work to the transport for which it had no room; they were repeated later. */
  uint64_t refused;
  /* Times that the receiver told the sender that it may send; both ends count the same events. For transports that
   * ask before each message they are round trips. */
  uint64_t clear_to_sends;
  uint64_t clear_to_send_waits; /* sending: messages that were there before they were allowed, and waited */
  uint64_t queue_depth;         /* work that was handed over and is not complete, now */
  uint64_t queue_depth_most;    /* the most so far; of a device, the most that one of its comms had */
};

/* `counters`, and what it points at, is the visitor's until it returns. */
typedef void tt_counters_visit(void *context, const struct tt_counters *counters);

struct tt_net_counters {
  size_t size;       /* of this struct as the plugin knows it; first, always */
  uint64_t features; /* none are defined: 0 */
  /* Calls `visit` for each device that has or had comms, then for each comm that is open, in no order. Any thread, at
   * any time while the plugin is initialised, also while others are in calls of the plugin: it waits for none of those
   * but the end of a connect, an accept or a close. `visit` calls nothing of the plugin, and does not wait. Fails for
   * lack of memory only. */
  ncclResult_t (*read)(tt_counters_visit *visit, void *context);
};

#ifdef __cplusplus
}
#endif

#endif
