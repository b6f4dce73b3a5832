/* What users set, found again in what the NIC is told; and GPUs' memory, which a memfd stands for. */
#include "ib_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void expect_on_all(const char *what, long wanted)
{
  uint32_t numbers[64];
  int count = fake_qps(numbers, 64);
  ck_assert_int_ge(count, 2);
  for (int i = 0; i < count; i++) {
    long value = fake_qp(numbers[i], what);
    ck_assert_msg(value == wanted, "%s of queue pair %d is %ld, not %ld", what, i, value, wanted);
  }
}

START_TEST(defaults)
{
  struct pair pair;
  setenv("FAKE_VERBS_NO_DMABUF", "1", 1); /* then there are no queue pairs for flushes, which are set otherwise */
  start();
  pair_open(&pair, 0, 0, 1000);
  expect_on_all("timeout", 20);
  expect_on_all("retry_cnt", 7);
  expect_on_all("sl", 0);
  expect_on_all("traffic_class", 0);
  expect_on_all("pkey_index", 0);
  expect_on_all("sgid_index", 3); /* IPv4, version 2 */
  expect_on_all("is_global", 1);
  exchange(&pair, 64);
  ck_assert_uint_ge(fake_count("inline"), 2); /* the message, and its clear-to-send */
  ck_assert_uint_ge(fake_count("relaxed"), 1);
  pair_close(&pair);
  stop();
}
END_TEST

START_TEST(all_set)
{
  struct pair pair;
  setenv("FAKE_VERBS_NO_DMABUF", "1", 1);
  setenv("NCCL_IB_TIMEOUT", "18", 1);
  setenv("NCCL_IB_RETRY_CNT", "3", 1);
  setenv("NCCL_IB_SL", "5", 1);
  setenv("NCCL_IB_TC", "106", 1);
  setenv("NCCL_IB_PKEY", "1", 1);
  setenv("NCCL_IB_GID_INDEX", "4", 1);
  setenv("NCCL_IB_USE_INLINE", "0", 1);
  setenv("NCCL_IB_PCI_RELAXED_ORDERING", "0", 1);
  start();
  pair_open(&pair, 0, 0, 1000);
  expect_on_all("timeout", 18);
  expect_on_all("retry_cnt", 3);
  expect_on_all("sl", 5);
  expect_on_all("traffic_class", 106);
  expect_on_all("pkey_index", 1);
  expect_on_all("sgid_index", 4);
  exchange(&pair, 64);
  ck_assert_uint_eq(fake_count("inline"), 0);
  ck_assert_uint_eq(fake_count("relaxed"), 0);
  pair_close(&pair);
  stop();
}
END_TEST

/* The receiver's own class is for its clear-to-send entries; the sender has the connection's. */
START_TEST(class_of_the_receiver)
{
  struct pair pair;
  uint32_t numbers[8];
  bool seen[2] = {false, false};
  setenv("FAKE_VERBS_NO_DMABUF", "1", 1);
  setenv("NCCL_IB_TC", "40", 1);
  setenv("NCCL_IB_FIFO_TC", "80", 1);
  start();
  pair_open(&pair, 0, 0, 1000);
  ck_assert_int_eq(fake_qps(numbers, 8), 2);
  for (int i = 0; i < 2; i++) {
    seen[0] |= fake_qp(numbers[i], "traffic_class") == 40;
    seen[1] |= fake_qp(numbers[i], "traffic_class") == 80;
  }
  ck_assert(seen[0] && seen[1]);
  pair_close(&pair);
  stop();
}
END_TEST

/* The communicator's class counts where the variable is not set. */
START_TEST(class_of_the_communicator)
{
  struct pair pair;
  ncclNetCommConfig_v12_t config = {.trafficClass = 24};
  void *plain;
  setenv("FAKE_VERBS_NO_DMABUF", "1", 1);
  start();
  plain = context;
  ck_assert_int_eq(net->init(&context, 2, &config, NULL, NULL), ncclSuccess);
  pair_open(&pair, 0, 0, 1000);
  expect_on_all("traffic_class", 24);
  pair_close(&pair);
  ck_assert_int_eq(net->finalize(context), ncclSuccess);
  context = plain;
  stop();
}
END_TEST

