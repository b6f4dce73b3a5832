/* See ib_fixture.h. */
#include "ib_fixture.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *path;
static void *verbs;

static void *fake_symbol(const char *name)
{
  if (!verbs) verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(verbs != NULL, "%s", dlerror());
  void *symbol = dlsym(verbs, name);
  ck_assert_msg(symbol != NULL, "this is not the fake library: %s", name);
  return symbol;
}

void fake(const char *action)
{
  int (*function)(const char *) = fake_symbol("fake_verbs_do");
  ck_assert_msg(function(action) == 0, "the fake does not know \"%s\"", action);
}

uint64_t fake_count(const char *what)
{
  uint64_t (*function)(const char *) = fake_symbol("fake_verbs_count");
  return function(what);
}

int fake_live(const char *what)
{
  int (*function)(const char *) = fake_symbol("fake_verbs_live");
  return function(what);
}

long fake_qp(uint32_t number, const char *what)
{
  long (*function)(uint32_t, const char *) = fake_symbol("fake_verbs_qp");
  return function(number, what);
}

int fake_qps(uint32_t *numbers, int most)
{
  int (*function)(uint32_t *, int) = fake_symbol("fake_verbs_qps");
  return function(numbers, most);
}

void all_sent(void)
{
  for (uint64_t end = now_ms() + LONG_MS; now_ms() < end; usleep(1000))
    if (fake_count("sent") == fake_count("write") + fake_count("write_imm") + fake_count("read")) return;
  ck_abort_msg("some requests were not answered:\n%s", log_text);
}

void answered(long device)
{
  uint32_t numbers[32];
  for (uint64_t end = now_ms() + LONG_MS; now_ms() < end; usleep(1000)) {
    bool all = true;
    for (int i = fake_qps(numbers, 32) - 1; i >= 0; i--)
      all &= fake_qp(numbers[i], "device") != device || fake_qp(numbers[i], "posted") == fake_qp(numbers[i], "acked");
    if (all) return;
  }
  ck_abort_msg("some requests were not answered:\n%s", log_text);
}

void wait_logged(const char *part)
{
  for (uint64_t end = now_ms() + LONG_MS; !logged(part) && now_ms() < end;) usleep(1000);
  expect_logged(part);
}

void set_port(int number, const char *state)
{
  char action[32], line[64];
  snprintf(action, sizeof action, "%s fake%d", state, number);
  snprintf(line, sizeof line, "fake%d port 1 is %s", number, state);
  fake(action);
  wait_logged(line);
}

int fuse(int first, int second)
{
  ncclNetVDeviceProps_v12_t two = {.ndevs = 2, .devs = {first, second}};
  int index = -1;
  ck_assert_int_eq(net->makeVDevice(&index, &two), ncclSuccess);
  return index;
}

ncclResult_t start_result(void)
{
  return net_load(path);
}

void start_without_devices(void)
{
  ck_assert_int_eq(start_result(), ncclSuccess);
}

void start(void)
{
  int count;
  start_without_devices();
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  ck_assert_int_ge(count, 1);
}

void stop(void)
{
  static const char *const kinds[] = {"qp", "cq", "mr", "pd", "context"};
  ck_assert_int_eq(net->finalize(context), ncclSuccess);
  for (int i = 0; i < 5; i++) ck_assert_msg(fake_live(kinds[i]) == 0, "%d %s left", fake_live(kinds[i]), kinds[i]);
}

void pair_open(struct pair *pair, int send_dev, int recv_dev, size_t bytes)
{
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  void *listener;
  memset(pair, 0, sizeof *pair);
  ck_assert_int_eq(net->listen(context, recv_dev, handle, &listener), ncclSuccess);
  ck_assert_int_eq(net_meet(send_dev, handle, listener, &pair->send, &pair->recv), ncclSuccess);
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  pair->bytes = bytes;
  pair->out = malloc(bytes);
  pair->in = malloc(bytes);
  ck_assert_int_eq(net->regMr(pair->send, pair->out, bytes, NCCL_PTR_HOST, &pair->out_memory), ncclSuccess);
  ck_assert_int_eq(net->regMr(pair->recv, pair->in, bytes, NCCL_PTR_HOST, &pair->in_memory), ncclSuccess);
}

void *register_gpu(struct pair *pair, size_t bytes, void **memory)
{
  int fd = memfd_create("gpu", 0);
  ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
  void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ck_assert_ptr_ne(data, MAP_FAILED);
  ck_assert_int_eq(net->regMrDmaBuf(pair->recv, data, bytes, NCCL_PTR_CUDA, 0, fd, memory), ncclSuccess);
  close(fd);
  return data;
}

void pair_close_send(struct pair *pair)
{
  ck_assert_int_eq(net->deregMr(pair->send, pair->out_memory), ncclSuccess);
  ck_assert_int_eq(net->closeSend(pair->send), ncclSuccess);
  free(pair->out);
}

