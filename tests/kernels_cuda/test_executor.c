/* What kernels find of a context's connections and programs: ends as conn_open writes them into device memory, those
 * that a proxy serves with counters and FIFO in memory of the host, and programs' packed forms. */
#include <check.h>
#include <string.h>
#include <sys/mman.h>
#include "base/check.h"
#include "base/log.h"
#include "fake_cuda.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/state.h"
#include "tests/program/program_set.h"

#define PAGE ((size_t)4096)
enum { SLOT_BYTES = 1024, SIMPLE = TT_PROTO_SIMPLE };

/* What a transport lays out in the host's memory. */
struct block {
  _Alignas(64) _Atomic uint64_t tail;
  _Alignas(64) _Atomic uint64_t head;
  struct tt_conn_fifo fifo[TT_SLOTS];
  uint64_t asked;
};

static struct tt_device_context *context;
static struct block *block, *on_device; /* the host's address, and the GPU's */
static struct tt_device_memory slots;

static void setup(void)
{
  struct tt_device_config config = {.size = sizeof(config), .index = 1, .rank = 3, .nranks = 4};
  void *at;
  ck_assert_int_eq(tt_cuda_open(&config, &context), ncclSuccess);
  block = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(block, MAP_FAILED);
  ck_assert_int_eq(tt_cuda_map_host(context, block, PAGE, &at), ncclSuccess);
  on_device = at;
  ck_assert_ptr_ne(on_device, block);
  ck_assert_int_eq(tt_cuda_alloc(context, TT_SLOTS * SLOT_BYTES, &slots), ncclSuccess);
}

static void teardown(void)
{
  tt_cuda_release(context, &slots);
  tt_cuda_unmap_host(context, block, PAGE);
  tt_cuda_close(context);
  munmap(block, PAGE);
  ck_assert_int_eq(fake.registered + fake.handles + fake.mappings + fake.ranges, 0);
  ck_assert_ptr_eq(fake_current, NULL);
}

static struct tt_conn proxied(uint64_t step)
{
  struct tt_conn conn = {.tail = &on_device->tail,
                         .head = &on_device->head,
                         .fifo = on_device->fifo,
                         .step = step,
                         .flags = TT_CONN_PROXIED,
                         .peer = 2};
  conn.slots[SIMPLE] = slots.ptr;
  conn.slot_bytes[SIMPLE] = SLOT_BYTES;
  return conn;
}

/* As a kernel finds it. */
static struct tt_cuda_conn *end_of(const struct tt_conn *conn)
{
  ck_assert_ptr_ne(conn->twin, NULL);
  return &context->executor->conns[tt_cuda_conn_index(conn)];
}

/* What the kernel writes through its end, the proxy reads in the host's memory, and the other way round. The counters
 * are the proxy's to start. */
START_TEST(served_by_a_proxy)
{
  struct tt_conn conn = proxied(77);
  atomic_store(&block->tail, 5);
  atomic_store(&block->head, 6);
  ck_assert_int_eq(tt_cuda_conn_open(context, &conn), ncclSuccess);
  ck_assert_uint_eq(block->tail, 5);
  ck_assert_uint_eq(block->head, 6);
  struct tt_cuda_conn *end = end_of(&conn);
  ck_assert_uint_eq(end->step, 77);
  ck_assert_uint_eq(end->seen, 77);
  ck_assert_int_eq(end->peer, 2);
  ck_assert_int_eq(end->protocol, SIMPLE);
  ck_assert_ptr_eq(end->slots, slots.ptr);
  ck_assert_uint_eq(end->slot_bytes, SLOT_BYTES);
  ck_assert_uint_eq(*end->tail, 5);
  ck_assert_uint_eq(*end->head, 6);
  *end->tail = 78;
  ck_assert_uint_eq(block->tail, 78);
  atomic_store(&block->head, 79);
  ck_assert_uint_eq(*end->head, 79);
  for (int i = 0; i < TT_SLOTS; i++) end->fifo[i].size = 1000 + i;
  for (int i = 0; i < TT_SLOTS; i++) ck_assert_int_eq(block->fifo[i].size, 1000 + i);
  tt_cuda_conn_close(context, &conn);
  ck_assert_ptr_eq(conn.twin, NULL);
}
END_TEST

