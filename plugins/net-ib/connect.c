/* The connecting side: a state machine that moves at each call and never waits. When the two sides have met, each tells
 * the other what it needs to know of its queue pairs and memory. */
#include "net_ib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "plugins/common/attempts.h"

enum phase { PHASE_MEET, PHASE_TELL, PHASE_HEAR, PHASE_GO };

struct attempt {
  struct tt_attempt base;
  enum phase phase;
  struct tt_ib_send_comm *comm;
  struct tt_ib_card card, answer;
  size_t moved; /* of what is being sent or received */
  struct tt_ib_note go;
};

const struct tt_meeting_kind tt_ib_meeting = {.name = "net ib", .label = "NET/IB", .magic = TT_IB_MAGIC};

static struct tt_attempts pending = TT_ATTEMPTS_NONE;

ncclResult_t tt_ib_socket_move(int fd, bool sends, void *data, size_t bytes, size_t *done)
{
  while (*done < bytes) {
    char *at = (char *)data + *done;
    ssize_t n =
        sends ? send(fd, at, bytes - *done, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(fd, at, bytes - *done, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return ncclSuccess;
    if (n == 0) errno = 0;
    if (n <= 0) return ncclRemoteError;
    *done += (size_t)n;
  }
  return ncclSuccess;
}

int tt_ib_qps_between(int rails, int qps, int remote_rails, int remote_qps, int *pieces)
{
  int wide = TT_MAX(rails, remote_rails), each = TT_MIN(TT_MAX(qps, remote_qps), TT_IB_QPS / wide);
  *pieces = TT_MIN(tt_param_int(TT_PARAM_NCCL_IB_SPLIT_DATA_ON_QPS) ? wide * each : wide, TT_IB_PIECES);
  return wide * each;
}

/* ---- Attempts ---- */

static void free_attempt(void *storage)
{
  struct attempt *attempt = storage;
  tt_ib_close_send(attempt->comm);
  free(attempt);
}

void tt_ib_connect_forget(uint64_t user)
{
  tt_meeting_forget(user);
  tt_attempts_end(&pending, user, free_attempt);
}

static ncclResult_t begin_attempt(const struct tt_ib_device *device, uint64_t user, int traffic_class,
                                  const struct tt_ib_handle *handle, struct attempt **out)
{
  struct attempt *attempt = NULL;
  ncclResult_t result;
  int pieces, wished = (int)tt_param_int(TT_PARAM_NCCL_IB_TC), level = (int)tt_param_int(TT_PARAM_NCCL_IB_SL);
  int qps = tt_ib_qps_between(device->count, (int)tt_param_int(TT_PARAM_NCCL_IB_QPS_PER_CONNECTION), (int)handle->rails,
                              (int)handle->qps, &pieces);
  TT_TRY(TT_CALLOC(&attempt, 1));
  TT_TRY_GOTO(tt_ib_send_make(device, qps, pieces, &attempt->comm), result, out);
  TT_TRY_GOTO(tt_random(&attempt->card.connection, sizeof attempt->card.connection), result, out);
  tt_ib_link_card(tt_ib_send_link(attempt->comm), tt_ib_send_memory(attempt->comm), &attempt->card);
  attempt->card.traffic_class = (uint8_t)(wished >= 0 ? wished : traffic_class >= 0 ? traffic_class : 0);
  attempt->card.service_level = (uint8_t)TT_MAX(level, 0);
  tt_attempts_add(&pending, &attempt->base, user);
  *out = attempt;
  return ncclSuccess;
out:
  free_attempt(attempt);
  return result;
}

static ncclResult_t lost(const struct attempt *attempt)
{
  const struct tt_ib_link *link = tt_ib_send_link(attempt->comm);
  return TT_FAIL(ncclRemoteError, "net ib: lost the peer %s while the connection was made: %s; see its log", link->peer,
                 errno ? strerror(errno) : "it closed its socket");
}

/* The queue pairs of the peer are ready; ours become so, and it may then write. */
static ncclResult_t take_answer(struct attempt *attempt)
{
  struct tt_ib_card *answer = &attempt->answer;
  struct tt_ib_link *link = tt_ib_send_link(attempt->comm);
  answer->refusal[sizeof answer->refusal - 1] = 0;
  if (answer->refusal[0])
    return TT_FAIL(ncclRemoteError, "net ib: the peer %s cannot make the connection: %s", link->peer, answer->refusal);
  if (answer->connection != attempt->card.connection)
    return TT_FAIL(ncclRemoteError,
                   "net ib: the peer %s answered for another connection; do both run the same version?", link->peer);
  TT_TRY(tt_ib_link_connect(link, answer, attempt->card.traffic_class));
  attempt->go.kind = TT_IB_GO;
  attempt->moved = 0;
  attempt->phase = PHASE_GO;
  return ncclSuccess;
}

/* One step; *ready when both sides are. */
static ncclResult_t advance(struct attempt *attempt, struct tt_ib_handle *handle, bool *ready)
{
  struct tt_ib_link *link = tt_ib_send_link(attempt->comm);
  *ready = false;
  if (attempt->phase == PHASE_MEET) {
    int fds[TT_MEETING_SOCKETS], count;
    TT_TRY(tt_meeting_connect(&tt_ib_meeting, attempt->base.user, &handle->meeting, 1, fds, &count));
    if (count == 0) return ncclSuccess;
    tt_ib_link_met(link, fds[0]);
    attempt->phase = PHASE_TELL;
  }
  if (attempt->phase == PHASE_TELL) {
    if (tt_ib_socket_move(link->fd, true, &attempt->card, sizeof attempt->card, &attempt->moved) != ncclSuccess)
      return lost(attempt);
    if (attempt->moved < sizeof attempt->card) return ncclSuccess;
    attempt->moved = 0;
    attempt->phase = PHASE_HEAR;
  }
  if (attempt->phase == PHASE_HEAR) {
    if (tt_ib_socket_move(link->fd, false, &attempt->answer, sizeof attempt->answer, &attempt->moved) != ncclSuccess)
      return lost(attempt);
    if (attempt->moved < sizeof attempt->answer) return ncclSuccess;
    TT_TRY(take_answer(attempt));
  }
  if (tt_ib_socket_move(link->fd, true, &attempt->go, sizeof attempt->go, &attempt->moved) != ncclSuccess)
    return lost(attempt);
  *ready = attempt->moved == sizeof attempt->go;
  return *ready ? tt_ib_give_up_lost(link) : ncclSuccess;
}

ncclResult_t tt_ib_connect(int dev, uint64_t user, int traffic_class, void *storage, void **send_comm)
{
  const struct tt_ib_device *device;
  struct tt_ib_handle handle;
  struct attempt *attempt = NULL;
  bool ready = false;
  *send_comm = NULL;
  TT_TRY(tt_ib_device(dev, &device));
  memcpy(&handle, storage, sizeof handle);
  if (handle.meeting.magic != TT_IB_MAGIC || handle.rails < 1 || handle.rails > TT_IB_RAILS || handle.qps < 1 ||
      handle.qps > TT_IB_QPS)
    return TT_FAIL(ncclInternalError,
                   "net ib: connect got a handle that no IB listener of this version wrote; do both sides "
                   "use the same plugin and the same kind of machine?");
  if (handle.pending) attempt = tt_attempts_find(&pending, handle.pending);
  if (!attempt) {
    TT_TRY(begin_attempt(device, user, traffic_class, &handle, &attempt));
    handle.pending = attempt->base.number;
  }
  ncclResult_t result = advance(attempt, &handle, &ready);
  if (result == ncclSuccess && ready) {
    *send_comm = attempt->comm;
    attempt->comm = NULL;
  }
  if (result != ncclSuccess || ready) {
    tt_attempts_remove(&pending, &attempt->base);
    free_attempt(attempt);
    handle.pending = 0;
  }
  memcpy(storage, &handle, sizeof handle);
  return result;
}
