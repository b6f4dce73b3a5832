/* See join.h. A client that is not of this job, is silent or speaks something else is dropped without harm: each
 * connection begins with a greeting that carries the job's key, and nobody else waits for one. */
#include "join.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { RETRY_MS = 50, MOST_ADDRESSES = 8, MOST_VISITORS = 256 };

struct greeting {
  char magic[8];
  uint64_t key;
  int32_t process, processes;
};
static const char magic[8] = "ttperf1";

struct place {
  struct sockaddr_storage addresses[MOST_ADDRESSES];
  socklen_t lengths[MOST_ADDRESSES];
  int count;
  bool is_name; /* of a host that others know too, and no address */
  char text[200];
};

static int64_t now_ms(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static uint64_t key_of(const struct perf_join *join)
{
  uint64_t hash = 14695981039346656037u;
  const char *texts[] = {join->address, "|", join->job};
  for (int i = 0; i < 3; i++)
    for (const char *c = texts[i]; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
  return hash;
}

/* The system's functions take a port of 99999 for 34463. */
static bool is_port(const char *text)
{
  size_t digits = strspn(text, "0123456789");
  return digits > 0 && digits < 6 && !text[digits] && atoi(text) >= 1 && atoi(text) <= UINT16_MAX;
}

bool perf_join_split(const char *text, char *host, size_t size, const char **port)
{
  const char *colon = strrchr(text, ':');
  if (!colon || colon == text || !is_port(colon + 1)) return false;
  size_t length = (size_t)(colon - text);
  if (text[0] == '[' && text[length - 1] == ']') text++, length -= 2;
  if (length == 0 || length >= size) return false;
  memcpy(host, text, length);
  host[length] = 0;
  *port = colon + 1;
  return true;
}

static bool resolve(const struct perf_join *join, struct place *place, char *error, size_t size)
{
  memset(place, 0, sizeof(*place));
  if (!join->address[0]) {
    struct sockaddr_un *un = (struct sockaddr_un *)place->addresses;
    un->sun_family = AF_UNIX;
    int n = snprintf(un->sun_path + 1, sizeof(un->sun_path) - 1, "tutti-perf/%u%s", (unsigned)getuid(), join->job);
    if (n >= (int)sizeof(un->sun_path) - 1) n = (int)sizeof(un->sun_path) - 2;
    place->count = 1;
    place->lengths[0] = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    snprintf(place->text, sizeof(place->text), "the local meeting point of job %s", join->job);
    return true;
  }
  char host[PERF_JOIN_HOST];
  const char *port;
  struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *list;
  if (!perf_join_split(join->address, host, sizeof(host), &port)) {
    snprintf(error, size, "%s: " PERF_JOIN_NO_ADDRESS, join->address);
    return false;
  }
  int code = getaddrinfo(host, port, &hints, &list);
  if (code == EAI_NONAME) {
    place->is_name = strcmp(host, "localhost") != 0;
    hints.ai_flags = 0;
    code = getaddrinfo(host, port, &hints, &list);
  }
  if (code) {
    snprintf(error, size, "%s: %s", join->address, gai_strerror(code));
    return false;
  }
  for (const struct addrinfo *a = list; a && place->count < MOST_ADDRESSES; a = a->ai_next) {
    memcpy(&place->addresses[place->count], a->ai_addr, a->ai_addrlen);
    place->lengths[place->count++] = a->ai_addrlen;
  }
  freeaddrinfo(list);
  snprintf(place->text, sizeof(place->text), "%s", join->address);
  return true;
}

static int open_socket(int family)
{
  int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  if (fd >= 0 && family != AF_UNIX) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

static void list_missing(const struct perf_join *join, const int *fds, char *text, size_t size)
{
  size_t used = 0;
  int listed = 0;
  text[0] = 0;
  for (int p = 1; p < join->processes && used + 24 < size; p++) {
    if (fds[p] >= 0) continue;
    if (listed++ == 16) {
      snprintf(text + used, size - used, ", ...");
      break;
    }
    used += (size_t)snprintf(text + used, size - used, "%s%d", listed > 1 ? ", " : "", p);
  }
}

/* A connection whose greeting has not come, or not all of it. */
struct visitor {
  int fd;
  size_t got;
  struct greeting greeting;
};

/* Whether the visitor need not be listened to any more: it has said all, or has gone. */
static bool has_spoken(struct visitor *visitor)
{
  ssize_t n = recv(visitor->fd, (char *)&visitor->greeting + visitor->got, sizeof(struct greeting) - visitor->got,
                   MSG_DONTWAIT);
  if (n < 0) return errno != EINTR && errno != EAGAIN;
  visitor->got += (size_t)n;
  return n == 0 || visitor->got == sizeof(struct greeting);
}

/* Takes a visitor if it is one of ours; true when a process was added. */
static bool take(const struct perf_join *join, const struct visitor *visitor, int *fds, char *error, size_t size)
{
  const struct greeting *greeting = &visitor->greeting;
  int one = 1;
  bool ours = visitor->got == sizeof(*greeting) && !memcmp(greeting->magic, magic, sizeof(magic)) &&
              greeting->key == key_of(join);
  if (ours && (greeting->processes != join->processes || greeting->process < 1 ||
               greeting->process >= join->processes || fds[greeting->process] >= 0)) {
    snprintf(error, size, "a process says that it is %d of %d, but process 0 was told that there are %d%s",
             greeting->process, greeting->processes, join->processes,
             greeting->processes == join->processes ? ", and that number is taken" : "");
    ours = false;
  }
  if (!ours) {
    close(visitor->fd);
    return false;
  }
  setsockopt(visitor->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* fails, harmlessly, on a Unix socket */
  fds[greeting->process] = visitor->fd;
  return true;
}

static int listen_at(const void *address, socklen_t length)
{
  const struct sockaddr *at = address;
  int fd = open_socket(at->sa_family), one = 1, zero = 0;
  if (fd < 0) return -1;
  if (at->sa_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (at->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  if (!bind(fd, at, length) && !listen(fd, 4096)) return fd;
  int cause = errno;
  close(fd);
  errno = cause;
  return -1;
}

/* A host may know its own name as an address that nobody else can reach, 127.0.1.1 say: who is given a name listens on
 * all addresses. */
static int open_listener(const struct place *place)
{
  if (!place->is_name) return listen_at(&place->addresses[0], place->lengths[0]);
  bool v6 = place->addresses[0].ss_family == AF_INET6;
  in_port_t port = v6 ? ((const struct sockaddr_in6 *)&place->addresses[0])->sin6_port
                      : ((const struct sockaddr_in *)&place->addresses[0])->sin_port;
  struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = port};
  struct sockaddr_in any_v4 = {.sin_family = AF_INET, .sin_port = port};
  int fd = listen_at(&any, sizeof(any));
  if (fd < 0 && errno != EADDRINUSE) fd = listen_at(&any_v4, sizeof(any_v4)); /* a host may have no IPv6 */
  return fd >= 0 ? fd : listen_at(&place->addresses[0], place->lengths[0]);   /* the port may be in use elsewhere */
}

/* Waits until somebody comes or speaks, at most until `deadline`. */
static bool await_visitors(struct pollfd *set, int listener, const struct visitor *visitors, int count,
                           int64_t deadline)
{
  set[0] = (struct pollfd){listener, POLLIN, 0};
  for (int v = 0; v < count; v++) set[1 + v] = (struct pollfd){visitors[v].fd, POLLIN, 0};
  for (;;) {
    int64_t left = deadline - now_ms();
    int n = poll(set, (nfds_t)count + 1, left > 0 ? (int)left : 0);
    if (n >= 0 || errno != EINTR) return n > 0;
  }
}

/* How many processes came. Nobody waits for a visitor that is silent, and it may speak as late as it likes: one on a
 * busy host, or behind a network that lost its greeting, is no stranger. Of too many the first is sent away. */
static int receive_all(const struct perf_join *join, int listener, int64_t deadline, int *fds, char *error, size_t size)
{
  struct visitor visitors[MOST_VISITORS];
  struct pollfd set[1 + MOST_VISITORS];
  int count = 0, came = 0;
  while (came < join->processes - 1 && !error[0] && await_visitors(set, listener, visitors, count, deadline)) {
    int polled = count;
    count = 0;
    for (int v = 0; v < polled; v++)
      if (!set[1 + v].revents || !has_spoken(&visitors[v]))
        visitors[count++] = visitors[v];
      else if (!error[0])
        came += take(join, &visitors[v], fds, error, size);
      else
        close(visitors[v].fd);
    if (set[0].revents && count == MOST_VISITORS) {
      close(visitors[0].fd);
      memmove(visitors, visitors + 1, sizeof(visitors[0]) * (size_t)--count);
    }
    int fd = set[0].revents ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (fd >= 0) visitors[count++] = (struct visitor){.fd = fd};
  }
  for (int v = 0; v < count; v++) close(visitors[v].fd);
  return came;
}

static bool gather_all(const struct perf_join *join, const struct place *place, int *fds, char *error, size_t size)
{
  int64_t deadline = now_ms() + join->timeout * 1000ll;
  int listener = open_listener(place), present = 1;
  error[0] = 0;
  if (listener < 0) {
    snprintf(error, size,
             "process 0 cannot listen at %s: %s; set TUTTI_PERF_ROOT=host:port to a free address of "
             "this host, on all processes",
             place->text, strerror(errno));
    return false;
  }
  present += receive_all(join, listener, deadline, fds, error, size);
  close(listener);
  if (present < join->processes && !error[0]) {
    char missing[200];
    list_missing(join, fds, missing, sizeof(missing));
    snprintf(error, size,
             "of %d processes, these did not come to %s within %d s: %s (--join-timeout waits longer; "
             "TUTTI_PERF_ROOT=host:port names another place to meet)",
             join->processes, place->text, join->timeout, missing);
  }
  return present == join->processes;
}

/* TCP connects a socket to itself where nobody listens and the kernel picks the port that is being tried on this very
 * host. Process 0 can listen there only when the socket is closed and nothing is left of it. */
static bool met_itself(int fd)
{
  const struct linger at_once = {.l_onoff = 1};
  struct sockaddr_storage own = {0}, peer = {0};
  socklen_t bytes = sizeof(own), peer_bytes = sizeof(peer);
  if (getsockname(fd, (struct sockaddr *)&own, &bytes) || getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) ||
      own.ss_family == AF_UNIX || memcmp(&own, &peer, sizeof(own)))
    return false;
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  return true;
}

/* Connects to one of the addresses, and says who comes. */
static bool greet(int fd, const struct place *place, int a, const struct greeting *greeting)
{
  if (connect(fd, (const struct sockaddr *)&place->addresses[a], place->lengths[a])) return false;
  if (met_itself(fd)) {
    errno = ECONNREFUSED;
    return false;
  }
  return send(fd, greeting, sizeof(*greeting), MSG_NOSIGNAL) == sizeof(*greeting);
}

static bool connect_root(const struct perf_join *join, const struct place *place, int *out, char *error, size_t size)
{
  int64_t deadline = now_ms() + join->timeout * 1000ll;
  struct greeting greeting = {.key = key_of(join), .process = join->process, .processes = join->processes};
  memcpy(greeting.magic, magic, sizeof(magic));
  for (int a = 0;; a = (a + 1) % place->count) {
    int fd = open_socket(place->addresses[a].ss_family), cause = 0;
    /* A send timeout also bounds connect(). */
    struct timeval limit = {2, 0}, none = {0, 0};
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (fd >= 0 && greet(fd, place, a, &greeting)) {
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
      *out = fd;
      return true;
    }
    cause = errno;
    if (fd >= 0) close(fd);
    if (now_ms() >= deadline && a + 1 == place->count) {
      snprintf(error, size,
               "process %d could not reach process 0 at %s within %d s: %s (--join-timeout waits longer; "
               "TUTTI_PERF_ROOT=host:port names another place to meet)",
               join->process, place->text, join->timeout, strerror(cause));
      return false;
    }
    if (a + 1 == place->count) poll(NULL, 0, RETRY_MS);
  }
}

bool perf_join(const struct perf_join *join, struct perf_control *control, char *error, size_t size)
{
  struct place place;
  if (!resolve(join, &place, error, size)) return false;
  int count = join->process == 0 ? join->processes : 1;
  int *fds = malloc((size_t)count * sizeof(*fds));
  if (!fds) {
    snprintf(error, size, "out of memory for %d connections", count);
    return false;
  }
  for (int i = 0; i < count; i++) fds[i] = -1;
  bool joined = join->process == 0 ? gather_all(join, &place, fds, error, size)
                                   : connect_root(join, &place, &fds[0], error, size);
  perf_control_open(control, join->process, join->processes, fds);
  if (!joined) perf_control_close(control);
  return joined;
}

/* Parent and name of a process from /proc/PID/stat; the name is in parentheses and may contain anything. */
static bool parent_of(long pid, long *parent, char *name, size_t size)
{
  char path[64], line[512];
  snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
  FILE *file = fopen(path, "re");
  if (!file) return false;
  char *read = fgets(line, sizeof(line), file);
  fclose(file);
  char *open = read ? strchr(line, '(') : NULL, *close_at = read ? strrchr(line, ')') : NULL;
  if (!open || !close_at || sscanf(close_at + 1, " %*c %ld", parent) != 1) return false;
  *close_at = 0;
  snprintf(name, size, "%s", open + 1);
  return true;
}

void perf_join_ancestor(char *job, size_t size)
{
  long pid = getppid(), parent = 0;
  char name[64];
  /* MPICH's processes are children of hydra_pmi_proxy, perhaps with a shell or a wrapper between. */
  for (long at = pid; at > 1 && parent_of(at, &parent, name, sizeof(name)); at = parent)
    if (strstr(name, "pmi_proxy")) pid = at;
  snprintf(job, size, "/ancestor/%ld", pid);
}