/* In devices' own memory both ends write what the counters start from, and nobody looks at a FIFO. */
START_TEST(in_device_memory)
{
  for (uint64_t step = 0; step < 200; step += 100) {
    struct tt_conn conn = proxied(step);
    conn.flags = 0;
    conn.slots[SIMPLE] = NULL;
    conn.slots[TT_PROTO_LL128] = slots.ptr;
    conn.slot_bytes[TT_PROTO_LL128] = SLOT_BYTES / 2;
    ck_assert_int_eq(tt_cuda_conn_open(context, &conn), ncclSuccess);
    ck_assert_uint_eq(block->tail, step);
    ck_assert_uint_eq(block->head, step);
    ck_assert_int_eq(end_of(&conn)->protocol, TT_PROTO_LL128);
    ck_assert_uint_eq(end_of(&conn)->slot_bytes, SLOT_BYTES / 2);
    ck_assert_ptr_eq(end_of(&conn)->fifo, NULL);
    tt_cuda_conn_close(context, &conn);
  }
}
END_TEST

/* Of a pool: a kernel finds slots in the FIFO, and no others. */
START_TEST(slots_of_a_pool)
{
  struct tt_conn conn = proxied(9);
  conn.flags |= TT_CONN_POOLED;
  atomic_store(&block->head, 1);
  ck_assert_int_eq(tt_cuda_conn_open(context, &conn), ncclSuccess);
  ck_assert_ptr_eq(end_of(&conn)->slots, NULL);
  ck_assert_uint_eq(end_of(&conn)->slot_bytes, SLOT_BYTES);
  ck_assert_uint_eq(block->head, 1);
  *(uint64_t *)(end_of(&conn)->fifo + TT_SLOTS) = 17;
  struct tt_conn here = {.fifo = block->fifo};
  ck_assert_uint_eq(*tt_conn_asked(&here), 17);
  tt_cuda_conn_close(context, &conn);
}
END_TEST

/* Lines over a network: no FIFO, and counters that are a proxy's to start. */
START_TEST(lines_over_a_network)
{
  struct tt_conn conn = proxied(9);
  conn.slots[TT_PROTO_LL] = slots.ptr;
  conn.slot_bytes[TT_PROTO_LL] = SLOT_BYTES;
  conn.slots[SIMPLE] = NULL;
  conn.flags = TT_CONN_LINES;
  conn.fifo = NULL;
  atomic_store(&block->head, 9);
  ck_assert_int_eq(tt_cuda_conn_open(context, &conn), ncclSuccess);
  ck_assert_int_eq(end_of(&conn)->protocol, TT_PROTO_LL);
  ck_assert_ptr_eq(end_of(&conn)->slots, slots.ptr);
  ck_assert_ptr_eq(end_of(&conn)->fifo, NULL);
  ck_assert_uint_eq(block->head, 9);
  ck_assert_uint_eq(block->tail, 0);
  tt_cuda_conn_close(context, &conn);
  conn.flags = TT_CONN_PROXIED;
  ck_assert_int_eq(tt_cuda_conn_open(context, &conn), ncclInternalError);
  ck_assert_ptr_ne(strstr(tt_log_thread_error(), "rank 3 to rank 2 over a network is not for Simple"), NULL);
  conn = proxied(9);
  conn.flags = TT_CONN_LINES;
  ck_assert_int_eq(tt_cuda_conn_open(context, &conn), ncclInternalError);
  ck_assert_ptr_ne(strstr(tt_log_thread_error(), "rank 3 to rank 2 over a network is not for LL"), NULL);
}
END_TEST

START_TEST(refused)
{
  struct tt_conn conn = proxied(0);
  conn.slots[TT_PROTO_LL] = slots.ptr;
  conn.slot_bytes[TT_PROTO_LL] = SLOT_BYTES;
  ck_assert_int_eq(tt_cuda_conn_open(context, &conn), ncclInternalError);
  ck_assert_ptr_ne(strstr(tt_log_thread_error(), "rank 3 to rank 2 has slots of two protocols"), NULL);
  ck_assert_ptr_eq(conn.twin, NULL);
  tt_cuda_conn_close(context, &conn); /* nothing was opened */
  ck_assert_uint_eq(context->executor->nfree, 0);
  ck_assert_uint_eq(context->executor->nconns, 0);
}
END_TEST

