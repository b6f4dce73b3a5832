/* Connection set-up: which connectors a rank has, and bringing them to life.
 *
 * Set-up is symmetric and asks nothing of the other rank's user: who needs a connection sends its half to the peer; the
 * peer's service thread makes the other half when it has not already, and answers. A caller asks for what it needs and
 * waits. Peers are taken in rounds of at most NCCL_CONNECT_ROUND_MAX_PEERS, nearest ranks first; all that is needed
 * with one peer, both directions and every channel, travels in one message; each round ends when both sides of each
 * pair have told the other that they are ready. */
#ifndef TT_CONNECT_CONNECT_H
#define TT_CONNECT_CONNECT_H

#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"
#include "base/timer.h"
#include "bootstrap/bootstrap.h"
#include "transport/transport.h"

#define TT_MAX_CHANNELS 64

struct tt_connect; /* one a communicator; used by one user thread and the bootstrap's service thread */

/* Registers its handler with the bootstrap: call before the barrier that ends init. env and bootstrap outlive it. */
ncclResult_t tt_connect_create(struct tt_transport_env *env, struct tt_bootstrap *bootstrap, struct tt_connect **out);
/* What ended outside ends a wait for connections too: `check` is called now and then in tt_connect_run's thread, and
 * reports the error that it returns. */
typedef ncclResult_t tt_connect_check(void *context);
void tt_connect_set_check(struct tt_connect *connect, tt_connect_check *check, void *context);
/* Closes all connections. */
void tt_connect_destroy(struct tt_connect *connect);

/* Notes that `channel` needs data to or from `peer`, a rank or network as programs name it; index: of tt_connect_index.
 * Cheap when it is there already. */
ncclResult_t tt_connect_need(struct tt_connect *connect, int peer, int channel, int index, bool send);
/* Brings up everything noted. Fails naming the peers that did not answer by the deadline. */
ncclResult_t tt_connect_run(struct tt_connect *connect);
/* Whether anything noted is not up. */
bool tt_connect_pending(const struct tt_connect *connect);

/* An established connector; NULL if there is none. */
struct tt_connector *tt_connect_get(struct tt_connect *connect, int peer, int channel, int index, bool send);

/* What is known of a connection, for reports. */
struct tt_connect_state {
  const struct tt_connector *connector; /* peer, channel, index and send are valid; the rest once it is up */
  bool up;
  const char *progress; /* of one that is not up: what is awaited */
};
/* Visits all connections with ranks, in no order. Any thread; `visit` must not wait for anything, nor call this layer.
 */
typedef void tt_connect_visit(void *context, const struct tt_connect_state *state);
void tt_connect_look(struct tt_connect *connect, tt_connect_visit *visit, void *context);

/* The bytes held by connections, for the report of a communicator's memory. */
size_t tt_connect_bytes(const struct tt_connect *connect);

#endif
