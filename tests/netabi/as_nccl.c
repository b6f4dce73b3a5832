/* A net plugin as NCCL 2.28.9 takes it through NCCL_NET_PLUGIN, step by step: the library is opened with all its
 * symbols bound and none shown to others, probed from v11 down, and started once for each communicator, with NCCL's
 * logger and traffic class; a communicator connects, sends and receives with the members of v11; the last one closes
 * the library, and a later one opens it again. What NCCL does beyond its headers: it calls finalize even when init
 * failed. */
#include <check.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "tutti/net.h"

#define LONG_MS 60000 /* bounds a hang, says nothing of speed */

static const char *path, *name;
static int lines;

static void logger(ncclDebugLogLevel level, unsigned long flags, const char *where, int line, const char *format, ...)
{
  char text[2048];
  va_list args;
  va_start(args, format);
  int length = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  ck_assert_int_gt(length, 0);
  ck_assert(level >= NCCL_LOG_VERSION && level <= NCCL_LOG_TRACE);
  ck_assert_uint_ne(flags, 0);
  ck_assert_ptr_nonnull(where);
  ck_assert_int_ge(line, 0);
  ck_assert_msg(!strchr(text, '\n'), "a line of several: %s", text);
  lines++;
}

static uint64_t now_ms(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

/* By NCCL's rule: the name as it is; if there is no such file, and it is neither a path nor lib*.so, within a prefix.
 */
static void *open_by_name(const char *plugin)
{
  char longer[PATH_MAX];
  void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  bool whole = strncmp(plugin, "lib", 3) == 0 && strlen(plugin) > 6 && !strcmp(plugin + strlen(plugin) - 3, ".so");
  if (library || strchr(plugin, '/') || whole) return library;
  snprintf(longer, sizeof longer, "libnccl-net-%s.so", plugin);
  return dlopen(longer, RTLD_NOW | RTLD_LOCAL);
}

/* 2.28.9 knows v6 to v11, and takes the newest. */
static const ncclNet_v11_t *probe(void *library)
{
  const ncclNet_v11_t *net = dlsym(library, "ncclNetPlugin_v11");
  ck_assert_ptr_nonnull(net);
  ck_assert_str_eq(net->name, name);
  ck_assert(net->init && net->devices && net->getProperties && net->listen && net->connect && net->accept);
  ck_assert(net->regMr && net->deregMr && net->isend && net->irecv && net->iflush && net->test);
  ck_assert(net->closeSend && net->closeRecv && net->closeListen && net->finalize);
  /* It asks for these too, and what is not there must be not there. */
  ck_assert_ptr_null(dlsym(library, "ncclCollNetPlugin_v11"));
  ck_assert_ptr_null(dlsym(library, "ncclGinPlugin_v11"));
  ck_assert_ptr_null(dlsym(library, "ncclTunerPlugin_v5"));
  return net;
}

static void *init(const ncclNet_v11_t *net, uint64_t comm_id)
{
  ncclNetCommConfig_v11_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
  void *context = NULL;
  ck_assert_int_eq(net->init(&context, comm_id, &config, logger, NULL), ncclSuccess);
  return context;
}

/* What NCCL builds its topology from. */
static void check_properties(const ncclNet_v11_t *net, int dev)
{
  ncclNetProperties_v11_t props;
  memset(&props, 0xee, sizeof props); /* every member is written */
  ck_assert_int_eq(net->getProperties(dev, &props), ncclSuccess);
  ck_assert(props.name && *props.name);
  ck_assert_msg(!props.pciPath || access(props.pciPath, F_OK) == 0, "%s", props.pciPath);
  ck_assert_int_ne(props.ptrSupport & NCCL_PTR_HOST, 0);
  ck_assert_int_eq(props.ptrSupport & ~(NCCL_PTR_HOST | NCCL_PTR_CUDA | NCCL_PTR_DMABUF), 0);
  ck_assert(props.regIsGlobal == 0 || props.regIsGlobal == 1);
  ck_assert(props.forceFlush == 0 || props.forceFlush == 1);
  ck_assert_int_gt(props.speed, 0);
  ck_assert_int_ge(props.port, 0);
  ck_assert(props.latency >= 0 && props.latency < 1e6);
  ck_assert_int_gt(props.maxComms, 0);
  ck_assert(props.maxRecvs >= 1 && props.maxRecvs <= NCCL_NET_MAX_REQUESTS);
  ck_assert_int_eq(props.netDeviceType, NCCL_NET_DEVICE_HOST);
  ck_assert_int_eq(props.netDeviceVersion, NCCL_NET_DEVICE_INVALID_VERSION);
  ck_assert_int_eq(props.vProps.ndevs, 1);
  ck_assert_int_eq(props.vProps.devs[0], dev);
  ck_assert_uint_ge(props.maxP2pBytes, 1u << 30);
  ck_assert_uint_ge(props.maxCollBytes, 1u << 30);
  ck_assert_int_ge(props.maxMultiRequestSize, 1);
}

static void wait_for(const ncclNet_v11_t *net, void *request, int expected)
{
  int done = 0, size = -1;
  for (uint64_t end = now_ms() + LONG_MS; !done;) {
    ck_assert_msg(now_ms() < end, "a request of %d bytes does not end", expected);
    ck_assert_int_eq(net->test(request, &done, &size), ncclSuccess);
  }
  ck_assert_int_eq(size, expected);
}

/* A rank that sends to itself, as its proxy would to another. */
static void exchange(const ncclNet_v11_t *net, void *context)
{
  enum { BYTES = 300000, TAG = 77 };
  static char out[BYTES], in[BYTES];
  char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
  void *listener, *send = NULL, *recv = NULL, *memory[2], *requests[2] = {NULL, NULL}, *data = in, *none = NULL;
  ncclNetDeviceHandle_v11_t *device[2] = {(void *)1, (void *)1};
  size_t bytes = BYTES;
  int tag = TAG;
  ck_assert_int_eq(net->listen(context, 0, handle, &listener), ncclSuccess);
  for (uint64_t end = now_ms() + LONG_MS; !send || !recv;) {
    ck_assert_msg(now_ms() < end, "no connection");
    if (!send) ck_assert_int_eq(net->connect(context, 0, handle, &send, &device[0]), ncclSuccess);
    if (!recv) ck_assert_int_eq(net->accept(listener, &recv, &device[1]), ncclSuccess);
  }
  ck_assert(!device[0] && !device[1]); /* the host drives it */
  ck_assert_int_eq(net->regMr(send, out, BYTES, NCCL_PTR_HOST, &memory[0]), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, in, BYTES, NCCL_PTR_HOST, &memory[1]), ncclSuccess);
  for (size_t i = 0; i < BYTES; i++) out[i] = (char)(i * 7 + i / 251);
  while (!requests[0])
    ck_assert_int_eq(net->irecv(recv, 1, &data, &bytes, &tag, &memory[1], &none, &requests[0]), ncclSuccess);
  while (!requests[1]) ck_assert_int_eq(net->isend(send, out, BYTES, TAG, memory[0], NULL, &requests[1]), ncclSuccess);
  /* One thread has both ends, so they take turns. */
  int done[2] = {0, 0}, sizes[2] = {-1, -1};
  for (uint64_t end = now_ms() + LONG_MS; !done[0] || !done[1];) {
    ck_assert_msg(now_ms() < end, "a message of %d bytes does not arrive", BYTES);
    for (int i = 0; i < 2; i++)
      if (!done[i]) ck_assert_int_eq(net->test(requests[i], &done[i], &sizes[i]), ncclSuccess);
  }
  ck_assert_int_eq(sizes[0], BYTES);
  ck_assert_mem_eq(in, out, BYTES);
  int size = BYTES;
  void *flush = (void *)1;
  ck_assert_int_eq(net->iflush(recv, 1, &data, &size, &memory[1], &flush), ncclSuccess);
  if (flush) wait_for(net, flush, BYTES);
  ck_assert_int_eq(net->deregMr(send, memory[0]), ncclSuccess);
  ck_assert_int_eq(net->deregMr(recv, memory[1]), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
}

/* Two communicators, of which the first ends first; and again after the library was closed. */
START_TEST(communicators)
{
  for (int round = 0; round < 2; round++) {
    int count = -1;
    void *library = open_by_name(path);
    ck_assert_msg(library != NULL, "%s", dlerror());
    const ncclNet_v11_t *net = probe(library);
    void *first = init(net, 0x1234), *second;
    ck_assert_int_eq(net->devices(&count), ncclSuccess);
    ck_assert_int_ge(count, 1);
    for (int dev = 0; dev < count; dev++) check_properties(net, dev);
    exchange(net, first);
    second = init(net, 0x5678);
    ck_assert_int_eq(net->finalize(first), ncclSuccess);
    exchange(net, second);
    ck_assert_int_eq(net->finalize(second), ncclSuccess);
    ck_assert_int_gt(lines, 0);
    dlclose(library);
  }
}
END_TEST

/* Users install it under the name that NCCL looks for, too. */
START_TEST(another_file_name)
{
  char directory[] = "/tmp/as-nccl-XXXXXX", file[PATH_MAX], real[PATH_MAX];
  ck_assert_ptr_nonnull(mkdtemp(directory));
  ck_assert_ptr_nonnull(realpath(path, real));
  snprintf(file, sizeof file, "%s/libnccl-net-tutti.so", directory);
  ck_assert_int_eq(symlink(real, file), 0);
  void *library = open_by_name(file);
  unlink(file);
  rmdir(directory);
  ck_assert_msg(library != NULL, "%s", dlerror());
  const ncclNet_v11_t *net = probe(library);
  ck_assert_int_eq(net->finalize(init(net, 1)), ncclSuccess);
  dlclose(library);
}
END_TEST

/* What it leaves in the process is nothing that NCCL, or another plugin, would find in its own place. */
START_TEST(nothing_is_shown)
{
  static const char *const symbols[] = {"ncclNetPlugin_v11", "tuttiNetCounters", "ncclGetErrorString", "tt_log_warn"};
  void *library = open_by_name(path);
  ck_assert_msg(library != NULL, "%s", dlerror());
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) ck_assert_ptr_null(dlsym(RTLD_DEFAULT, symbols[i]));
  dlclose(library);
}
END_TEST

/* A finalize that nobody owes is an error, and no harm. */
START_TEST(finalize_after_a_failed_init)
{
  void *library = open_by_name(path);
  const ncclNet_v11_t *net = probe(library);
  int count = -1;
  void *context = init(net, 1);
  ck_assert_int_eq(net->finalize(context), ncclSuccess);
  ck_assert_int_eq(net->finalize(context), ncclInternalError);
  context = init(net, 2);
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  ck_assert_int_ge(count, 1);
  exchange(net, context);
  ck_assert_int_eq(net->finalize(context), ncclSuccess);
  dlclose(library);
}
END_TEST

int main(int argc, char **argv)
{
  if (argc != 3) {
    fprintf(stderr, "usage: %s plugin.so NAME\n", argv[0]);
    return 2;
  }
  path = argv[1];
  name = argv[2];
  TCase *tcase = tcase_create("as NCCL");
  tcase_add_test(tcase, communicators);
  tcase_add_test(tcase, another_file_name);
  tcase_add_test(tcase, nothing_is_shown);
  tcase_add_test(tcase, finalize_after_a_failed_init);
  tcase_set_timeout(tcase, 200);
  Suite *suite = suite_create("plugin in NCCL");
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
