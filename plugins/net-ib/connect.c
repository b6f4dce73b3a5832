/* The connecting side: a state machine that moves at each call and never waits. The caller's handle holds only the
 * number of the attempt, which is looked up in a list, so that a stray handle can do no harm and attempts that the
 * caller gave up can be ended. */
#include "net_ib.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum phase { PHASE_PAUSE, PHASE_DIAL, PHASE_TELL, PHASE_HEAR, PHASE_GO };

struct attempt {
  uint64_t number;
  struct tt_key key;
  union tt_address address;
  enum phase phase;
  struct tt_ib_send_comm *comm;
  struct tt_ib_card card, answer;
  size_t moved; /* of what is being sent or received */
  struct tt_ib_note go;
  int fd, tries, last_error;
  tt_deadline deadline, pause_end;
  struct attempt *next;
};

static struct {
  pthread_mutex_t lock; /* guards the list and the numbers, not the attempts: each has one caller */
  struct attempt *list;
  uint64_t last_number;
} pending = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t tt_ib_card_proof(const struct tt_key *key, const struct tt_ib_card *card)
{
  return tt_hash_keyed(key, card, offsetof(struct tt_ib_card, proof));
}

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

static void free_attempt(struct attempt *attempt)
{
  tt_ib_close_send(attempt->comm);
  tt_socket_close(&attempt->fd);
  free(attempt);
}

static struct attempt *find_attempt(uint64_t number)
{
  pthread_mutex_lock(&pending.lock);
  struct attempt *attempt = pending.list;
  while (attempt && attempt->number != number) attempt = attempt->next;
  pthread_mutex_unlock(&pending.lock);
  return attempt;
}

static void end_attempt(struct attempt *attempt)
{
  pthread_mutex_lock(&pending.lock);
  struct attempt **at = &pending.list;
  while (*at != attempt) at = &(*at)->next;
  *at = attempt->next;
  pthread_mutex_unlock(&pending.lock);
  free_attempt(attempt);
}

void tt_ib_connect_forget(void)
{
  pthread_mutex_lock(&pending.lock);
  struct attempt *list = pending.list;
  pending.list = NULL;
  pthread_mutex_unlock(&pending.lock);
  while (list) {
    struct attempt *attempt = list;
    list = attempt->next;
    free_attempt(attempt);
  }
}

static void set_deadline(struct attempt *attempt)
{
  attempt->deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_SOCKET_TIMEOUT) * 1000);
}

static ncclResult_t begin_attempt(const struct tt_ib_device *device, int traffic_class,
                                  const struct tt_ib_handle *handle, struct attempt **out)
{
  struct attempt *attempt = NULL;
  ncclResult_t result;
  int pieces, wished = (int)tt_param_int(TT_PARAM_NCCL_IB_TC), level = (int)tt_param_int(TT_PARAM_NCCL_IB_SL);
  int qps = tt_ib_qps_between(device->count, (int)tt_param_int(TT_PARAM_NCCL_IB_QPS_PER_CONNECTION), (int)handle->rails,
                              (int)handle->qps, &pieces);
  TT_TRY(TT_CALLOC(&attempt, 1));
  attempt->fd = -1;
  attempt->key = handle->key;
  attempt->address = handle->address;
  TT_TRY_GOTO(tt_ib_send_make(device, qps, pieces, &attempt->comm), result, out);
  TT_TRY_GOTO(tt_random(&attempt->card.connection, sizeof attempt->card.connection), result, out);
  tt_ib_link_card(tt_ib_send_link(attempt->comm), tt_ib_send_memory(attempt->comm), &attempt->card);
  attempt->card.traffic_class = (uint8_t)(wished >= 0 ? wished : traffic_class >= 0 ? traffic_class : 0);
  attempt->card.service_level = (uint8_t)TT_MAX(level, 0);
  attempt->card.proof = tt_ib_card_proof(&attempt->key, &attempt->card);
  set_deadline(attempt);
  pthread_mutex_lock(&pending.lock);
  attempt->number = ++pending.last_number;
  attempt->next = pending.list;
  pending.list = attempt;
  pthread_mutex_unlock(&pending.lock);
  *out = attempt;
  return ncclSuccess;
out:
  free_attempt(attempt);
  return result;
}

