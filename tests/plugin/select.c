/* The choice: by name, by what works here, by what works everywhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "helper.h"

static void select_net(const char *value)
{
  setenv("NCCL_NET", value, 1);
  tt_param_reset();
}

START_TEST(test_by_name)
{
  start(STUB("stub6") "," STUB("stub12"));
  select_net("STUB12");
  struct tt_net *net = open_net(&plain);
  ck_assert_str_eq(tt_net_name(net), "stub12");
  check_logged(": named by NCCL_NET, usable on all 1 ranks");
  ck_assert_int_eq(count_calls("stub6", "init"), 0); /* the name is enough to pass it over */
  close_net(net);

  /* NCCL_NET wins over the config's netName; without it the config decides. */
  start(STUB("stub6") "," STUB("stub12"));
  struct tt_net_request request = plain;
  request.net_name = "sTuB12";
  select_net("socket");
  net = open_net(&request);
  ck_assert_str_eq(tt_net_name(net), "Socket");
  close_net(net);
  start(STUB("stub6") "," STUB("stub12"));
  net = open_net(&request);
  ck_assert_str_eq(tt_net_name(net), "stub12");
  check_logged("named by the communicator's netName");
  close_net(net);
}
END_TEST

START_TEST(test_wrong_name)
{
  struct tt_net_set *set;
  start(STUB("stub6"));
  behave("Socket", "NDEV", "0");
  tt_net_survey();
  select_net("Myrinet");
  ck_assert_int_eq(tt_net_candidates(&plain, &set), ncclInvalidUsage);
  check_error("NCCL_NET is \"Myrinet\"");
  check_error("stub6 (v6, " STUB("stub6") ")");
  check_error("IB (v12, " OWN "/libtutti-net-ib.so)");
  check_error("Socket (no devices on this machine)");
  tt_net_set_free(set);

  /* The right name of a network that has no devices is no better. */
  select_net("Socket");
  ck_assert_int_eq(tt_net_candidates(&plain, &set), ncclInvalidUsage);
  check_error("Socket (no devices on this machine)");
  tt_net_set_free(set);

  start("none");
  struct tt_net_request request = plain;
  request.net_name = "UDP";
  ck_assert_int_eq(tt_net_candidates(&request, &set), ncclInvalidUsage);
  check_error("the communicator's netName is \"UDP\"");
  tt_net_set_free(set);
}
END_TEST

/* What does not work here is passed over, with its reason, for the rest of the process. */
static void passed_over(const char *what, const char *value, const char *reason)
{
  start(STUB("stub12") "," STUB("stub9"));
  behave("stub12", what, value);
  struct tt_net *net = open_net(&plain);
  ck_assert_str_eq(tt_net_name(net), "stub9");
  ck_assert_ptr_nonnull(strstr(report_of("libstub12.so").reason, reason));
  check_logged("passed over: stub12 (");
  check_logged(reason);
  ck_assert_int_eq(count_calls("stub12", "unloaded"), 1);
  ck_assert_int_eq(count_calls("stub12", "finalize"), strcmp(what, "INIT_ERROR") != 0);
  behave("stub12", what, NULL);
  close_net(net);
  net = open_net(&plain);
  ck_assert_str_eq(tt_net_name(net), "stub9");
  close_net(net);
}

START_TEST(test_passed_over)
{
  passed_over("NDEV", "0", "no devices on this machine");
  passed_over("NDEV", "-1", "no devices on this machine");
  passed_over("NDEV", "1025", "it counts 1025 devices, of which at most 1024 are possible");
  check_error("net plugin stub12 (" STUB("stub12") ") is refused");
  check_error("have it offer fewer, or choose another network with NCCL_NET");
  passed_over("NDEV", "2147483647", "it counts 2147483647 devices");
  passed_over("INIT_ERROR", "2", "its init failed (error 2)");
  passed_over("OFFLOAD", "1", "its device 0 needs device offload (type 1, version 7)");
  check_error("net plugin stub12 (" STUB("stub12") ") is refused");
}
END_TEST

/* As many as may be, and then more of them. */
START_TEST(test_most_devices)
{
  int ndev;
  start(STUB("stub12"));
  behave("stub12", "NDEV", "1024");
  struct tt_net *net = open_net(&plain);
  ck_assert_str_eq(tt_net_name(net), "stub12");
  ck_assert_int_eq(tt_net_devices(net, &ndev), ncclSuccess);
  ck_assert_int_eq(ndev, 1024);
  behave("stub12", "NDEV", "1025");
  ck_assert_int_eq(tt_net_devices(net, &ndev), ncclInvalidUsage);
  ck_assert_int_eq(ndev, 0);
  check_error("counts 1025 devices by now; have it offer at most 1024");
  close_net(net);
}
END_TEST

