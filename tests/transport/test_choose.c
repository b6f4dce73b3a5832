/* Which transport is chosen, and what is said when there is none. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "transport/reach.h"
#include "transport/transport.h"

static struct tt_peer_info peers[4] = {
    {.rank = 0, .node = 0, .host_hash = 1, .host = "a"},
    {.rank = 1, .node = 0, .host_hash = 1, .host = "a"},
    {.rank = 2, .node = 2, .host_hash = 2, .host = "b"},
    {.rank = 3, .node = 3, .host_hash = 1, .host = "a"},
};
static struct tt_transport_env env = {.rank = 0, .nranks = 4, .peers = peers};

static void set(const char *name, const char *value)
{
  if (value)
    setenv(name, value, 1);
  else
    unsetenv(name);
  tt_param_reset();
}

START_TEST(order)
{
  enum tt_transport_id id;
  struct tt_net *some_net = (struct tt_net *)&env; /* never called here */
  env.net = some_net;
  ck_assert_int_eq(tt_transport_choose(&env, 0, 1, &id), ncclSuccess);
  ck_assert_int_eq(id, TT_TRANSPORT_PEER);
  ck_assert_int_eq(tt_transport_choose(&env, 0, 2, &id), ncclSuccess);
  ck_assert_int_eq(id, TT_TRANSPORT_NET);
  ck_assert_int_eq(tt_transport_choose(&env, 3, 0, &id), ncclSuccess); /* the same name is not the same host */
  ck_assert_int_eq(id, TT_TRANSPORT_NET);
  set("NCCL_SHM_DISABLE", "1");
  ck_assert_int_eq(tt_transport_choose(&env, 0, 1, &id), ncclSuccess);
  ck_assert_int_eq(id, TT_TRANSPORT_NET);
  set("NCCL_SHM_DISABLE", NULL);
  set("NCCL_NET_DISABLE", "1");
  ck_assert_int_eq(tt_transport_choose(&env, 0, 1, &id), ncclSuccess);
  ck_assert_int_eq(id, TT_TRANSPORT_PEER);
}
END_TEST

START_TEST(reasons)
{
  enum tt_transport_id id;
  env.net = NULL;
  set("NCCL_SHM_DISABLE", "1");
  ck_assert_int_eq(tt_transport_choose(&env, 0, 1, &id), ncclSystemError);
  const char *text = tt_log_thread_error();
  ck_assert_ptr_nonnull(strstr(text, "SHM: NCCL_SHM_DISABLE"));
  ck_assert_ptr_nonnull(strstr(text, "NET: no network plugin"));
  set("NCCL_SHM_DISABLE", NULL);
  set("NCCL_NET_DISABLE", "1");
  ck_assert_int_eq(tt_transport_choose(&env, 0, 2, &id), ncclSystemError);
  text = tt_log_thread_error();
  ck_assert_ptr_nonnull(strstr(text, "rank 0 is on a, rank 2 on b"));
  ck_assert_ptr_nonnull(strstr(text, "NET: NCCL_NET_DISABLE"));
  ck_assert_int_eq(tt_transport_choose(&env, 0, 3, &id), ncclSystemError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "containers"));
  ck_assert_int_eq(tt_transport_choose(&env, 1, 1, &id), ncclSystemError);
  ck_assert_ptr_null(tt_transport_get(TT_NUM_TRANSPORTS));
}
END_TEST

START_TEST(device_memory)
{
  enum tt_transport_id id;
  static const struct tt_device gpu = {.name = "gpu", .features = TT_DEVICE_MEMORY};
  struct tt_peer_info ranks[2] = {{.rank = 0, .host = "a"}, {.rank = 1, .host = "a"}};
  struct tt_transport_env on_gpu = {.nranks = 2, .peers = ranks, .device = &gpu};
  set("NCCL_P2P_DISABLE", "1");
  ck_assert_int_eq(tt_transport_choose(&on_gpu, 0, 1, &id), ncclSystemError);
  const char *text = tt_log_thread_error();
  ck_assert_ptr_nonnull(strstr(text, "P2P: NCCL_P2P_DISABLE"));
  ck_assert_ptr_nonnull(strstr(text, "SHM: device gpu cannot use the host's memory"));
  ck_assert_ptr_nonnull(strstr(text, "NET: device gpu cannot use the host's memory"));
  /* One that can use it does, unless that is disabled, too. */
  static const struct tt_device mapping = {.name = "gpu", .features = TT_DEVICE_MEMORY | TT_DEVICE_HOST_MEMORY};
  on_gpu.device = &mapping;
  ck_assert_int_eq(tt_transport_choose(&on_gpu, 0, 1, &id), ncclSuccess);
  ck_assert_int_eq(id, TT_TRANSPORT_HOST);
  set("NCCL_SHM_DISABLE", "1");
  ck_assert_int_eq(tt_transport_choose(&on_gpu, 0, 1, &id), ncclSystemError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "SHM: NCCL_SHM_DISABLE"));
  set("NCCL_SHM_DISABLE", NULL);
  on_gpu.device = &gpu;
  set("NCCL_P2P_DISABLE", NULL);
  ranks[1].node = ranks[1].machine = 1;
  ranks[1].host[0] = 'b';
  ranks[1].host_hash = 1;
  ck_assert_int_eq(tt_transport_choose(&on_gpu, 0, 1, &id), ncclSystemError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "P2P: rank 0 is on a, rank 1 on b"));
  /* Devices without memory of their own hear nothing of it. */
  env.net = NULL;
  ck_assert_int_eq(tt_transport_choose(&env, 0, 2, &id), ncclSystemError);
  ck_assert_ptr_null(strstr(tt_log_thread_error(), "P2P"));
}
END_TEST

