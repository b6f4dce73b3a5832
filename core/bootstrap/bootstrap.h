/* The bootstrap: how ranks that share nothing but a unique id find and talk to each other, before and beside the data.
 *
 * A unique id carries the root's address and a secret key. The root is a thread in the process that made the id; ranks
 * check in with it, proving the key, and learn their neighbours; from then on they talk directly. Every message is
 * authenticated by the key; a client that is wrong, silent or slow is dropped, counted, and disturbs nobody.
 *
 * Threads: one object may be used by one user thread; a service thread of its own receives messages and keeps what
 * comes early. Everything ends at a deadline (NCCL_BOOTSTRAP_TIMEOUT) with the ranks that never came, or when *abort
 * becomes non-zero. */
#ifndef TT_BOOTSTRAP_BOOTSTRAP_H
#define TT_BOOTSTRAP_BOOTSTRAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "base/socket.h"
#include "base/timer.h"

struct tt_bootstrap;
struct tt_net; /* plugin/net.h */

/* Makes an id and its root. One service thread with its listeners serves all ids of the process; it ends when none is
 * left: an id is done when all ranks have their answer and no communicator made from it lives in this process (until
 * then, a second use is answered), or, unused, after four times NCCL_BOOTSTRAP_TIMEOUT.
 * With NCCL_COMM_ID the id holds that address, whose root rank 0 starts in tt_bootstrap_create, once a communicator.
 * Its key is derived from the variable's text and so is no secret: use it only where the network is trusted. */
ncclResult_t tt_bootstrap_unique_id(ncclUniqueId *id);
/* The same whatever NCCL_COMM_ID says: where the library itself hands the id to all ranks. Several such communicators
 * may be made at once, and their ranks 0 may be on any host. */
ncclResult_t tt_bootstrap_own_id(ncclUniqueId *id);
/* What names the communicator in logs: equal on all ranks. */
uint64_t tt_bootstrap_id_hash(const ncclUniqueId *id);

/* Uses an id up for a communicator of one rank, which needs no bootstrap: ends the id's root if it lives in this
 * process and nobody came to it. ncclInvalidUsage if the id was used before in this process. What is no id is left
 * alone. */
ncclResult_t tt_bootstrap_use_alone(const ncclUniqueId *id);

/* Joins. nranks == 1 needs no socket and no thread. Using an id a second time is ncclInvalidUsage. `abort` must live as
 * long as the object. */
ncclResult_t tt_bootstrap_create(const ncclUniqueId *id, int rank, int nranks, const _Atomic uint32_t *abort,
                                 struct tt_bootstrap **out);

/* What a rank asks again and again while it waits for the root, where something else can know that not all will come:
 * a failure, with its sentence, ends the wait. It is also asked when joining failed for another reason, which may
 * follow from what it knows. */
struct tt_bootstrap_probe {
  ncclResult_t (*ask)(void *context);
  void *context;
  bool failed; /* it did; set by who asked */
};

/* The same with several roots, so that none has to answer all ranks: ids[0 .. nids) are in the same order on all ranks,
 * 1 <= nids <= nranks, each from a tt_bootstrap_unique_id of its own. Each root has a share of consecutive ranks; the
 * first nranks mod nids roots have one more than the others. `probe` may be NULL. */
ncclResult_t tt_bootstrap_create_scalable(const ncclUniqueId *ids, int nids, int rank, int nranks,
                                          const _Atomic uint32_t *abort, struct tt_bootstrap_probe *probe,
                                          struct tt_bootstrap **out);
void tt_bootstrap_destroy(struct tt_bootstrap *bootstrap); /* NULL is allowed */

/* data holds nranks blocks of `bytes`; the caller has filled its own. O(log n) rounds. */
ncclResult_t tt_bootstrap_all_gather(struct tt_bootstrap *bootstrap, void *data, size_t bytes);
/* The same among the `nranks` ranks listed in `ranks` (ascending, the caller's at index `me`); each of them calls it
 * with the same list. */
ncclResult_t tt_bootstrap_group_all_gather(struct tt_bootstrap *bootstrap, const int *ranks, int me, int nranks,
                                           void *data, size_t bytes);
/* The same with blocks of different sizes, none above `most` bytes: the caller's is `mine`. `ranks` NULL: all ranks.
 * The block of the rank at index i is (*blocks)[offsets[i]] up to [offsets[i + 1]]; offsets has room for nranks + 1.
 * *blocks is malloc'ed and becomes the caller's. */
ncclResult_t tt_bootstrap_gather_sized(struct tt_bootstrap *bootstrap, const int *ranks, int me, int nranks,
                                       const void *mine, size_t bytes, size_t most, unsigned char **blocks,
                                       size_t *offsets);
ncclResult_t tt_bootstrap_barrier(struct tt_bootstrap *bootstrap);

/* A call that all ranks make in one order, and that may fail on some of them while others go on, or come later. Each
 * counts its calls, from 1, also those that it refused: the numbers tell what a call that failed has left from what the
 * next one waits for. */
