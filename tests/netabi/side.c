/* One side of a clause: reports, the other side, the watchdog, connections, memory and requests. */
#include "netabi.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define GUARD 64
#define GUARD_BYTE 0x5a
#define UNWRITTEN ((void *)0x0badf00d) /* what *request holds before a call that must write it */

struct net net;
void *context;
int side, device, max_recvs;
const char *_Atomic calling = "";
static int peer_fd, report_fd, deadline_s;
static void *library;

uint64_t now_ms(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

/* The time comes first, so that of two reports the earlier one is known. Safe in a signal handler. */
static void report_time(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t time = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
  if (write(report_fd, &time, sizeof time) < 0) _exit(1);
}

static _Noreturn void report(int status, const char *format, va_list args)
{
  char text[512];
  vsnprintf(text, sizeof text, format, args);
  report_time();
  if (write(report_fd, text, strlen(text)) < 0) status = 1;
  _exit(status);
}

void fail(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  report(1, format, args);
}

void skip(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  report(77, format, args);
}

/* How much longer a side that is not inside the plugin waits, so that the one that is names the cause first. */
#define OTHER_SIDE_S 2

/* The clause's time is over: most likely inside the plugin. Only functions that are safe in a handler. */
static void on_alarm(int signal)
{
  static volatile sig_atomic_t again;
  (void)signal;
  const char *prefix = *atomic_load(&calling) ? "blocked in " : "did not end in time", *what = atomic_load(&calling);
  if (!*what && !again) {
    again = 1;
    alarm(OTHER_SIDE_S);
    return;
  }
  report_time();
  ssize_t written = write(report_fd, prefix, strlen(prefix));
  written += write(report_fd, what, strlen(what));
  _exit(written < 0 ? 2 : 1);
}

void side_begin(int index, int peer, int reports, int deadline)
{
  side = index;
  peer_fd = peer;
  report_fd = reports;
  deadline_s = deadline;
  signal(SIGALRM, on_alarm);
  signal(SIGPIPE, SIG_DFL); /* a plugin that raises it shall die of it */
  alarm((unsigned)deadline);
}

void load_plugin(int abi)
{
  library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail("cannot open %s: %s", plugin_path, dlerror());
  if (!net_find(library, abi, &net)) skip("ncclNetPlugin_v%d is not exported", abi);
}

int promised_requests(void)
{
  return net.abi <= 6 ? NCCL_NET_MAX_REQUESTS_V6 : NCCL_NET_MAX_REQUESTS;
}

void *plugin_symbol(const char *name)
{
  return dlsym(library, name);
}

ncclResult_t called(ncclResult_t result)
{
  atomic_store(&calling, "");
  return result;
}

void init_plugin(void)
{
  ncclNetProperties_v12_t props;
  int count = 0;
  CALL(init, &context);
  CALL(devices, &count);
  if (count < 1) skip("the plugin has no devices here");
  device = 0;
  if (fuse) {
    if (count < 2 || !net.vdevice) skip("there are no two devices to fuse");
    CALL(vdevice, &device, (int[]){0, 1}, 2);
  }
  CALL(properties, device, &props);
  max_recvs = props.maxRecvs;
}

void final_plugin(void)
{
  CALL(finalize, context);
  context = NULL;
}

int count_fds(void)
{
  int count = 0;
  DIR *dir = opendir("/proc/self/fd");
  if (!dir) skip("no /proc/self/fd");
  while (readdir(dir)) count++;
  closedir(dir);
  return count;
}

/* ---- The other side ---- */

void tell(const void *data, size_t bytes)
{
  if (send(peer_fd, data, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) fail("the other side is gone");
}

void hear(void *data, size_t bytes)
{
  struct pollfd fd = {.fd = peer_fd, .events = POLLIN};
  for (size_t got = 0; got < bytes;) {
    /* No time limit of its own: the alarm is it, and knows which side is to blame. */
    int ready = poll(&fd, 1, -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) fail("waiting for the other side: %s", strerror(errno));
    ssize_t n = recv(peer_fd, (char *)data + got, bytes - got, 0);
    if (n <= 0) fail("the other side is gone");
    got += (size_t)n;
  }
}

bool heard(void)
{
  struct pollfd fd = {.fd = peer_fd, .events = POLLIN};
  return poll(&fd, 1, 0) > 0;
}

void meet(void)
{
  char byte = 1;
  tell(&byte, 1);
  hear(&byte, 1);
}

/* ---- Waiting ---- */

struct patience patience_start(void)
{
  /* Less than the watchdog's, so that the reason is the better one. */
  return (struct patience){.end = now_ms() + (uint64_t)deadline_s * 700};
}

void patience_spend(struct patience *patience, const char *what)
{
  if (now_ms() > patience->end) fail("%s: not done within %d s", what, deadline_s * 7 / 10);
  if (++patience->rounds % 16 == 0) {
    struct timespec nap = {.tv_nsec = 100000};
    nanosleep(&nap, NULL);
  }
}

/* ---- Registrations: of a buffer with a comm, made at first use ---- */

struct registration {
  void *comm, *mhandle;
  struct registration *next;
};
struct buffer {
  char *data;
  size_t bytes;
  struct registration *registrations;
  struct buffer *next;
};
static struct buffer *buffers;
static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;

static void *registered(void *comm, const char *data)
{
  pthread_mutex_lock(&buffers_lock);
  struct buffer *buffer = buffers;
  while (buffer && !(data >= buffer->data && data <= buffer->data + buffer->bytes)) buffer = buffer->next;
  if (!buffer) fail("the suite used memory that is no buffer");
  struct registration *r = buffer->registrations;
  while (r && r->comm != comm) r = r->next;
  if (!r) {
    r = calloc(1, sizeof *r);
    if (!r) fail("no memory");
    r->comm = comm;
    CALL(reg, comm, buffer->data, buffer->bytes ? buffer->bytes : 1, NCCL_PTR_HOST, &r->mhandle);
    r->next = buffer->registrations;
    buffer->registrations = r;
  }
  void *mhandle = r->mhandle;
  pthread_mutex_unlock(&buffers_lock);
  return mhandle;
}

/* All registrations of a buffer, or of a comm. */
static void deregister(const char *data, void *comm)
{
  pthread_mutex_lock(&buffers_lock);
  for (struct buffer *buffer = buffers; buffer; buffer = buffer->next)
    for (struct registration **at = &buffer->registrations; *at;) {
      struct registration *r = *at;
      if (buffer->data != data && r->comm != comm) {
        at = &r->next;
        continue;
      }
      CALL(dereg, r->comm, r->mhandle);
      *at = r->next;
      free(r);
    }
  pthread_mutex_unlock(&buffers_lock);
}

/* ---- Connections ---- */

void connect_all(struct connection *connections, int count)
{
  memset(connections, 0, (size_t)count * sizeof *connections);
  for (int i = 0; i < count; i++) {
    CALL(listen, context, device, connections[i].mine, &connections[i].listen);
    if (!connections[i].listen) fail("listen succeeded without a comm");
    tell(connections[i].mine, sizeof connections[i].mine);
    hear(connections[i].theirs, sizeof connections[i].theirs);
  }
  struct patience patience = patience_start();
  for (int missing = 1; missing; patience_spend(&patience, "connecting")) {
    missing = 0;
    for (int i = 0; i < count; i++) {
      struct connection *c = &connections[i];
      if (!c->send) CALL(connect, context, device, c->theirs, &c->send);
      if (!c->recv) CALL(accept, c->listen, &c->recv);
      if (c->recv && c->listen) {
        CALL(close_listen, c->listen);
        c->listen = NULL;
      }
      missing += !c->send || !c->recv;
    }
  }
}

void close_all(struct connection *connections, int count)
{
  for (int i = 0; i < count; i++) {
    close_sender(connections[i].send);
    close_receiver(connections[i].recv);
  }
}

void close_sender(void *comm)
{
  deregister(NULL, comm);
  CALL(close_send, comm);
}

void close_receiver(void *comm)
{
  deregister(NULL, comm);
  CALL(close_recv, comm);
}

/* ---- Memory ---- */

char *buffer_new(size_t bytes)
{
  char *memory = malloc(bytes + 2 * GUARD);
  struct buffer *buffer = calloc(1, sizeof *buffer);
  if (!memory || !buffer) fail("no memory for a test buffer of %zu bytes", bytes);
  memset(memory, GUARD_BYTE, bytes + 2 * GUARD);
  *buffer = (struct buffer){.data = memory + GUARD, .bytes = bytes};
  pthread_mutex_lock(&buffers_lock);
  buffer->next = buffers;
  buffers = buffer;
  pthread_mutex_unlock(&buffers_lock);
  return buffer->data;
}

void buffer_check(const char *data, size_t bytes, const char *what)
{
  for (int i = 0; i < GUARD; i++) {
    if (data[-1 - i] != GUARD_BYTE) fail("%s: wrote before the buffer", what);
    if (data[bytes + (size_t)i] != GUARD_BYTE) fail("%s: wrote beyond the buffer's %zu bytes", what, bytes);
  }
}

void buffer_free(char *data)
{
  deregister(data, NULL);
  pthread_mutex_lock(&buffers_lock);
  struct buffer **at = &buffers;
  while (*at && (*at)->data != data) at = &(*at)->next;
  if (!*at) fail("the suite freed a buffer that it does not have");
  struct buffer *buffer = *at;
  *at = buffer->next;
  pthread_mutex_unlock(&buffers_lock);
  free(buffer->data - GUARD);
  free(buffer);
}

/* Each 8 bytes are a mix (splitmix64, public domain) of their place and the seed. */
static uint64_t mix(uint64_t x)
{
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

void pattern_fill(char *data, size_t bytes, uint64_t seed)
{
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = mix(seed * 0x100000001b3ull + at);
    memcpy(data + at, &word, bytes - at < 8 ? bytes - at : 8);
  }
}

void pattern_check(const char *data, size_t bytes, uint64_t seed, const char *what)
{
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = mix(seed * 0x100000001b3ull + at);
    if (memcmp(data + at, &word, bytes - at < 8 ? bytes - at : 8))
      fail("%s: wrong data at byte %zu of %zu", what, at, bytes);
  }
}

/* ---- Requests ---- */

void *post_send(void *comm, char *data, size_t bytes, int tag)
{
  void *request = UNWRITTEN, *mhandle = registered(comm, data);
  CALL(isend, comm, data, bytes, tag, mhandle, &request);
  if (request == UNWRITTEN) fail("isend left *request unwritten");
  return request;
}

void *post_recv(void *comm, int n, char **data, size_t *sizes, int *tags)
{
  void *mhandles[64], *request = NULL;
  for (int i = 0; i < n; i++) mhandles[i] = registered(comm, data[i]);
  CALL(irecv, comm, n, (void **)data, sizes, tags, mhandles, &request);
  return request;
}

void *post_recv1(void *comm, char *data, size_t bytes, int tag)
{
  return post_recv(comm, 1, &data, &bytes, &tag);
}

void *must_send(void *comm, char *data, size_t bytes, int tag)
{
  struct patience patience = patience_start();
  void *request;
  while (!(request = post_send(comm, data, bytes, tag))) patience_spend(&patience, "isend gave no request");
  return request;
}

void *must_recv1(void *comm, char *data, size_t bytes, int tag)
{
  struct patience patience = patience_start();
  void *request;
  while (!(request = post_recv1(comm, data, bytes, tag))) patience_spend(&patience, "irecv gave no request");
  return request;
}

bool test_done(void *request, int *sizes)
{
  int done = -1;
  CALL(test, request, &done, sizes);
  if (done != 0 && done != 1) fail("test gave done = %d", done);
  return done;
}

void wait_done(void *request, int *sizes, const char *what)
{
  struct patience patience = patience_start();
  while (!test_done(request, sizes)) patience_spend(&patience, what);
}
