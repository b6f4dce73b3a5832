/* Collnet plugins of all versions through the loader and the shims: groups of threads reduce with each. */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "plugin/collnet.h"
#include "plugin/net.h"

enum { MEMBERS = 3, COUNT = 1000, ROUNDS = 20 };

static void use_plugin(const char *file)
{
  char path[512];
  snprintf(path, sizeof(path), "%s/lib%s.so", PLUGINS, file);
  setenv("NCCL_NET_PLUGIN", path, 1);
  tt_param_reset();
  ck_assert_int_eq(tt_net_reset(), ncclSuccess);
}

/* ---- A group of threads ---- */

struct group {
  pthread_barrier_t barrier;
  unsigned char handles[MEMBERS][NCCL_NET_HANDLE_MAXSIZE];
  ncclDataType_t type;
  ncclRedOp_t op;
};

struct member {
  struct group *group;
  int rank;
  int version;
  ncclResult_t result;
};

/* Values that stay exact in every type: sums to 6, products to 6. */
static void fill(void *data, ncclDataType_t type, int rank)
{
  for (size_t i = 0; i < COUNT; i++) {
    int value = 1 + (rank + (int)i) % 3;
    if (type == ncclInt8 || type == ncclUint8) ((uint8_t *)data)[i] = (uint8_t)value;
    if (type == ncclInt32 || type == ncclUint32) ((uint32_t *)data)[i] = (uint32_t)value;
    if (type == ncclInt64 || type == ncclUint64) ((uint64_t *)data)[i] = (uint64_t)value;
    if (type == ncclFloat32) ((float *)data)[i] = (float)value;
    if (type == ncclFloat64) ((double *)data)[i] = value;
    if (type == ncclFloat16) ((_Float16 *)data)[i] = (_Float16)value;
    if (type == ncclBfloat16) {
      float wide = (float)value;
      uint32_t bits;
      memcpy(&bits, &wide, sizeof(bits));
      ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    }
  }
}

static double element(const void *data, ncclDataType_t type, size_t i)
{
  uint32_t bits;
  float wide;
  switch (type) {
  case ncclInt8:
  case ncclUint8:
    return ((const uint8_t *)data)[i];
  case ncclInt32:
  case ncclUint32:
    return ((const uint32_t *)data)[i];
  case ncclInt64:
  case ncclUint64:
    return (double)((const uint64_t *)data)[i];
  case ncclFloat16:
    return (double)((const _Float16 *)data)[i];
  case ncclFloat32:
    return (double)((const float *)data)[i];
  case ncclFloat64:
    return ((const double *)data)[i];
  default:
    bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    memcpy(&wide, &bits, sizeof(wide));
    return (double)wide;
  }
}

/* The members hold 1, 2 and 3 of each element, in turn. */
static double wanted(ncclRedOp_t op)
{
  return op == ncclSum || op == ncclProd ? 6 : op == ncclMax ? 3 : 1;
}

static ncclResult_t run_operations(struct tt_collnet *collnet, void *comm, struct member *member)
{
  static _Thread_local _Alignas(64) unsigned char send[ROUNDS][COUNT * 8], recv[ROUNDS][COUNT * 8];
  void *mhandles[2], *requests[ROUNDS] = {NULL};
  struct group *group = member->group;
  ncclResult_t result = tt_collnet_reg_mr(collnet, comm, send, sizeof(send), NCCL_PTR_HOST, &mhandles[0]);
  if (result == ncclSuccess) result = tt_collnet_reg_mr(collnet, comm, recv, sizeof(recv), NCCL_PTR_HOST, &mhandles[1]);
  int posted = 0, done = 0;
  while (result == ncclSuccess && done < ROUNDS) {
    if (posted < ROUNDS) {
      fill(send[posted], group->type, member->rank);
      const struct tt_collnet_all_reduce what = {.send = send[posted],
                                                 .recv = recv[posted],
                                                 .count = COUNT,
                                                 .datatype = group->type,
                                                 .op = group->op,
                                                 .send_mhandle = mhandles[0],
                                                 .recv_mhandle = mhandles[1]};
      result = tt_collnet_iallreduce(collnet, comm, &what, &requests[posted]);
      if (requests[posted]) posted++;
    }
    int complete = 0;
    if (result == ncclSuccess && done < posted) result = tt_collnet_test(collnet, requests[done], &complete);
    for (size_t i = 0; complete && i < COUNT; i++)
      if (element(recv[done], group->type, i) != wanted(group->op)) result = ncclInternalError;
    done += complete;
    sched_yield();
  }
  if (result == ncclSuccess) result = tt_collnet_dereg_mr(collnet, comm, mhandles[0]);
  if (result == ncclSuccess) result = tt_collnet_dereg_mr(collnet, comm, mhandles[1]);
  return result;
}

