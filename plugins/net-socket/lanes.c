/* Lanes: the data sockets of a connection, each with a queue of pieces that one thread fills (the comm's user) and one
 * empties (a helper, or the same thread when there are no helpers). */
#include "net_socket.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/host.h"

#define STRIPE_ALIGN 64
#define MOVE_BYTES ((size_t)1 << 20) /* a system call, so that no lane starves the others of its thread */
#define SLEEP_MS 1000                /* a helper looks round at least this often */

enum moved { MOVED_NOTHING, MOVED_SOME, MOVED_FAILED };

struct tt_netsocket_stripes tt_netsocket_stripes(const struct tt_netsocket_link *link, size_t bytes)
{
  struct tt_netsocket_stripes stripes = {0, 0};
  if (link->lanes == 0 || bytes <= TT_NETSOCKET_STRIPE) return stripes;
  size_t share = (bytes + (size_t)link->lanes - 1) / (size_t)link->lanes;
  stripes.bytes = TT_MAX((share + STRIPE_ALIGN - 1) / STRIPE_ALIGN * STRIPE_ALIGN, TT_NETSOCKET_STRIPE);
  stripes.count = (int)((bytes + stripes.bytes - 1) / stripes.bytes);
  return stripes;
}

bool tt_netsocket_lanes_have_room(const struct tt_netsocket_link *link, int count)
{
  for (int i = 0; i < count; i++) {
    const struct tt_netsocket_lane *lane = &link->lane[(link->next_lane + i) % link->lanes];
    if (atomic_load_explicit(&lane->pushed, memory_order_relaxed) -
            atomic_load_explicit(&lane->taken, memory_order_acquire) ==
        TT_NETSOCKET_TASKS)
      return false;
  }
  return true;
}

static void wake(struct tt_netsocket_helper *helper)
{
  uint64_t one = 1;
  if (!atomic_exchange(&helper->asleep, 0)) return;
  /* An eventfd takes 8 bytes whole; it can only refuse when it is already far above zero, which wakes as well. */
  if (write(helper->wake, &one, sizeof one) < 0) return;
}

void tt_netsocket_lanes_push(struct tt_netsocket_link *link, struct tt_netsocket_stripes stripes, char *data,
                             size_t bytes, _Atomic uint32_t *left)
{
  for (int i = 0; i < stripes.count; i++) {
    int index = (link->next_lane + i) % link->lanes;
    struct tt_netsocket_lane *lane = &link->lane[index];
    size_t offset = (size_t)i * stripes.bytes;
    uint32_t pushed = atomic_load_explicit(&lane->pushed, memory_order_relaxed);
    struct tt_netsocket_task *task = &lane->tasks[pushed % TT_NETSOCKET_TASKS];
    task->data = data + offset;
    task->bytes = TT_MIN(stripes.bytes, bytes - offset);
    task->left = left;
    /* Sequentially consistent, as is the helper's pair: either it sees the task or we see that it sleeps. */
    atomic_store(&lane->pushed, pushed + 1);
    if (link->threads) wake(&link->helper[index % link->threads]);
  }
  link->next_lane = (link->next_lane + stripes.count) % link->lanes;
}

static bool lane_busy(struct tt_netsocket_lane *lane)
{
  return atomic_load(&lane->pushed) != atomic_load_explicit(&lane->taken, memory_order_relaxed);
}