/* Queue pairs of a connection take messages in turn, or share each; and each has a flow label of its own. */
START_TEST(queue_pairs)
{
  struct pair pair;
  uint32_t numbers[64];
  setenv("FAKE_VERBS_NO_DMABUF", "1", 1);
  setenv("NCCL_IB_QPS_PER_CONNECTION", "4", 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", _i ? "1" : "0", 1);
  start();
  pair_open(&pair, 0, 0, 100000);
  int count = fake_qps(numbers, 64);
  ck_assert_int_eq(count, 8);
  /* The port that drivers make of a label: the low 14 bits, with the high 6 folded in. The two ends of a queue pair
   * have the same. */
  for (int i = 0; i < count; i++) {
    int same = 0;
    for (int k = 0; k < count; k++) {
      long one = fake_qp(numbers[i], "flow_label"), two = fake_qp(numbers[k], "flow_label");
      ck_assert_int_gt(one, 0);
      same += ((one & 0x3fff) ^ one >> 14) == ((two & 0x3fff) ^ two >> 14);
    }
    ck_assert_int_eq(same, 2);
  }
  uint64_t before = fake_count("write_imm");
  for (int i = 0; i < 8; i++) exchange(&pair, 100000);
  ck_assert_uint_eq(fake_count("write_imm") - before, _i ? 32 : 8);
  /* 8 messages: 2 requests on each of the sender's, or 8; and the clear-to-send entries, all on the receiver's first.
   */
  int used = 0;
  for (int i = 0; i < count; i++) used += fake_qp(numbers[i], "posted") == (_i ? 8 : 2);
  ck_assert_int_eq(used, _i ? 5 : 4);
  /* A small message is not cut. */
  before = fake_count("write_imm");
  exchange(&pair, 8192);
  ck_assert_uint_eq(fake_count("write_imm") - before, 1);
  pair_close(&pair);
  stop();
}
END_TEST

/* With adaptive routing a message beyond the threshold is announced by a request of its own. */
START_TEST(adaptive_routing)
{
  struct pair pair;
  setenv("FAKE_VERBS_DEVICES", "fake0/ib", 1);
  setenv("NCCL_IB_AR_THRESHOLD", "5000", 1);
  if (_i) setenv("NCCL_IB_ADAPTIVE_ROUTING", "0", 1);
  start();
  pair_open(&pair, 0, 0, 100000);
  exchange(&pair, 5000);
  uint64_t writes = fake_count("write"); /* with that of the clear-to-send */
  exchange(&pair, 5000);
  ck_assert_uint_eq(fake_count("write") - writes, 1);
  writes = fake_count("write");
  exchange(&pair, 5001);
  ck_assert_uint_eq(fake_count("write") - writes, _i ? 1 : 2);
  pair_close(&pair);
  stop();
}
END_TEST

/* Wrong settings end init with a sentence that names them. */
START_TEST(wrong)
{
  static const struct {
    const char *name, *value, *says;
  } list[] = {{"NCCL_IB_HCA", "fake0:x", "fake0:x"},
              {"NCCL_IB_HCA", "fake0:1:2:3:4", "more than a name"},
              {"NCCL_IB_ADDR_FAMILY", "AF_IB", "AF_INET6"},
              {"NCCL_IB_ADDR_RANGE", "10.0.0.0/33", "0 to 32 bits"},
              {"NCCL_IB_ADDR_RANGE", "fd00::/64", "NCCL_IB_ADDR_FAMILY"},
              {"NCCL_IB_TIMEOUT", "32", "from 1 to 31"},
              {"NCCL_IB_QPS_PER_CONNECTION", "two", "from 1 to 128"},
              {"NCCL_IB_SPLIT_DATA_ON_QPS", "2", "0 or 1"}};
  int count = -1;
  setenv(list[_i].name, list[_i].value, 1);
  ck_assert_int_eq(start_result(), ncclInvalidUsage);
  ck_assert_msg(strstr(last_warning, list[_i].name) && strstr(last_warning, list[_i].says), "%s", last_warning);
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  ck_assert_int_eq(count, 0);
}
END_TEST

START_TEST(filtered)
{
  static const struct {
    const char *name, *value;
    int devices;
  } list[] = {{"NCCL_IB_HCA", "=fake1", 2},
              {"NCCL_IB_HCA", "^fake1", 1},
              {"NCCL_IB_HCA", "fake1:2,other", 1},
              {"NCCL_IB_DISABLE", "1", 0},
              {"NCCL_IB_ADDR_RANGE", "10.77.2.0/24", 1},
              {"NCCL_IB_GID_INDEX", "99", 0}};
  int count = -1;
  /* fake1 has two ports; addresses are 10.77.1.1, 10.77.2.1 and 10.77.3.1 */
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1*2", 1);
  setenv(list[_i].name, list[_i].value, 1);
  start_without_devices();
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  ck_assert_msg(count == list[_i].devices, "%s=%s: %d devices: %s", list[_i].name, list[_i].value, count, log_text);
  stop();
}
END_TEST

START_TEST(rails_and_planes)
{
  ncclNetProperties_v12_t props;
  setenv("FAKE_VERBS_DEVICES", "fake0@128x2,fake1/ib@64x4", 1);
  setenv("NCCL_IB_HCA", "fake0:1:3:7,fake1", 1);
  start();
  ck_assert_int_eq(net->getProperties(0, &props), ncclSuccess);
  ck_assert_str_eq(props.name, "fake0");
  ck_assert_int_eq(props.railId, 3);
  ck_assert_int_eq(props.planeId, 7);
  ck_assert_int_eq(props.speed, 400000);
  ck_assert_int_eq(net->getProperties(1, &props), ncclSuccess);
  ck_assert_int_eq(props.railId, -1);
  ck_assert_int_eq(props.planeId, -1);
  ck_assert_int_eq(props.speed, 400000);
  ck_assert_int_ne(net->getProperties(2, &props), ncclSuccess);
  stop();
}
END_TEST

START_TEST(merging)
{
  ncclNetVDeviceProps_v12_t two = {.ndevs = 2, .devs = {0, 1}}, mixed = {.ndevs = 2, .devs = {0, 2}};
  ncclNetVDeviceProps_v12_t twice = {.ndevs = 2, .devs = {1, 1}}, beyond = {.ndevs = 2, .devs = {0, 9}};
  ncclNetProperties_v12_t props;
  int index = -1;
  struct pair pair;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2/ib", 1);
  start();
  ck_assert_int_eq(net->makeVDevice(&index, &mixed), ncclInvalidUsage);
  ck_assert_msg(strstr(last_warning, "fake2 port 1 (IB)") && strstr(last_warning, "NCCL_IB_HCA"), "%s", last_warning);
  ck_assert_int_eq(net->makeVDevice(&index, &twice), ncclInvalidUsage);
  ck_assert_int_eq(net->makeVDevice(&index, &beyond), ncclInvalidUsage);
  ck_assert_int_eq(net->makeVDevice(&index, &two), ncclSuccess);
  ck_assert_int_eq(index, 3);
  ck_assert_int_eq(net->getProperties(3, &props), ncclSuccess);
  ck_assert_str_eq(props.name, "fake0+fake1");
  ck_assert_int_eq(props.speed, 800000);
  ck_assert_int_eq(props.vProps.ndevs, 2);
  /* Between one port and two there are two queue pairs. */
  pair_open(&pair, 0, 3, 1000000);
  exchange(&pair, 1000000);
  pair_close(&pair);
  pair_open(&pair, 3, 0, 1000000);
  exchange(&pair, 1000000);
  pair_close(&pair);
  /* RoCE and InfiniBand do not meet. */
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  void *listener, *send = NULL, *recv = NULL;
  ncclResult_t result = ncclSuccess;
  ck_assert_int_eq(net->listen(context, 2, handle, &listener), ncclSuccess);
  for (uint64_t end = now_ms() + LONG_MS; result == ncclSuccess && now_ms() < end;) {
    result = net->connect(context, 0, handle, &send, NULL);
    if (result == ncclSuccess) result = net->accept(listener, &recv, NULL);
  }
  ck_assert_int_eq(result, ncclInvalidUsage);
  ck_assert_msg(strstr(last_warning, "is IB") && strstr(last_warning, "is RoCE"), "%s", last_warning);
  net->closeListen(listener);
  stop();
}
END_TEST

START_TEST(memory_of_gpus)
{
  struct pair pair;
  enum { BYTES = 100000 };
  int fd = memfd_create("gpu", 0), done = 0, size = BYTES, tag = 0;
  size_t room = BYTES;
  ncclResult_t results[2];
  ncclNetProperties_v12_t props;
  ck_assert_int_eq(ftruncate(fd, 1 << 17), 0);
  char *gpu = mmap(NULL, 1 << 17, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  void *memory = NULL, *request = NULL, *data = gpu;
  start();
  ck_assert_int_eq(net->getProperties(0, &props), ncclSuccess);
  ck_assert_int_ne(props.ptrSupport & NCCL_PTR_DMABUF, 0);
  pair_open(&pair, 0, 0, BYTES);
  ck_assert_int_eq(net->regMrDmaBuf(pair.recv, gpu, BYTES, NCCL_PTR_CUDA, 0, fd, &memory), ncclSuccess);
  close(fd);
  ck_assert_uint_eq(fake_count("dmabuf"), 1);
  ck_assert_int_eq(net->irecv(pair.recv, 1, &data, &room, &tag, &memory, NULL, &request), ncclSuccess);
  drive(post_send(&pair, BYTES, 0), request, results);
  ck_assert_int_eq(results[0] + results[1], 0);
  uint64_t reads = fake_count("read");
  ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
  ck_assert_ptr_nonnull(request);
  for (uint64_t end = now_ms() + LONG_MS; !done && now_ms() < end;)
    ck_assert_int_eq(net->test(request, &done, NULL), ncclSuccess);
  ck_assert_int_eq(done, 1);
  ck_assert_uint_eq(fake_count("read") - reads, 1);
  ck_assert_int_eq(memcmp(gpu, pair.out, BYTES), 0);
  /* The host's memory needs none. */
  data = pair.in;
  ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &pair.in_memory, &request), ncclSuccess);
  ck_assert_ptr_null(request);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(gpu, 1 << 17);
  stop();
}
END_TEST