/* Going on without a plugin that was named is said aloud. */
START_TEST(test_named_unusable)
{
  start(STUB("stub12"));
  behave("stub12", "NDEV", "0");
  struct tt_net *net = open_net(&plain);
  ck_assert_str_eq(tt_net_name(net), "IB");
  check_error("no plugin of NCCL_NET_PLUGIN can be used on this machine: stub12 (no devices on this machine); going on "
              "with IB");
  close_net(net);
}
END_TEST

START_TEST(test_disabled)
{
  struct tt_net_set *set;
  struct tt_net *net;
  uint8_t offer[TT_NET_OFFER_BYTES];
  start(STUB("stub12"));
  setenv("NCCL_NET_DISABLE", "1", 1);
  tt_param_reset();
  ck_assert_int_eq(tt_net_candidates(&plain, &set), ncclSuccess);
  ck_assert_int_eq(tt_net_set_count(set), 0);
  tt_net_offer(set, offer);
  ck_assert_int_eq(tt_net_choose(set, offer, 1, 0, &net), ncclSuccess);
  ck_assert_ptr_null(net);
  tt_net_set_free(set);
  ck_assert_str_eq(calls("stub12"), "");
}
END_TEST

/* ---- Several ranks: this one is real, the others are offers ---- */

#define RANKS 4
static uint8_t offers[RANKS][TT_NET_OFFER_BYTES];

/* "IB12,Socket12": names with versions; "!reason" is a rank that failed. */
static void set_offer(int rank, const char *text)
{
  struct tt_net_offered offered = {.count = 0};
  char copy[128], *rest = copy, *word;
  snprintf(copy, sizeof(copy), "%s", text);
  if (text[0] == '!') {
    offered.result = ncclInvalidUsage;
    snprintf(offered.reason, sizeof(offered.reason), "%s", text + 1);
  }
  while (!offered.result && (word = strsep(&rest, ",")) && *word) {
    size_t letters = strcspn(word, "0123456789");
    memcpy(offered.net[offered.count].name, word, letters);
    offered.net[offered.count].version = atoi(word + letters);
    offered.net[offered.count++].ndev = 1;
  }
  tt_net_offer_write(&offered, offers[rank]);
}

/* This rank is `rank` and has IB, Socket (v12); the others offer others[...]. Returns the result, *net to be closed. */
static ncclResult_t choose(int rank, const char *const others[RANKS], struct tt_net **net)
{
  struct tt_net_set *set;
  start("none");
  ck_assert_int_eq(tt_net_candidates(&plain, &set), ncclSuccess);
  for (int r = 0; r < RANKS; r++) set_offer(r, others[r]);
  tt_net_offer(set, offers[rank]);
  ncclResult_t result = tt_net_choose(set, offers[0], RANKS, rank, net);
  tt_net_set_free(set);
  return result;
}

static void chooses(int rank, const char *name, const char *a, const char *b, const char *c, const char *d)
{
  const char *const others[RANKS] = {a, b, c, d};
  struct tt_net *net;
  ck_assert_int_eq(choose(rank, others, &net), ncclSuccess);
  ck_assert_str_eq(tt_net_name(net), name);
  close_net(net);
  ck_assert_int_eq(count_calls("IB", "init"), count_calls("IB", "finalize"));
  ck_assert_int_eq(count_calls("Socket", "init"), count_calls("Socket", "finalize"));
}

START_TEST(test_common)
{
  chooses(0, "IB", "", "IB12,Socket12", "Socket12,IB12", "ib12");
  check_logged("usable on all 4 ranks");
  chooses(0, "Socket", "", "IB12,Socket12", "Socket12", "IB12,Socket12");
  check_logged("passed over: IB (v12) is not usable on all ranks: rank 2 has Socket (v12)");
  /* The order is rank 0's, on every rank. */
  chooses(3, "Socket", "Socket12,IB12", "IB12,Socket12", "IB12,Socket12", "");
  /* One name in two versions is not one network. */
  chooses(1, "Socket", "IB12,Socket12", "", "IB12,Socket12", "IB11,Socket12");
  check_logged("IB (v12) is not usable on all ranks: rank 3 has IB (v11), Socket (v12)");
}
END_TEST