/* Whichever call fails, the end's place is free again, and the thread as it was. */
START_TEST(open_fails)
{
  for (uint32_t flags = 0; flags <= TT_CONN_PROXIED; flags += TT_CONN_PROXIED) {
    int failures = 0;
    for (int call = 1;; call++) {
      struct tt_conn conn = proxied(9);
      conn.flags = flags;
      fake.fail_at = call;
      ncclResult_t result = tt_cuda_conn_open(context, &conn);
      bool reached = fake.fail_at == 0;
      fake.fail_at = 0;
      ck_assert_ptr_eq(fake_current, NULL);
      if (!reached) {
        ck_assert_int_eq(result, ncclSuccess);
        tt_cuda_conn_close(context, &conn);
        break;
      }
      ck_assert_int_eq(result, ncclUnhandledCudaError);
      ck_assert_ptr_eq(conn.twin, NULL);
      failures++;
    }
    ck_assert_int_gt(failures, 1);
  }
  ck_assert_uint_eq(context->executor->nconns, 1);
  ck_assert_uint_eq(context->executor->nfree, 1);
}
END_TEST

START_TEST(so_many_and_no_more)
{
  static struct tt_conn conns[TT_CUDA_CONTEXT_CONNS];
  for (int i = 0; i < TT_CUDA_CONTEXT_CONNS; i++) {
    conns[i] = proxied((uint64_t)i);
    ck_assert_int_eq(tt_cuda_conn_open(context, &conns[i]), ncclSuccess);
  }
  for (int i = 0; i < TT_CUDA_CONTEXT_CONNS; i++) ck_assert_uint_eq(end_of(&conns[i])->step, (uint64_t)i);
  struct tt_conn more = proxied(3);
  ck_assert_int_eq(tt_cuda_conn_open(context, &more), ncclInvalidUsage);
  ck_assert_ptr_ne(strstr(tt_log_thread_error(), "NCCL_MAX_NCHANNELS"), NULL);
  ck_assert_ptr_eq(more.twin, NULL);
  tt_cuda_conn_close(context, &conns[100]);
  ck_assert_int_eq(tt_cuda_conn_open(context, &more), ncclSuccess);
  ck_assert_uint_eq(tt_cuda_conn_index(&more), 100);
}
END_TEST

/* ---- Programs ---- */

/* Equal programs share what lies on the device. */
START_TEST(programs)
{
  const struct operation ring = {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0};
  struct program_set one = emit_set(&ring, 2, 0, NULL), same = emit_set(&ring, 2, 0, NULL);
  struct program_set other = emit_set(&ring, 3, 0, NULL);
  const struct tt_cuda_program *packed[4], *at[4];
  const struct tt_program *asked[4] = {one.programs[0], same.programs[0], other.programs[0], one.programs[0]};
  for (int i = 0; i < 4; i++) ck_assert_int_eq(tt_cuda_program_get(context, asked[i], &packed[i], &at[i]), ncclSuccess);
  ck_assert_ptr_eq(at[0], at[1]);
  ck_assert_ptr_eq(at[0], at[3]);
  ck_assert_ptr_ne(at[0], at[2]);
  for (int i = 0; i < 4; i++) {
    ck_assert_ptr_ne(at[i], packed[i]);
    ck_assert_int_eq(memcmp(at[i], packed[i], packed[i]->bytes), 0);
  }
  /* One that does not come to the device is asked for again. */
  fake.fail_at = 1;
  ck_assert_int_eq(tt_cuda_program_get(context, other.programs[1], &packed[0], &at[0]), ncclUnhandledCudaError);
  ck_assert_int_eq(tt_cuda_program_get(context, other.programs[1], &packed[0], &at[0]), ncclSuccess);
  ck_assert_int_eq(memcmp(at[0], packed[0], packed[0]->bytes), 0);
  free_set(&one);
  free_set(&same);
  free_set(&other);
}
END_TEST

void add_executor(Suite *suite)
{
  TCase *tc = tcase_create("executor");
  tcase_set_timeout(tc, 60);
  tcase_add_checked_fixture(tc, setup, teardown);
  tcase_add_test(tc, served_by_a_proxy);
  tcase_add_test(tc, in_device_memory);
  tcase_add_test(tc, slots_of_a_pool);
  tcase_add_test(tc, lines_over_a_network);
  tcase_add_test(tc, refused);
  tcase_add_test(tc, open_fails);
  tcase_add_test(tc, so_many_and_no_more);
  tcase_add_test(tc, programs);
  suite_add_tcase(suite, tc);
}