struct tt_bootstrap_call {
  const char *function;
  uint64_t number;
  int part; /* of the ranks, which needs no other one from here on; TT_PART_ALL: all of them need each other */
};
#define TT_PART_ALL (-1)
/* As all_gather, send and recv, among ranks that are in the same call: what an earlier one left is passed over. Where
 * the sender was not in this call and is in a later one that is an error, and the message stays for that call. A wait
 * ends when a rank gives up the call. Always over the bootstrap's own connections. */
ncclResult_t tt_bootstrap_call_gather(struct tt_bootstrap *bootstrap, const struct tt_bootstrap_call *call, void *data,
                                      size_t bytes);
ncclResult_t tt_bootstrap_call_send(struct tt_bootstrap *bootstrap, const struct tt_bootstrap_call *call, int peer,
                                    uint32_t tag, const void *data, size_t bytes);
ncclResult_t tt_bootstrap_call_recv(struct tt_bootstrap *bootstrap, const struct tt_bootstrap_call *call, int peer,
                                    uint32_t tag, void **data, size_t *bytes, tt_deadline deadline);
/* Tells all ranks that this one does not go on with the call, and why: those of the same part give it up, too. Nothing
 * where another rank has said so before. Waits for nobody. */
void tt_bootstrap_call_give_up(struct tt_bootstrap *bootstrap, const struct tt_bootstrap_call *call, const char *why);
/* ncclRemoteError if a rank has given up the call, naming it. */
ncclResult_t tt_bootstrap_call_check(struct tt_bootstrap *bootstrap, const struct tt_bootstrap_call *call);

/* Tagged messages of up to 1 GiB. A send is buffered: it returns before the peer has anything, and waits only while
 * 16 MiB for that peer have not left yet; what fails later is told by a later call. A receive takes the oldest message
 * of that peer and tag; *data is malloc'ed and becomes the caller's. Tags below TT_TAG_USER are the bootstrap's own. */
#define TT_TAG_USER 0x10000u
ncclResult_t tt_bootstrap_send(struct tt_bootstrap *bootstrap, int peer, uint32_t tag, const void *data, size_t bytes);
ncclResult_t tt_bootstrap_recv(struct tt_bootstrap *bootstrap, int peer, uint32_t tag, void **data, size_t *bytes,
                               tt_deadline deadline);
/* As recv, but *data is NULL when nothing is there. */
ncclResult_t tt_bootstrap_try_recv(struct tt_bootstrap *bootstrap, int peer, uint32_t tag, void **data, size_t *bytes);

/* Messages whose tag has `tag_mask` bits equal to `tag` are given to `handler` on the service thread, in order of
 * arrival a peer, instead of being kept. The handler owns nothing of `data`, may send, must not block or receive. At
 * most six different tags and masks; set before the first barrier so that no message is missed. NULL removes; when
 * that returns, the handler is not running any more. */
typedef void tt_bootstrap_handler(void *context, int peer, uint32_t tag, const void *data, size_t bytes);
ncclResult_t tt_bootstrap_set_handler(struct tt_bootstrap *bootstrap, uint32_t tag, uint32_t tag_mask,
                                      tt_bootstrap_handler *handler, void *context);

/* As send, to a rank that may have left: one that cannot be reached counts as one that has, unless it is known to be
 * dead. */
ncclResult_t tt_bootstrap_send_unless_left(struct tt_bootstrap *bootstrap, int peer, uint32_t tag, const void *data,
                                           size_t bytes);

/* A message that may be lost without harm: queued if the peer can be reached, dropped without a word if not. */
void tt_bootstrap_notify(struct tt_bootstrap *bootstrap, int peer, uint32_t tag, const void *data, size_t bytes);

/* Whether a rank is known to be gone without a goodbye, or does not answer any more: its number and what happened. For
 * who waits: while this is called every second or so, peers are asked whether they are there (TUTTI_PEER_TIMEOUT). */
bool tt_bootstrap_dead(struct tt_bootstrap *bootstrap, int *rank, char *why, size_t why_size);
/* The same of the listed ranks only: who needs no other is not disturbed by another's death. */
bool tt_bootstrap_dead_among(struct tt_bootstrap *bootstrap, const int *ranks, int nranks, int *rank, char *why,
                             size_t why_size);
/* Whether a rank is known to have said goodbye. Ranks that have no connection with it may not know, but for those that
 * tried to send unless it has left. */
bool tt_bootstrap_left(struct tt_bootstrap *bootstrap, int rank);

/* Moves the all-gather onto a ring of net connections (NCCL_OOB_NET_ENABLE). `net` outlives the object. All ranks. */
ncclResult_t tt_bootstrap_use_net(struct tt_bootstrap *bootstrap, struct tt_net *net, int device);

/* A number that tells this communicator apart from all others, equal on all ranks: with NCCL_COMM_ID those that are
 * made one after another have the same id, and may live at the same time. */
uint64_t tt_bootstrap_number(const struct tt_bootstrap *bootstrap);
/* This rank's address, and counters for logs and tests. */
const union tt_address *tt_bootstrap_address(const struct tt_bootstrap *bootstrap);
struct tt_bootstrap_stats {
  uint64_t dropped; /* clients dropped: no or wrong proof, silent, malformed */
  uint64_t early;   /* messages kept because nobody asked yet */
};
void tt_bootstrap_stats(const struct tt_bootstrap *bootstrap, struct tt_bootstrap_stats *stats);

#endif
