/* The connecting side: a state machine that moves at each call and never waits. */
#include "plugins/common/meeting.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/check.h"
#include "base/param.h"
#include "plugins/common/attempts.h"
#include "plugins/common/meeting_wire.h"

enum phase { PHASE_PAUSE, PHASE_DIAL, PHASE_WAIT };

struct attempt {
  struct tt_attempt base;
  const struct tt_meeting_kind *kind;
  struct tt_key key;
  union tt_address address;
  enum phase phase;
  uint64_t connection;
  int count, greeted;
  int fds[TT_MEETING_SOCKETS];
  bool said[TT_MEETING_SOCKETS]; /* this socket's greeting is out */
  struct tt_meeting_welcome welcome;
  size_t got;
  int tries, last_error;
  tt_deadline deadline, pause_end;
};

static struct tt_attempts pending = TT_ATTEMPTS_NONE;

static void hang_up(struct attempt *attempt)
{
  for (int i = 0; i < attempt->count; i++) tt_socket_close(&attempt->fds[i]);
}

static void free_attempt(void *attempt)
{
  hang_up(attempt);
  free(attempt);
}

void tt_meeting_forget(uint64_t user)
{
  tt_attempts_end(&pending, user, free_attempt);
}

static void set_deadline(struct attempt *attempt)
{
  attempt->deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_SOCKET_TIMEOUT) * 1000);
}

/* Both sides want a number of sockets; the smaller serves both. */
static ncclResult_t begin_attempt(const struct tt_meeting_kind *kind, uint64_t user,
                                  const struct tt_meeting_handle *handle, int sockets, struct attempt **out)
{
  struct attempt *attempt;
  char text[TT_ADDRESS_TEXT];
  if (handle->sockets != (uint32_t)sockets)
    TT_INFO(TT_NET, "%s : %s wants %u sockets a connection and this side %d; using the smaller number", kind->label,
            tt_address_print(&handle->address, text), handle->sockets, sockets);
  if (handle->sockets < (uint32_t)sockets) sockets = (int)handle->sockets;
  TT_TRY(TT_CALLOC(&attempt, 1));
  attempt->kind = kind;
  attempt->key = handle->key;
  attempt->address = handle->address;
  attempt->count = sockets;
  for (int i = 0; i < attempt->count; i++) attempt->fds[i] = -1;
  set_deadline(attempt);
  tt_attempts_add(&pending, &attempt->base, user);
  *out = attempt;
  return ncclSuccess;
}

/* One round of sockets failed. Tries again after a pause, unless the cause is ours or patience is over. */
static ncclResult_t try_later(struct attempt *attempt, int error)
{
  char text[TT_ADDRESS_TEXT];
  const char *cause = error ? strerror(error) : "the peer closed the connection before accepting it";
  int64_t most = tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_CNT);
  tt_address_print(&attempt->address, text);
  hang_up(attempt);
  if (attempt->phase == PHASE_WAIT) set_deadline(attempt); /* the peer was there: patience starts anew */
  if (!tt_meeting_transient(error))
    return TT_FAIL(ncclSystemError, "%s: connecting to %s failed: %s", attempt->kind->name, text, cause);
  if (attempt->tries++ >= most || tt_deadline_passed(attempt->deadline))
    return TT_FAIL(ncclRemoteError,
                   "%s: connecting to %s failed after %d attempts: %s; check that the peer runs and that no "
                   "firewall is between; NCCL_SOCKET_RETRY_CNT=%lld, NCCL_SOCKET_RETRY_SLEEP_MSEC=%lld and "
                   "NCCL_SOCKET_TIMEOUT=%lld set the patience, NCCL_SOCKET_IFNAME the interface",
                   attempt->kind->name, text, attempt->tries, cause, (long long)most,
                   (long long)tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_SLEEP_MSEC),
                   (long long)tt_param_int(TT_PARAM_NCCL_SOCKET_TIMEOUT));
  if (attempt->tries == 1 || attempt->last_error != error)
    TT_INFO(TT_NET, "%s : connecting to %s: %s; trying again", attempt->kind->label, text, cause);
  attempt->last_error = error;
  attempt->pause_end = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_SLEEP_MSEC) * attempt->tries);
  attempt->phase = PHASE_PAUSE;
  return ncclSuccess;
}

