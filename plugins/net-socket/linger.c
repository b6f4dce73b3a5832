/* Closing a socket while a note of the receiver is unread, or comes later, resets the connection and discards what is
 * still on its way to the receiver. So where notes can come, the close waits, shortly, until the receiver's system has
 * everything.
 *
 * A receiver that hangs takes nothing more, and there may be many connections to it, which are closed one after the
 * other. So what is waited in vain counts for all connections of the process: once the time is used up, each of them
 * gets no more than one that is well needs. After a while without such waits there is all of the time again. */
#include "net_socket.h"

#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#define MS ((uint64_t)1000000)
#define ALL_NS (1000 * MS)    /* that is waited in vain */
#define EACH_NS (10 * MS)     /* but at least for each connection */
#define AGAIN_NS (10000 * MS) /* without waits in vain */
#define NAP_NS (1 * MS)

static struct {
  pthread_mutex_t lock;
  uint64_t vain_ns, until_ns;
} waits = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t patience_ns(uint64_t now)
{
  pthread_mutex_lock(&waits.lock);
  if (now > waits.until_ns + AGAIN_NS) waits.vain_ns = 0;
  uint64_t left = ALL_NS - TT_MIN(waits.vain_ns, ALL_NS);
  pthread_mutex_unlock(&waits.lock);
  return TT_MAX(left, EACH_NS);
}

/* What several threads wait at the same time counts once. */
static void waited_in_vain(uint64_t begin, uint64_t end)
{
  pthread_mutex_lock(&waits.lock);
  begin = TT_MAX(begin, waits.until_ns);
  if (end > begin) {
    waits.vain_ns += end - begin;
    waits.until_ns = end;
  }
  pthread_mutex_unlock(&waits.lock);
}

void tt_netsocket_linger(int fd)
{
  uint64_t begin = tt_timer_ns(), end = begin + patience_ns(begin), now = begin;
  char drain[256];
  int waiting = 1;
  shutdown(fd, SHUT_WR);
  for (; now < end; now = tt_timer_ns()) {
    ssize_t n = recv(fd, drain, sizeof drain, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return;
    if (n > 0) continue;
    if (ioctl(fd, SIOCOUTQ, &waiting) < 0 || waiting == 0) return;
    struct timespec nap = {.tv_nsec = NAP_NS};
    nanosleep(&nap, NULL);
  }
  waited_in_vain(begin, now);
}