/* What is sent of a GPU's memory is read by the NIC, however little it is. */
START_TEST(never_inline_from_gpus)
{
  struct pair pair;
  int fd = memfd_create("gpu", 0);
  void *memory, *send = NULL;
  ncclResult_t results[2];
  ck_assert_int_eq(ftruncate(fd, 4096), 0);
  start();
  pair_open(&pair, 0, 0, 4096);
  /* The address is the NIC's only: the processor would fault there. */
  char *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_int_eq(pwrite(fd, "abcdefgh", 8, 0), 8);
  ck_assert_int_eq(net->regMrDmaBuf(pair.send, nowhere, 4096, NCCL_PTR_CUDA, 0, fd, &memory), ncclSuccess);
  close(fd);
  void *recv = post_recv(&pair, 4096, 0);
  ck_assert_int_eq(net->isend(pair.send, nowhere, 8, 0, memory, NULL, &send), ncclSuccess);
  drive(send, recv, results);
  ck_assert_int_eq(results[0] + results[1], 0);
  ck_assert_int_eq(memcmp(pair.in, "abcdefgh", 8), 0);
  ck_assert_int_eq(net->deregMr(pair.send, memory), ncclSuccess);
  pair_close(&pair);
  munmap(nowhere, 4096);
  stop();
}
END_TEST

