/* Users' memory that the ranks of a host have mapped: windows (ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC).
 *
 * A window is opened by all ranks of the communicator together. It counts on all of them or on none: only where each
 * rank's memory could be exported, and imported by each other rank of its host. Its user promises to use it at the same
 * offset on all ranks, so who asks for a place in it gets the same answer on all ranks without asking them. Windows of
 * a communicator do not overlap.
 *
 * What is mapped is an allocation, known by its id and never by its address alone: memory that was freed and allocated
 * again where a window was is found out.
 *
 * Any thread, unless it is said otherwise. */
#ifndef TT_TRANSPORT_USER_BUFFERS_H
#define TT_TRANSPORT_USER_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "bootstrap/bootstrap.h"
#include "nccl.h"

struct tt_transport_env;
struct tt_user_buffers; /* of one rank of a communicator; NULL where the device knows nothing of users' memory */
struct tt_user_window;

struct tt_user_place {
  struct tt_user_window *window; /* NULL: it lies in none */
  uint32_t number;               /* the window's, the same on all ranks of the communicator */
  uint64_t offset;               /* bytes from the window's start, the same on all ranks by the user's promise */
  bool everywhere;               /* all ranks of the communicator are of this host, so that all addresses are there */
};

/* Whether [ptr, ptr + bytes) lies in a window, and at which address this rank's device sees the same offset of each
 * rank: at[r], `nranks` of them; NULL for ranks of other hosts, and this rank's own address for itself. They are valid
 * until the window is closed here, or as long as it is held. `buffers` may be NULL. Ask for what other ranks read or
 * write: what they do not, as the input of an all-gather in place, need not lie at one offset on all ranks.
 *
 * ncclInvalidUsage if the window's memory was freed while it was open: other ranks would go on to use the window, so
 * this one cannot go another way. Otherwise ncclSuccess. Cheap: for each call of a user's. */
ncclResult_t tt_user_buffers_find(struct tt_user_buffers *buffers, const void *ptr, size_t bytes,
                                  struct tt_user_place *place, void **at);

/* Whether a window is open. Cheaper. */
bool tt_user_buffers_any(const struct tt_user_buffers *buffers);

/* Keeps what is mapped of a window though it is closed: a captured graph does so as long as it can be replayed. To let
 * go waits for nothing and calls nothing of the device, so that it may be called when a graph ends (at_graph_end); what
 * nobody holds any more is unmapped by the next call that may do so. The communicator's end does not wait for it. */
void tt_user_window_hold(struct tt_user_window *window);
void tt_user_window_let_go(struct tt_user_window *window);

/* Holds a window for the graph that `stream` is captured into, until its end; nothing if it is not captured. For each
 * operation that uses the window. */
ncclResult_t tt_user_window_keep(struct tt_user_buffers *buffers, struct tt_user_window *window, void *stream);

/* Opens a window. Takes part of all ranks, in the same order; the window is the same one for a range that all ranks
 * have open already. *out is NULL, and it is ncclSuccess, where the memory cannot be mapped on all ranks: a line of
 * the log says where and why, and the memory is used like any other. ncclInvalidArgument if ranks give different
 * sizes. The caller has the bootstrap to itself. */
ncclResult_t tt_user_window_open(struct tt_transport_env *env, struct tt_bootstrap *bootstrap, void *ptr, size_t bytes,
                                 struct tt_user_window **out);
/* As often as it was opened. Local; operations that use the window are done before. */
void tt_user_window_close(struct tt_transport_env *env, struct tt_user_window *window);

/* ---- Buffers of ranks of one process, without windows ---- */

/* Whether the device can use users' memory where it lies. */
bool tt_user_plain_possible(const struct tt_user_buffers *buffers);
/* Whether all of `ranks`, of this process, may use [ptr, ptr + bytes) of rank `owner` at its own address: where its
 * allocations are such that their devices can be given the right to it, which is done then. They may until the memory
 * is freed. To be asked for each operation, since addresses say nothing of allocations; cheap when it was before. The
 * thread that has operations on all these ranks. */
bool tt_user_plain_usable(struct tt_user_buffers *const *ranks, int nranks, int owner, const void *ptr, size_t bytes);

/* Parts of the env's life. */
ncclResult_t tt_user_buffers_create(struct tt_transport_env *env, struct tt_user_buffers **out);
/* Unmaps all windows, open or held. NULL is allowed. */
void tt_user_buffers_destroy(struct tt_user_buffers *buffers);
/* A copy of the descriptor by which memory of a user's goes to other processes, while a window is opened; -1 if there
 * is none such. Calls no function of the device. */
int tt_user_buffers_descriptor(struct tt_user_buffers *buffers, uint64_t object, uint64_t *bytes);

#endif
