/* Which transport is chosen, and what is said when there is none. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
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

void add_choose(Suite *suite)
{
  TCase *tc = tcase_create("choose");
  tcase_add_test(tc, order);
  tcase_add_test(tc, reasons);
  suite_add_tcase(suite, tc);
}