static void *be_member(void *arg)
{
  struct member *member = arg;
  struct group *group = member->group;
  struct tt_collnet_offer offer;
  struct tt_collnet *collnet;
  void *listen = NULL, *comm = NULL, *handles[MEMBERS];
  ncclNetProperties_v12_t props;
  tt_collnet_open(77, &collnet, &offer);
  member->result = collnet && tt_collnet_version(collnet) == member->version ? ncclSuccess : ncclInternalError;
  if (member->result == ncclSuccess) member->result = tt_collnet_get_properties(collnet, 0, &props);
  if (member->result == ncclSuccess)
    member->result = tt_collnet_listen(collnet, 0, group->handles[member->rank], &listen);
  for (int m = 0; m < MEMBERS; m++) handles[m] = group->handles[m];
  pthread_barrier_wait(&group->barrier);
  if (member->result == ncclSuccess)
    member->result = tt_collnet_connect(collnet, handles, MEMBERS, member->rank, listen, &comm);
  if (collnet) tt_collnet_close_listen(collnet, listen);
  if (member->result == ncclSuccess) member->result = run_operations(collnet, comm, member);
  pthread_barrier_wait(&group->barrier); /* who closes first would end the others' last operation */
  if (collnet) tt_collnet_close_coll(collnet, comm);
  tt_collnet_close(collnet);
  return NULL;
}

static void run_group(int version, ncclDataType_t type, ncclRedOp_t op)
{
  struct group group = {.type = type, .op = op};
  struct member members[MEMBERS];
  pthread_t threads[MEMBERS];
  pthread_barrier_init(&group.barrier, NULL, MEMBERS);
  for (int m = 0; m < MEMBERS; m++) {
    members[m] = (struct member){.group = &group, .rank = m, .version = version};
    ck_assert_int_eq(pthread_create(&threads[m], NULL, be_member, &members[m]), 0);
  }
  for (int m = 0; m < MEMBERS; m++) pthread_join(threads[m], NULL);
  for (int m = 0; m < MEMBERS; m++)
    ck_assert_msg(members[m].result == ncclSuccess, "v%d, type %d, operation %d, member %d: error %d", version, type,
                  op, m, members[m].result);
  pthread_barrier_destroy(&group.barrier);
}

START_TEST(every_version)
{
  char file[64];
  snprintf(file, sizeof(file), "collnet-software-v%d", _i);
  use_plugin(file);
  for (int op = ncclSum; op <= ncclMin; op++)
    for (int type = ncclInt8; type <= ncclBfloat16; type++) run_group(_i, (ncclDataType_t)type, (ncclRedOp_t)op);
}
END_TEST

START_TEST(newest_of_all)
{
  use_plugin("collnet-software");
  run_group(12, ncclFloat32, ncclSum);
}
END_TEST

START_TEST(late_completion)
{
  use_plugin("collnet-software");
  setenv("SOFTWARE_COLLNET_LATE", "50", 1);
  run_group(12, ncclInt32, ncclSum);
}
END_TEST

/* ---- What a version can and cannot ---- */

START_TEST(capabilities)
{
  char file[64];
  struct tt_collnet *collnet;
  struct tt_collnet_offer offer;
  ncclNetProperties_v12_t props;
  snprintf(file, sizeof(file), "collnet-software-v%d", _i);
  use_plugin(file);
  tt_collnet_open(1, &collnet, &offer);
  ck_assert_ptr_nonnull(collnet);
  ck_assert_str_eq(offer.name, "Software");
  ck_assert_int_eq(offer.version, _i);
  ck_assert_int_eq(offer.ndev, 1);
  unsigned can = tt_collnet_can(collnet);
  ck_assert_int_eq((can & TT_COLLNET_CAN_LARGE) != 0, _i >= 9);
  ck_assert_int_eq((can & TT_COLLNET_CAN_CONTEXT) != 0, _i >= 11);
  ck_assert(can & TT_COLLNET_CAN_FLUSH);
  ck_assert(!(can & (TT_COLLNET_CAN_DMABUF | TT_COLLNET_CAN_ALL_GATHER | TT_COLLNET_CAN_REDUCE_SCATTER |
                     TT_COLLNET_CAN_VDEVICE)));
  ck_assert_int_eq(tt_collnet_get_properties(collnet, 0, &props), ncclSuccess);
  ck_assert_str_eq(props.name, "software0");
  ck_assert_uint_eq(props.maxCollBytes, _i >= 9 ? 1 << 30 : MAX_COLLNET_SIZE);
  if (_i <= 8) {
    const struct tt_collnet_all_reduce what = {.count = MAX_COLLNET_SIZE / 8 + 1, .datatype = ncclFloat64};
    void *request;
    ck_assert_int_eq(tt_collnet_iallreduce(collnet, NULL, &what, &request), ncclInternalError);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "keep to maxCollBytes"));
  }
  if (_i <= 7) {
    void *mhandle;
    ck_assert_int_eq(tt_collnet_reg_mr(collnet, NULL, NULL, 1UL << 31, NCCL_PTR_HOST, &mhandle), ncclInternalError);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "less than 2 GiB"));
  }
  tt_collnet_close(collnet);
}
END_TEST