/* The socket failed. Tries again after a pause, unless the cause is ours or patience is over. */
static ncclResult_t try_later(struct attempt *attempt, int error)
{
  char text[TT_ADDRESS_TEXT];
  const char *cause = error ? strerror(error) : "the peer closed the connection before accepting it";
  int64_t most = tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_CNT);
  tt_address_print(&attempt->address, text);
  tt_socket_close(&attempt->fd);
  if (error && error != EPIPE && !tt_socket_transient(error))
    return TT_FAIL(ncclSystemError, "net ib: connecting to %s failed: %s", text, cause);
  if (attempt->phase >= PHASE_HEAR) set_deadline(attempt); /* the peer was there: patience starts anew */
  if (attempt->tries++ >= most || tt_deadline_passed(attempt->deadline))
    return TT_FAIL(
        ncclRemoteError,
        "net ib: connecting to %s failed after %d attempts: %s; check that the peer runs and that no firewall is "
        "between; NCCL_SOCKET_RETRY_CNT=%lld, NCCL_SOCKET_RETRY_SLEEP_MSEC=%lld and NCCL_SOCKET_TIMEOUT=%lld "
        "set the patience, NCCL_SOCKET_IFNAME the interface",
        text, attempt->tries, cause, (long long)most, (long long)tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_SLEEP_MSEC),
        (long long)tt_param_int(TT_PARAM_NCCL_SOCKET_TIMEOUT));
  if (attempt->tries == 1 || attempt->last_error != error)
    TT_INFO(TT_NET, "NET/IB : connecting to %s: %s; trying again", text, cause);
  attempt->last_error = error;
  attempt->pause_end = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_SLEEP_MSEC) * attempt->tries);
  attempt->phase = PHASE_PAUSE;
  return ncclSuccess;
}