static bool far_apart(const void *routes, int from, int to, char *why, size_t size)
{
  (void)routes;
  snprintf(why, size, "far apart");
  return from + to == 1;
}

/* Devices that the machine puts too far from each other; and what all ranks together use. */
START_TEST(far)
{
  enum tt_transport_id id;
  static const struct tt_device gpu = {.name = "gpu", .features = TT_DEVICE_MEMORY | TT_DEVICE_HOST_MEMORY};
  struct tt_peer_info ranks[3] = {{.rank = 0, .host = "a"}, {.rank = 1, .host = "a"}, {.rank = 2, .host = "a"}};
  struct tt_transport_env on_gpu = {.nranks = 2, .peers = ranks, .device = &gpu, .far = far_apart};
  ck_assert_int_eq(tt_transport_choose(&on_gpu, 0, 1, &id), ncclSuccess);
  ck_assert_int_eq(id, TT_TRANSPORT_HOST);
  set("NCCL_SHM_DISABLE", "1");
  ck_assert_int_eq(tt_transport_choose(&on_gpu, 1, 0, &id), ncclSystemError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "P2P: far apart; SHM: NCCL_SHM_DISABLE"));
  set("NCCL_SHM_DISABLE", NULL);
}
END_TEST

static ncclResult_t count_none(int *count)
{
  *count = 0;
  return ncclSuccess;
}

/* Copy engines serve messages in Simple between devices that reach each other, on one host: those of a fabric's other
 * hosts do not see the counters. */
START_TEST(copy_engines)
{
  enum tt_transport_id id;
  struct tt_device gpu = {
      .name = "gpu", .features = TT_DEVICE_MEMORY | TT_DEVICE_HOST_MEMORY | TT_DEVICE_COPY, .count = count_none};
  struct tt_peer_info ranks[3] = {
      {.rank = 0, .host = "a"},
      {.rank = 1, .host = "a"},
      {.rank = 2, .host = "b", .host_hash = 1, .node = 2, .machine = 0},
  };
  struct tt_transport_env on_gpu = {.nranks = 3, .peers = ranks, .device = &gpu};
  const int simple = tt_connect_index(true, TT_PROTO_SIMPLE, false), ll = tt_connect_index(true, TT_PROTO_LL, false);
  ck_assert_int_eq(tt_reach_create(&gpu, 0, 3, ranks, NULL, &on_gpu.reach), ncclSuccess);
  set("NCCL_P2P_USE_CUDA_MEMCPY", "1");
#define CHOSEN(to, index, what)                                                                                        \
  do {                                                                                                                 \
    ck_assert_int_eq(tt_transport_choose_index(&on_gpu, 0, to, index, &id), ncclSuccess);                              \
    ck_assert_int_eq(id, what);                                                                                        \
  } while (0)
  CHOSEN(1, simple, TT_TRANSPORT_COPIED);
  CHOSEN(1, ll, TT_TRANSPORT_DEVICE);
  CHOSEN(2, simple, TT_TRANSPORT_DEVICE);
  gpu.features &= ~TT_DEVICE_COPY;
  CHOSEN(1, simple, TT_TRANSPORT_DEVICE);
  gpu.features |= TT_DEVICE_COPY;
  set("NCCL_P2P_USE_CUDA_MEMCPY", NULL);
  CHOSEN(1, simple, TT_TRANSPORT_DEVICE);
#undef CHOSEN
  tt_reach_destroy(on_gpu.reach);
}
END_TEST

void add_choose(Suite *suite)
{
  TCase *tc = tcase_create("choose");
  tcase_add_test(tc, order);
  tcase_add_test(tc, reasons);
  tcase_add_test(tc, device_memory);
  tcase_add_test(tc, far);
  tcase_add_test(tc, copy_engines);
  suite_add_tcase(suite, tc);
}