static void must_be_without(const char *reason)
{
  struct tt_collnet *collnet;
  struct tt_collnet_offer offer;
  tt_collnet_open(1, &collnet, &offer);
  ck_assert_ptr_null(collnet);
  ck_assert_str_eq(offer.name, "");
  ck_assert_msg(strstr(offer.reason, reason) != NULL, "expected \"%s\": %s", reason, offer.reason);
}

START_TEST(plugins_that_cannot_be_used)
{
  use_plugin("collnet-software");
  setenv("SOFTWARE_COLLNET_FAULT", "init", 1);
  must_be_without("Software: its init failed");
  setenv("SOFTWARE_COLLNET_FAULT", "devices", 1);
  must_be_without("Software has no devices");
  unsetenv("SOFTWARE_COLLNET_FAULT");
  setenv("NCCL_NET_DISABLE", "1", 1);
  tt_param_reset();
  must_be_without("NCCL_NET_DISABLE");
  unsetenv("NCCL_NET_DISABLE");
  setenv("NCCL_NET_PLUGIN", "none", 1);
  tt_param_reset();
  tt_net_reset();
  must_be_without("no library of NCCL_NET_PLUGIN");
}
END_TEST

/* A library of this kind alone is no net plugin, and no mistake either. */
START_TEST(collnet_only_is_no_error)
{
  struct tt_net_set *set;
  const struct tt_net_request request = {.traffic_class = NCCL_CONFIG_UNDEF_INT};
  use_plugin("collnet-software");
  ck_assert_int_eq(tt_net_candidates(&request, &set), ncclSuccess);
  tt_net_set_free(set);
}
END_TEST

/* ---- What all ranks have ---- */

START_TEST(agreement)
{
  struct tt_collnet_offer offers[3], agreed;
  char why[320];
  memset(offers, 0, sizeof(offers));
  for (int r = 0; r < 3; r++) {
    strcpy(offers[r].name, "Software");
    offers[r].version = 12;
    for (int op = 0; op < 4; op++) offers[r].reduces[op] = 0xffff;
  }
  offers[1].reduces[ncclProd] = 1u << ncclFloat32;
  ck_assert(tt_collnet_agree(offers, 3, &agreed, why, sizeof(why)));
  ck_assert(tt_collnet_reduces(&agreed, ncclFloat32, ncclProd));
  ck_assert(!tt_collnet_reduces(&agreed, ncclInt8, ncclProd));
  ck_assert(tt_collnet_reduces(&agreed, ncclInt8, ncclAvg)); /* a sum */
  ck_assert(!tt_collnet_reduces(&agreed, ncclInt8, ncclNumOps));
  offers[2].version = 8;
  ck_assert(!tt_collnet_agree(offers, 3, &agreed, why, sizeof(why)));
  ck_assert_str_eq(why, "rank 0 has Software (v12), rank 2 has Software (v8)");
  offers[1].name[0] = '\0';
  strcpy(offers[1].reason, "no cable");
  ck_assert(!tt_collnet_agree(offers, 3, &agreed, why, sizeof(why)));
  ck_assert_str_eq(why, "rank 1 has none: no cable");
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("collnet");
  TCase *tests = tcase_create("collnet");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, every_version, 6, 13);
  tcase_add_loop_test(tests, capabilities, 6, 13);
  tcase_add_test(tests, newest_of_all);
  tcase_add_test(tests, late_completion);
  tcase_add_test(tests, plugins_that_cannot_be_used);
  tcase_add_test(tests, collnet_only_is_no_error);
  tcase_add_test(tests, agreement);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