/* Returns 0 or an errno. */
static int dial(struct attempt *attempt)
{
  attempt->greeted = 0;
  attempt->got = 0;
  attempt->phase = PHASE_DIAL;
  for (int i = 0; i < attempt->count; i++) {
    int fd = socket(attempt->address.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    attempt->fds[i] = fd;
    attempt->said[i] = false;
    tt_meeting_tune(fd); /* the peer may take its time to accept, but its host must be there */
    if (connect(fd, &attempt->address.sa, tt_address_bytes(&attempt->address)) < 0 && errno != EINPROGRESS)
      return errno;
  }
  return 0;
}

static int greet(struct attempt *attempt, int index)
{
  struct tt_meeting_hello hello = {.magic = attempt->kind->magic,
                                   .connection = attempt->connection,
                                   .index = (uint32_t)index,
                                   .count = (uint32_t)attempt->count};
  hello.proof = tt_meeting_hello_proof(&attempt->key, &hello);
  /* A fresh socket takes 32 bytes whole. */
  ssize_t n = send(attempt->fds[index], &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0) return errno;
  if (n != (ssize_t)sizeof hello) return EPIPE;
  attempt->said[index] = true;
  attempt->greeted++;
  return 0;
}

/* Greets on every socket that is connected by now. */
static int greet_connected(struct attempt *attempt)
{
  struct pollfd fds[TT_MEETING_SOCKETS];
  for (int i = 0; i < attempt->count; i++)
    fds[i] = (struct pollfd){.fd = attempt->said[i] ? -1 : attempt->fds[i], .events = POLLOUT};
  if (poll(fds, (nfds_t)attempt->count, 0) < 0) return errno == EINTR ? 0 : errno;
  for (int i = 0; i < attempt->count; i++) {
    if (attempt->said[i] || !fds[i].revents) continue;
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(attempt->fds[i], SOL_SOCKET, SO_ERROR, &error, &bytes) < 0) error = errno;
    if (!error) error = greet(attempt, i);
    if (error) return error;
  }
  if (attempt->greeted == attempt->count) attempt->phase = PHASE_WAIT;
  return 0;
}

enum answer { ANSWER_NONE, ANSWER_WELCOME, ANSWER_LOST };

/* The other sockets stay silent, so anything readable there means that the listener dropped them, or that the peer
 * accepted and has closed already; the welcome tells which, so it is looked for first. */
static enum answer read_answer(struct attempt *attempt, int *error)
{
  struct pollfd fds[TT_MEETING_SOCKETS];
  enum answer answer = ANSWER_NONE;
  *error = 0;
  for (int i = 0; i < attempt->count; i++) fds[i] = (struct pollfd){.fd = attempt->fds[i], .events = POLLIN};
  if (poll(fds, (nfds_t)attempt->count, 0) <= 0) return ANSWER_NONE;
  for (int i = 1; i < attempt->count; i++)
    if (fds[i].revents) answer = ANSWER_LOST;
  ssize_t n = recv(attempt->fds[0], (char *)&attempt->welcome + attempt->got, sizeof attempt->welcome - attempt->got,
                   MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return answer;
  if (n < 0) *error = errno;
  if (n <= 0) return ANSWER_LOST;
  attempt->got += (size_t)n;
  if (attempt->got < sizeof attempt->welcome) return answer;
  const struct tt_meeting_welcome *welcome = &attempt->welcome;
  bool good = welcome->magic == attempt->kind->magic && welcome->connection == attempt->connection &&
              welcome->proof == tt_meeting_welcome_proof(&attempt->key, welcome);
  return good ? ANSWER_WELCOME : ANSWER_LOST;
}

/* One step; *ready when the peer accepted. */
static ncclResult_t advance(struct attempt *attempt, bool *ready)
{
  int error = 0;
  *ready = false;
  if (attempt->phase == PHASE_PAUSE) {
    if (attempt->tries && !tt_deadline_passed(attempt->pause_end)) return ncclSuccess;
    TT_TRY(tt_random(&attempt->connection, sizeof attempt->connection));
    error = dial(attempt);
    if (error) return try_later(attempt, error);
  }
  if (attempt->phase == PHASE_DIAL) {
    error = greet_connected(attempt);
    if (!error && attempt->phase == PHASE_DIAL && tt_deadline_passed(attempt->deadline)) error = ETIMEDOUT;
    if (error) return try_later(attempt, error);
  }
  if (attempt->phase == PHASE_WAIT) {
    enum answer answer = read_answer(attempt, &error);
    if (answer == ANSWER_LOST) return try_later(attempt, error);
    *ready = answer == ANSWER_WELCOME;
  }
  return ncclSuccess;
}

ncclResult_t tt_meeting_connect(const struct tt_meeting_kind *kind, uint64_t user, struct tt_meeting_handle *handle,
                                int sockets, int fds[TT_MEETING_SOCKETS], int *count)
{
  struct attempt *attempt = NULL;
  bool ready = false;
  *count = 0;
  if (handle->magic != kind->magic || handle->sockets < 1 || handle->sockets > TT_MEETING_SOCKETS ||
      (handle->address.sa.sa_family != AF_INET && handle->address.sa.sa_family != AF_INET6))
    return TT_FAIL(ncclInternalError,
                   "%s: connect got a handle that no listener of this version wrote; do both sides use the same plugin "
                   "and the same kind of machine?",
                   kind->name);
  if (handle->pending) attempt = tt_attempts_find(&pending, handle->pending);
  if (!attempt) {
    TT_TRY(begin_attempt(kind, user, handle, sockets, &attempt));
    handle->pending = attempt->base.number;
  }
  ncclResult_t result = advance(attempt, &ready);
  if (result == ncclSuccess && ready) {
    *count = attempt->count;
    memcpy(fds, attempt->fds, (size_t)*count * sizeof *fds);
    attempt->count = 0; /* the sockets are the caller's now */
  }
  if (result != ncclSuccess || ready) {
    tt_attempts_remove(&pending, &attempt->base);
    free_attempt(attempt);
    handle->pending = 0;
  }
  return result;
}