/* One system call for the oldest task of a lane. */
static enum moved move_lane(struct tt_netsocket_link *link, struct tt_netsocket_lane *lane)
{
  if (!lane_busy(lane)) return MOVED_NOTHING;
  uint32_t taken = atomic_load_explicit(&lane->taken, memory_order_relaxed);
  struct tt_netsocket_task *task = &lane->tasks[taken % TT_NETSOCKET_TASKS];
  size_t bytes = TT_MIN(task->bytes - lane->moved, MOVE_BYTES);
  ssize_t n = link->sends ? send(lane->fd, task->data + lane->moved, bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                          : recv(lane->fd, task->data + lane->moved, bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return MOVED_NOTHING;
  if (n <= 0) {
    int none = 0;
    atomic_compare_exchange_strong(&link->lane_error, &none, n < 0 ? errno : -1);
    return MOVED_FAILED;
  }
  lane->moved += (size_t)n;
  if (lane->moved == task->bytes) {
    lane->moved = 0;
    /* Whoever sees the count drop owns the data again. */
    atomic_fetch_sub_explicit(task->left, 1, memory_order_release);
    atomic_store_explicit(&lane->taken, taken + 1, memory_order_release);
  }
  return MOVED_SOME;
}

static enum moved move_helper_lanes(struct tt_netsocket_helper *helper)
{
  struct tt_netsocket_link *link = helper->link;
  enum moved moved = MOVED_NOTHING;
  for (int i = helper->first; i < link->lanes; i += link->threads) {
    enum moved now = move_lane(link, &link->lane[i]);
    if (now == MOVED_FAILED) return MOVED_FAILED;
    if (now == MOVED_SOME) moved = MOVED_SOME;
  }
  return moved;
}

/* Sleeps until a busy lane can move or the user pushes something. `asleep` is set before the lanes are looked at. */
static void helper_sleep(struct tt_netsocket_helper *helper, bool failed)
{
  struct tt_netsocket_link *link = helper->link;
  struct pollfd fds[1 + TT_NETSOCKET_LANES];
  nfds_t count = 1;
  uint64_t ignored;
  fds[0] = (struct pollfd){.fd = helper->wake, .events = POLLIN};
  atomic_store(&helper->asleep, 1);
  for (int i = helper->first; i < link->lanes && !failed; i += link->threads)
    if (lane_busy(&link->lane[i]))
      fds[count++] = (struct pollfd){.fd = link->lane[i].fd, .events = link->sends ? POLLOUT : POLLIN};
  if (!atomic_load(&link->stop)) poll(fds, count, SLEEP_MS);
  atomic_store(&helper->asleep, 0);
  if (fds[0].revents && read(helper->wake, &ignored, sizeof ignored) < 0) return;
}

static void *helper_run(void *arg)
{
  struct tt_netsocket_helper *helper = arg;
  bool failed = false;
  while (!atomic_load(&helper->link->stop)) {
    enum moved moved = failed ? MOVED_NOTHING : move_helper_lanes(helper);
    if (moved == MOVED_FAILED) failed = true;
    if (moved == MOVED_NOTHING) helper_sleep(helper, failed);
  }
  return NULL;
}

ncclResult_t tt_netsocket_lanes_progress(struct tt_netsocket_link *link)
{
  if (!link->threads)
    for (int i = 0; i < link->lanes; i++)
      if (move_lane(link, &link->lane[i]) == MOVED_FAILED) break;
  int error = atomic_load_explicit(&link->lane_error, memory_order_relaxed);
  if (!error) return ncclSuccess;
  return tt_netsocket_link_lost(link, error > 0 ? error : 0, "moving a large message");
}

ncclResult_t tt_netsocket_lanes_start(struct tt_netsocket_link *link, const int *fds, int count)
{
  ncclResult_t result = ncclSuccess;
  if (count == 0) return ncclSuccess;
  result = TT_CALLOC(&link->lane, (size_t)count);
  if (result != ncclSuccess) {
    for (int i = 0; i < count; i++) close(fds[i]);
    return result;
  }
  link->lanes = count;
  for (int i = 0; i < count; i++) link->lane[i].fd = fds[i];
  int threads = TT_MIN(tt_netsocket_shape().threads, count);
  if (!threads) return ncclSuccess;
  TT_TRY(TT_CALLOC(&link->helper, (size_t)threads));
  /* All lanes' division among threads must be known before the first helper runs. */
  link->threads = threads;
  char hint[100];
  for (int i = 0; i < threads; i++)
    link->helper[i] = (struct tt_netsocket_helper){.link = link, .first = i, .wake = -1};
  for (int i = 0; i < threads && result == ncclSuccess; i++) {
    struct tt_netsocket_helper *helper = &link->helper[i];
    helper->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (helper->wake < 0)
      result = TT_FAIL(ncclSystemError, "net socket: no eventfd for a helper thread: %s%s", strerror(errno),
                       tt_host_file_hint(errno, hint, sizeof hint));
    else
      result = tt_thread_start(&helper->thread, "tutti-net-sock", helper_run, helper);
    if (result != ncclSuccess) tt_socket_close(&helper->wake);
  }
  return result;
}

void tt_netsocket_lanes_stop(struct tt_netsocket_link *link)
{
  uint64_t one = 1;
  atomic_store(&link->stop, 1);
  for (int i = 0; i < link->threads && link->helper[i].wake >= 0; i++) {
    struct tt_netsocket_helper *helper = &link->helper[i];
    /* Refused only if the counter is full, and then the helper wakes too; at worst it wakes by itself. */
    ssize_t written = write(helper->wake, &one, sizeof one);
    (void)written;
    pthread_join(helper->thread, NULL);
    close(helper->wake);
  }
  for (int i = 0; i < link->lanes; i++) close(link->lane[i].fd);
  free(link->helper);
  free(link->lane);
  link->helper = NULL;
  link->lane = NULL;
  link->lanes = link->threads = 0;
}