void pair_close_recv(struct pair *pair)
{
  ck_assert_int_eq(net->deregMr(pair->recv, pair->in_memory), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(pair->recv), ncclSuccess);
  free(pair->in);
}

void pair_close(struct pair *pair)
{
  pair_close_send(pair);
  pair_close_recv(pair);
}

void *post_send(struct pair *pair, size_t bytes, int tag)
{
  void *request = NULL;
  for (size_t i = 0; i < bytes; i++) pair->out[i] = (char)(i * 31 + bytes + (i >> 8));
  ck_assert_int_eq(net->isend(pair->send, pair->out, bytes, tag, pair->out_memory, NULL, &request), ncclSuccess);
  ck_assert_ptr_nonnull(request);
  return request;
}

void *post_recv(struct pair *pair, size_t bytes, int tag)
{
  void *request = NULL, *data = pair->in;
  ck_assert_int_eq(net->irecv(pair->recv, 1, &data, &bytes, &tag, &pair->in_memory, NULL, &request), ncclSuccess);
  ck_assert_ptr_nonnull(request);
  return request;
}

void drive(void *send, void *recv, ncclResult_t results[2])
{
  void *requests[2] = {send, recv};
  uint64_t end = now_ms() + LONG_MS;
  results[0] = results[1] = ncclSuccess;
  while (requests[0] || requests[1]) {
    for (int i = 0; i < 2; i++) {
      int done = 0;
      if (!requests[i]) continue;
      results[i] = net->test(requests[i], &done, NULL);
      if (done || results[i] != ncclSuccess) requests[i] = NULL;
    }
    /* No ck_assert in loops that spin: check keeps a record of each. */
    if (now_ms() >= end) ck_abort_msg("neither done nor failed:\n%s", log_text);
  }
}

void drive_all(void **requests, int count)
{
  uint64_t end = now_ms() + LONG_MS;
  for (int left = count; left > 0;) {
    left = 0;
    for (int i = 0; i < count; i++) {
      int done = 0;
      if (!requests[i]) continue;
      if (net->test(requests[i], &done, NULL) != ncclSuccess) ck_abort_msg("request %d: %s", i, log_text);
      if (done) requests[i] = NULL;
      left += !done;
    }
    if (left && now_ms() >= end) ck_abort_msg("%d requests are not done:\n%s", left, log_text);
  }
}

void finish(void *request)
{
  ncclResult_t results[2];
  drive(NULL, request, results);
  ck_assert_msg(results[1] == ncclSuccess, "result %d: %s", results[1], log_text);
}

void exchange(struct pair *pair, size_t bytes)
{
  ncclResult_t results[2];
  memset(pair->in, 0, pair->bytes);
  void *recv = post_recv(pair, pair->bytes, 0), *send = post_send(pair, bytes, 0);
  drive(send, recv, results);
  ck_assert_msg(results[0] == ncclSuccess && results[1] == ncclSuccess, "results %d %d: %s", results[0], results[1],
                log_text);
  ck_assert_int_eq(memcmp(pair->in, pair->out, bytes), 0);
}

int clears_of(struct pair *pair, int ahead, int messages, int tags)
{
  enum { BYTES = 8 };
  void *recvs[NCCL_NET_MAX_REQUESTS];
  size_t bytes = BYTES;
  uint64_t before = 0;
  for (int i = -ahead; i < messages; i++) {
    int next = i + ahead, tag = next % tags;
    void *data = pair->in + BYTES * (next % NCCL_NET_MAX_REQUESTS), *send;
    if (i == 0) before = fake_count("write");
    void **recv = &recvs[next % NCCL_NET_MAX_REQUESTS];
    if (next < messages)
      ck_assert_int_eq(net->irecv(pair->recv, 1, &data, &bytes, &tag, &pair->in_memory, NULL, recv), ncclSuccess);
    if (i < 0) continue;
    ncclResult_t results[2];
    char *out = pair->out + BYTES * (i % NCCL_NET_MAX_REQUESTS);
    memset(out, i + 1, BYTES);
    ck_assert_int_eq(net->isend(pair->send, out, BYTES, i % tags, pair->out_memory, NULL, &send), ncclSuccess);
    drive(send, recvs[i % NCCL_NET_MAX_REQUESTS], results);
    ck_assert_msg(results[0] + results[1] == 0, "message %d: %s", i, log_text);
    ck_assert_int_eq(pair->in[BYTES * (i % NCCL_NET_MAX_REQUESTS)], (char)(i + 1));
  }
  return (int)(fake_count("write") - before);
}

int run_ib_suite(int argc, char **argv, TCase *tcase)
{
  if (argc < 2) return 2;
  path = argv[1];
  setenv("FAKE_VERBS_SCOPE", argv[0], 0);
  return net_run("net_ib", tcase, 120);
}