/* Returns 0 or an errno. */
static int dial(struct attempt *attempt)
{
  attempt->fd = socket(attempt->address.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (attempt->fd < 0) return errno;
  attempt->phase = PHASE_DIAL;
  attempt->moved = 0;
  if (connect(attempt->fd, &attempt->address.sa, tt_address_bytes(&attempt->address)) < 0 && errno != EINPROGRESS)
    return errno;
  return 0;
}

/* *connected, or an errno. */
static int look(struct attempt *attempt, bool *connected)
{
  struct pollfd fd = {.fd = attempt->fd, .events = POLLOUT};
  int error = 0;
  socklen_t bytes = sizeof error;
  *connected = false;
  if (poll(&fd, 1, 0) < 0) return errno == EINTR ? 0 : errno;
  if (!fd.revents) return tt_deadline_passed(attempt->deadline) ? ETIMEDOUT : 0;
  if (getsockopt(attempt->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0) error = errno;
  *connected = !error;
  return error;
}

/* The queue pairs of the peer are ready; ours become so, and it may then write. */
static ncclResult_t take_answer(struct attempt *attempt)
{
  struct tt_ib_card *answer = &attempt->answer;
  struct tt_ib_link *link = tt_ib_send_link(attempt->comm);
  char text[TT_ADDRESS_TEXT];
  if (answer->magic != TT_IB_MAGIC || !answer->answers || answer->connection != attempt->card.connection ||
      answer->proof != tt_ib_card_proof(&attempt->key, answer))
    return TT_FAIL(ncclRemoteError, "net ib: %s answered, but is no net-ib listener of this version",
                   tt_address_print(&attempt->address, text));
  answer->refusal[sizeof answer->refusal - 1] = 0;
  if (answer->refusal[0])
    return TT_FAIL(ncclRemoteError, "net ib: the peer %s cannot make the connection: %s",
                   tt_address_print(&attempt->address, text), answer->refusal);
  link->fd = attempt->fd;
  attempt->fd = -1;
  TT_TRY(tt_ib_link_connect(link, answer, attempt->card.traffic_class));
  attempt->go.kind = TT_IB_GO;
  attempt->moved = 0;
  attempt->phase = PHASE_GO;
  return ncclSuccess;
}

/* One step; *ready when both sides are. */
static ncclResult_t advance(struct attempt *attempt, bool *ready)
{
  *ready = false;
  if (attempt->phase == PHASE_PAUSE) {
    if (attempt->tries && !tt_deadline_passed(attempt->pause_end)) return ncclSuccess;
    int error = dial(attempt);
    if (error) return try_later(attempt, error);
  }
  if (attempt->phase == PHASE_DIAL) {
    bool connected;
    int error = look(attempt, &connected);
    if (error) return try_later(attempt, error);
    if (!connected) return ncclSuccess;
    attempt->phase = PHASE_TELL;
  }
  if (attempt->phase == PHASE_TELL) {
    if (tt_ib_socket_move(attempt->fd, true, &attempt->card, sizeof attempt->card, &attempt->moved) != ncclSuccess)
      return try_later(attempt, errno);
    if (attempt->moved < sizeof attempt->card) return ncclSuccess;
    attempt->moved = 0;
    attempt->phase = PHASE_HEAR;
  }
  if (attempt->phase == PHASE_HEAR) {
    if (tt_ib_socket_move(attempt->fd, false, &attempt->answer, sizeof attempt->answer, &attempt->moved) != ncclSuccess)
      return try_later(attempt, errno);
    if (attempt->moved < sizeof attempt->answer) return ncclSuccess;
    TT_TRY(take_answer(attempt));
  }
  struct tt_ib_link *link = tt_ib_send_link(attempt->comm);
  if (tt_ib_socket_move(link->fd, true, &attempt->go, sizeof attempt->go, &attempt->moved) != ncclSuccess)
    return TT_FAIL(ncclRemoteError, "net ib: lost the peer %s while the connection was made: %s", link->peer,
                   errno ? strerror(errno) : "it closed its socket");
  *ready = attempt->moved == sizeof attempt->go;
  return ncclSuccess;
}

ncclResult_t tt_ib_connect(int dev, int traffic_class, void *storage, void **send_comm)
{
  const struct tt_ib_device *device;
  struct tt_ib_handle handle;
  struct attempt *attempt = NULL;
  bool ready = false;
  *send_comm = NULL;
  TT_TRY(tt_ib_device(dev, &device));
  memcpy(&handle, storage, sizeof handle);
  if (handle.magic != TT_IB_MAGIC || handle.rails < 1 || handle.rails > TT_IB_RAILS || handle.qps < 1 ||
      handle.qps > TT_IB_QPS || (handle.address.sa.sa_family != AF_INET && handle.address.sa.sa_family != AF_INET6))
    return TT_FAIL(ncclInternalError,
                   "net ib: connect got a handle that no IB listener of this version wrote; do both sides "
                   "use the same plugin and the same kind of machine?");
  if (handle.pending) attempt = find_attempt(handle.pending);
  if (!attempt) {
    TT_TRY(begin_attempt(device, traffic_class, &handle, &attempt));
    handle.pending = attempt->number;
    memcpy(storage, &handle, sizeof handle);
  }
  ncclResult_t result = advance(attempt, &ready);
  if (result == ncclSuccess && ready) {
    *send_comm = attempt->comm;
    attempt->comm = NULL;
  }
  if (result != ncclSuccess || ready) {
    end_attempt(attempt);
    handle.pending = 0;
    memcpy(storage, &handle, sizeof handle);
  }
  return result;
}