/* Registrations of the same pages are one. */
START_TEST(cache)
{
  struct pair pair;
  void *data, *memory[4];
  ck_assert_int_eq(posix_memalign(&data, 4096, 1 << 16), 0);
  start();
  pair_open(&pair, 0, 0, 1000);
  uint64_t before = fake_count("reg_mr");
  int live = fake_live("mr");
  ck_assert_int_eq(net->regMr(pair.send, data, 1 << 16, NCCL_PTR_HOST, &memory[0]), ncclSuccess);
  ck_assert_int_eq(net->regMr(pair.recv, (char *)data + 5000, 100, NCCL_PTR_HOST, &memory[1]), ncclSuccess);
  ck_assert_int_eq(net->regMr(pair.send, data, 1 << 16, NCCL_PTR_HOST, &memory[2]), ncclSuccess);
  ck_assert_uint_eq(fake_count("reg_mr") - before, 1);
  ck_assert_int_eq(net->deregMr(pair.send, memory[0]), ncclSuccess);
  ck_assert_int_eq(net->deregMr(pair.send, memory[2]), ncclSuccess);
  ck_assert_int_eq(fake_live("mr"), live + 1);
  ck_assert_int_eq(net->deregMr(pair.recv, memory[1]), ncclSuccess);
  ck_assert_int_eq(fake_live("mr"), live);
  ck_assert_int_ne(net->regMr(pair.send, data, 0, NCCL_PTR_HOST, &memory[3]), ncclSuccess);
  pair_close(&pair);
  free(data);
  stop();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("settings");
  tcase_add_test(tcase, defaults);
  tcase_add_test(tcase, all_set);
  tcase_add_test(tcase, class_of_the_receiver);
  tcase_add_test(tcase, class_of_the_communicator);
  tcase_add_loop_test(tcase, queue_pairs, 0, 2);
  tcase_add_loop_test(tcase, adaptive_routing, 0, 2);
  tcase_add_loop_test(tcase, wrong, 0, 8);
  tcase_add_loop_test(tcase, filtered, 0, 6);
  tcase_add_test(tcase, rails_and_planes);
  tcase_add_test(tcase, merging);
  tcase_add_test(tcase, memory_of_gpus);
  tcase_add_test(tcase, never_inline_from_gpus);
  tcase_add_test(tcase, cache);
  return run_ib_suite(argc, argv, tcase);
}
