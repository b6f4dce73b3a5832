/* What a message costs in a net plugin, without a proxy, a peer's scheduling or waiting: one thread has both ends of a
 * connection, so processor time is all there is, and other work on the machine disturbs little.
 *
 *     cc -O2 -I core/include -o cost bench/plugin/cost.c -ldl
 *     FI_PROVIDER=tcp ./cost build/release/lib/tutti/libtutti-net-ofi.so BYTES WINDOW MESSAGES
 *
 * prints microseconds of processor time a message, both ends together; WINDOW messages, 64 at most, are under way at a
 * time. Run plugins in turn, and take the median. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tutti/net.h"

enum { WINDOW_MOST = 64, TAG = 7 };

static const ncclNet_v12_t *net;

static void logger(ncclDebugLogLevel level, unsigned long flags, const char *where, int line, const char *format, ...)
{
  va_list args;
  (void)flags, (void)where, (void)line;
  if (level != NCCL_LOG_WARN) return;
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
}

static void check(ncclResult_t result, const char *call)
{
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s: result %d\n", call, (int)result);
  exit(1);
}
#define CHECK(call) check((call), #call)

static double processor_time(void)
{
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

struct end {
  void *comm, *memory;
  char *data;
  void *requests[WINDOW_MOST];
  long posted, done;
};

static void finish_done(struct end *end, int window)
{
  int done = 1, size;
  while (done && end->done < end->posted) {
    CHECK(net->test(end->requests[end->done % window], &done, &size));
    end->done += done != 0;
  }
}

static void move(struct end *send, struct end *recv, size_t bytes, int window, long messages)
{
  send->posted = send->done = recv->posted = recv->done = 0;
  while (recv->done < messages || send->done < messages) {
    void *request = recv;
    while (request && recv->posted < messages && recv->posted - recv->done < window) {
      void *data = recv->data + (size_t)(recv->posted % window) * bytes, *none = NULL;
      int tag = TAG;
      CHECK(net->irecv(recv->comm, 1, &data, &bytes, &tag, &recv->memory, &none, &request));
      if (request) recv->requests[recv->posted++ % window] = request;
    }
    request = send;
    while (request && send->posted < messages && send->posted - send->done < window) {
      void *data = send->data + (size_t)(send->posted % window) * bytes;
      CHECK(net->isend(send->comm, data, bytes, TAG, send->memory, NULL, &request));
      if (request) send->requests[send->posted++ % window] = request;
    }
    finish_done(send, window);
    finish_done(recv, window);
  }
}

static void prepare(struct end *end, size_t bytes)
{
  end->data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!end->data) exit(1);
  memset(end->data, 1, bytes);
  CHECK(net->regMr(end->comm, end->data, bytes, NCCL_PTR_HOST, &end->memory));
}

int main(int argc, char **argv)
{
  if (argc != 5) {
    fprintf(stderr, "usage: %s PLUGIN BYTES WINDOW MESSAGES\n", argv[0]);
    return 2;
  }
  size_t bytes = strtoull(argv[2], NULL, 10);
  int window = atoi(argv[3]);
  long messages = atol(argv[4]);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *context, *listener;
  if (!library || window < 1 || window > WINDOW_MOST) {
    fprintf(stderr, "%s\n", library ? "WINDOW is 1 to 64" : dlerror());
    return 1;
  }
  net = dlsym(library, "ncclNetPlugin_v12");
  if (!net) return 1;
  struct end send = {0}, recv = {0};
  char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
  CHECK(net->init(&context, 1, NULL, logger, NULL));
  CHECK(net->listen(context, 0, handle, &listener));
  while (!send.comm || !recv.comm) {
    if (!send.comm) CHECK(net->connect(context, 0, handle, &send.comm, NULL));
    if (!recv.comm) CHECK(net->accept(listener, &recv.comm, NULL));
  }
  prepare(&send, bytes * (size_t)window);
  prepare(&recv, bytes * (size_t)window);
  move(&send, &recv, bytes, window, messages / 10 + window); /* warm */
  double begin = processor_time();
  move(&send, &recv, bytes, window, messages);
  printf("%.2f\n", (processor_time() - begin) * 1e6 / (double)messages);
  CHECK(net->closeSend(send.comm));
  CHECK(net->closeRecv(recv.comm));
  return 0;
}
