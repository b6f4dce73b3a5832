/* The TCP net plugin, inside. A connection is one-way: a send comm here and a receive comm at the peer.
 *
 * A connection has one main socket, which carries all headers and the payload of small messages in order, and 0 to 64
 * lanes, further sockets over which large messages are striped. Both sides compute the same stripes, so lanes carry
 * bare bytes. Lanes are driven by helper threads if there are any (NCCL_SOCKET_NTHREADS), else, like the main socket,
 * by the thread that calls isend, irecv and test. Nothing here ever blocks but closing, which joins the helpers
 * and may linger (linger.c).
 *
 * Grouped receives: a message goes to the oldest receive that has a free slot of its tag. If none has, but receives of
 * other tags wait, what they wait for may be behind this message in the stream, so it is kept aside (match.c), and a
 * sender that runs far ahead with one tag is told to pause it.
 *
 * Threads: the data path of a comm is used by one thread at a time, as the ABI says; registrations touch nothing. */
#ifndef TT_NET_SOCKET_H
#define TT_NET_SOCKET_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "base/socket.h"
#include "base/thread.h"
#include "base/timer.h"
#include "plugins/common/counters.h"
#include "plugins/common/meeting.h"
#include "tutti/net.h"
#include "wire.h"

#define TT_NETSOCKET_DEVICES 32
#define TT_NETSOCKET_LANES (TT_MEETING_SOCKETS - 1) /* NCCL's limit for threads x sockets: 64 */
#define TT_NETSOCKET_RECVS 8                        /* receives in a group */
#define TT_NETSOCKET_RECV_REQUESTS NCCL_NET_MAX_REQUESTS
#define TT_NETSOCKET_STRIPE                                                                                            \
  ((size_t)64 << 10) /* least bytes of a stripe; messages up to this go over the main socket */

/* ---- devices.c: the process-wide state ---- */

struct tt_netsocket_device {
  char name[TT_IFNAME_BYTES];
  char pci_path[512]; /* "" for a virtual interface */
  union tt_address address;
  int speed; /* megabits a second */
};

/* How the environment wants connections to be. lanes 0: everything over the main socket. */
struct tt_netsocket_shape {
  int threads, lanes;
};

/* Counted: the last close forgets the devices, ends what connect left unfinished, and stops logging. */
ncclResult_t tt_netsocket_open(ncclDebugLogger_t logger);
ncclResult_t tt_netsocket_close(void);
int tt_netsocket_device_count(void);
/* ncclInternalError if there is no such device. */
ncclResult_t tt_netsocket_device(int index, struct tt_netsocket_device **device);
struct tt_netsocket_shape tt_netsocket_shape(void);

/* ---- lanes.c ---- */

/* A piece of a striped message. `left` counts the pieces of its message that are still to be moved. */
struct tt_netsocket_task {
  char *data;
  size_t bytes;
  _Atomic uint32_t *left;
};
#define TT_NETSOCKET_TASKS 64 /* a power of two */
struct tt_netsocket_lane {
  int fd;
  size_t moved; /* of the oldest task; the driver's own */
  _Atomic uint32_t pushed, taken;
  struct tt_netsocket_task tasks[TT_NETSOCKET_TASKS];
};

struct tt_netsocket_link;
struct tt_netsocket_helper {
  struct tt_netsocket_link *link;
  int first; /* drives lanes first, first + threads, ... */
  int wake;  /* eventfd */
  _Atomic uint32_t asleep;
  pthread_t thread;
};

/* What both kinds of comm share. */
struct tt_netsocket_link {
  bool sends;
  int fd; /* main socket */
  struct tt_counted counted;
  char peer[TT_ADDRESS_TEXT];
  ncclResult_t failed; /* once set, every call returns it */
  int lanes, threads;
  int next_lane; /* first lane of the next striped message; equal on both sides */
  struct tt_netsocket_lane *lane;
  struct tt_netsocket_helper *helper;
  _Atomic int lane_error; /* errno of the first failure of a lane; -1: closed by the peer */
  _Atomic uint32_t stop;
};

/* How a message is cut: stripe i is `bytes` long but the last, and goes over lane (next_lane + i) mod lanes. count 0:
 * not striped. */
struct tt_netsocket_stripes {
  int count;
  size_t bytes;
};
struct tt_netsocket_stripes tt_netsocket_stripes(const struct tt_netsocket_link *link, size_t bytes);
bool tt_netsocket_lanes_have_room(const struct tt_netsocket_link *link, int count);
/* Hands the stripes to the lanes; *left must hold the count already. */
void tt_netsocket_lanes_push(struct tt_netsocket_link *link, struct tt_netsocket_stripes stripes, char *data,
                             size_t bytes, _Atomic uint32_t *left);
/* Moves what can be moved if there are no helpers, and reports a lane's failure, whoever saw it. */
ncclResult_t tt_netsocket_lanes_progress(struct tt_netsocket_link *link);
ncclResult_t tt_netsocket_lanes_start(struct tt_netsocket_link *link, const int *fds, int count);
void tt_netsocket_lanes_stop(struct tt_netsocket_link *link);

/* ---- link.c ---- */

/* Takes over fds[0..count-1], main socket first, also when it fails. `comm` has the link. */
ncclResult_t tt_netsocket_link_init(struct tt_netsocket_link *link, bool sends, int dev, const void *comm,
                                    const int *fds, int count);
void tt_netsocket_link_close(struct tt_netsocket_link *link);
/* Keeps and returns the result of TT_FAIL. */
ncclResult_t tt_netsocket_link_fail(struct tt_netsocket_link *link, ncclResult_t result);
/* For a failed socket call: names the peer and the cause. `error` 0 means that the peer closed. */
ncclResult_t tt_netsocket_link_lost(struct tt_netsocket_link *link, int error, const char *doing);

/* ---- linger.c ---- */

/* Before the main socket of a sender is closed, to which notes can come: waits until the receiver's system has what was
 * sent, shortly. */
void tt_netsocket_linger(int fd);

/* ---- meet.c ---- */

ncclResult_t tt_netsocket_listen(int dev, void *handle, void **listen_comm);
ncclResult_t tt_netsocket_accept(void *listen_comm, void **recv_comm);
ncclResult_t tt_netsocket_close_listen(void *listen_comm);
/* user: of the attempt (attempts.h) */
ncclResult_t tt_netsocket_connect(int dev, uint64_t user, void *handle, void **send_comm);

/* ---- send.c, recv.c: comms and requests ---- */

/* First member of both kinds of request: test finds out which it has. */
struct tt_netsocket_request {
  bool sends, live;
};

ncclResult_t tt_netsocket_send_make(int dev, const int *fds, int count, void **send_comm);
ncclResult_t tt_netsocket_isend(void *send_comm, void *data, size_t bytes, int tag, void **request);
ncclResult_t tt_netsocket_send_test(struct tt_netsocket_request *request, int *done, int *sizes);
ncclResult_t tt_netsocket_close_send(void *send_comm);

ncclResult_t tt_netsocket_recv_make(int dev, const int *fds, int count, void **recv_comm);
ncclResult_t tt_netsocket_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
                                void **request);
ncclResult_t tt_netsocket_recv_test(struct tt_netsocket_request *request, int *done, int *sizes);
ncclResult_t tt_netsocket_close_recv(void *recv_comm);

#endif