static void differs(int rank, const char *a, const char *b, const char *c, const char *d, const char *message)
{
  const char *const others[RANKS] = {a, b, c, d};
  struct tt_net *net;
  ck_assert_int_eq(choose(rank, others, &net), ncclInvalidUsage);
  ck_assert_ptr_null(net);
  check_error(message);
  ck_assert_int_eq(count_calls("IB", "init"), count_calls("IB", "finalize"));
}

START_TEST(test_differs)
{
  differs(
      0, "", "IB12,Socket12", "Slingshot12", "IB12,Socket12",
      "no network is usable on all 4 ranks: IB (v12) is not usable on all ranks: rank 2 has Slingshot (v12); Socket");
  differs(1, "IB12", "", "IB12", "", "rank 3 has none");
  differs(2, "", "", "", "IB12", "rank 0 has none, rank 2 has IB (v12), Socket (v12)");
  differs(1, "IB12", "", "!NCCL_NET_PLUGIN is wrong", "IB12", "rank 2 has no usable network: NCCL_NET_PLUGIN is wrong");

  /* An offer in an unknown format. */
  struct tt_net_set *set;
  struct tt_net *net;
  start("none");
  ck_assert_int_eq(tt_net_candidates(&plain, &set), ncclSuccess);
  for (int r = 0; r < RANKS; r++) tt_net_offer(set, offers[r]);
  offers[3][3]++;
  ck_assert_int_eq(tt_net_choose(set, offers[0], RANKS, 0, &net), ncclInvalidUsage);
  check_error("rank 3 describes its networks in a way that rank 0 cannot read");
  tt_net_set_free(set);
}
END_TEST

/* A rank that failed tells the others and hands on its own error. */
START_TEST(test_own_failure)
{
  struct tt_net_set *set;
  struct tt_net *net;
  struct tt_net_offered offered;
  start("nowhere");
  ck_assert_int_eq(tt_net_candidates(&plain, &set), ncclInvalidUsage);
  for (int r = 0; r < RANKS; r++) set_offer(r, "IB12");
  tt_net_offer(set, offers[2]);
  ck_assert(tt_net_offer_read(offers[2], &offered));
  ck_assert_int_eq(offered.result, ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(offered.reason, "NCCL_NET_PLUGIN is \"nowhere\""));
  ck_assert_int_eq(tt_net_choose(set, offers[0], RANKS, 2, &net), ncclInvalidUsage);
  check_error("NCCL_NET_PLUGIN is \"nowhere\"");
  tt_net_set_free(set);
}
END_TEST

/* A network that worked and no longer does, for a later communicator. */
START_TEST(test_fails_later)
{
  struct tt_net_set *set;
  struct tt_net *net;
  uint8_t offer[TT_NET_OFFER_BYTES];
  start(STUB("stub12"));
  close_net(open_net(&plain));
  behave("stub12", "INIT_ERROR", "6");
  ck_assert_int_eq(tt_net_candidates(&plain, &set), ncclSuccess);
  tt_net_offer(set, offer);
  ck_assert_int_eq(tt_net_choose(set, offer, 1, 0, &net), ncclSystemError);
  ck_assert_ptr_null(net);
  check_error("its init failed (error 6)");
  tt_net_set_free(set);
}
END_TEST

/* Two libraries with one name: the first of the list counts. */
START_TEST(test_same_name)
{
  start("STATIC_PLUGIN,STATIC_PLUGIN");
  struct tt_net *net = open_net(&plain);
  ck_assert_str_eq(tt_net_name(net), "program");
  check_logged("hides another network program");
  close_net(net);
}
END_TEST

void add_select_tests(Suite *suite)
{
  TCase *tcase = tcase_create("select");
  tcase_set_timeout(tcase, 60);
  tcase_add_test(tcase, test_by_name);
  tcase_add_test(tcase, test_wrong_name);
  tcase_add_test(tcase, test_passed_over);
  tcase_add_test(tcase, test_most_devices);
  tcase_add_test(tcase, test_named_unusable);
  tcase_add_test(tcase, test_disabled);
  tcase_add_test(tcase, test_common);
  tcase_add_test(tcase, test_differs);
  tcase_add_test(tcase, test_own_failure);
  tcase_add_test(tcase, test_fails_later);
  tcase_add_test(tcase, test_same_name);
  suite_add_tcase(suite, tcase);
}
