/* ncclConfig_t of every size and release; wrong members are named. */
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "api/config.h"
#include "base/log.h"
#include "base/param.h"

START_TEST(defaults_without_config)
{
  ncclConfig_t config;
  ck_assert_int_eq(tt_config_read(NULL, &config), ncclSuccess);
  ck_assert_int_eq(config.blocking, 1);
  ck_assert_int_eq(config.minCTAs, 1);
  ck_assert_int_eq(config.maxCTAs, 64);
  ck_assert_ptr_null(config.netName);
}
END_TEST

/* A struct of an older release has the same beginning; what follows it in memory is not read. */
START_TEST(older_sizes)
{
  static const struct {
    size_t size;
    unsigned version;
    int knows_ctas, knows_name;
  } cases[] = {{24, 21400, 0, 0}, {40, 21700, 1, 0}, {48, 21800, 1, 0}, {48, 22600, 1, 0},
               {72, 22700, 1, 1}, {80, 22800, 1, 1}, {88, 22900, 1, 1}, {96, 23000, 1, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    unsigned char memory[128];
    ncclConfig_t user = NCCL_CONFIG_INITIALIZER, config;
    user.size = cases[i].size;
    user.version = cases[i].version;
    user.minCTAs = 3;
    user.maxCTAs = 5;
    user.commName = "named";
    memset(memory, 0x5a, sizeof memory);
    memcpy(memory, &user, cases[i].size < sizeof user ? cases[i].size : sizeof user);
    ck_assert_int_eq(tt_config_read((const ncclConfig_t *)memory, &config), ncclSuccess);
    ck_assert_int_eq(config.minCTAs, cases[i].knows_ctas ? 3 : 1);
    ck_assert_int_eq(config.maxCTAs, cases[i].knows_ctas ? 5 : 64);
    if (cases[i].knows_name)
      ck_assert_str_eq(config.commName, "named");
    else
      ck_assert_ptr_null(config.commName);
  }
}
END_TEST

/* Every size, with the newest version: members that lie wholly inside are read, and nothing behind the end is (the
 * memory ends there). A size that no struct can have is refused: it could end inside a pointer. */
START_TEST(every_size)
{
  for (size_t size = 24; size <= 96; size++) {
    ncclConfig_t user = NCCL_CONFIG_INITIALIZER, config;
    unsigned char *memory = malloc(size);
    user.size = size;
    user.version = NCCL_VERSION(2, 30, 0);
    user.cgaClusterSize = 2;
    user.maxCTAs = 5;
    user.netName = "net";
    user.trafficClass = 7;
    user.commName = "named";
    user.nvlinkCentricSched = 1;
    memset(memory, 0x5a, size);
    memcpy(memory, &user, size < sizeof user ? size : sizeof user);
    ncclResult_t result = tt_config_read((const ncclConfig_t *)memory, &config);
    free(memory);
    ck_assert_int_eq(result, size % 8 == 0 ? ncclSuccess : ncclInvalidArgument);
    if (result != ncclSuccess) {
      ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "size"));
      continue;
    }
    ck_assert_int_eq(config.cgaClusterSize, 2);
    ck_assert_int_eq(config.maxCTAs, size >= 32 ? 5 : 64);
    ck_assert_pstr_eq(config.netName, size >= 40 ? "net" : NULL);
    ck_assert_int_eq(config.trafficClass, size >= 48 ? 7 : NCCL_CONFIG_UNDEF_INT);
    ck_assert_pstr_eq(config.commName, size >= 56 ? "named" : NULL);
    ck_assert_int_eq(config.nvlinkCentricSched, size >= 80 ? 1 : 0);
  }
}
END_TEST

/* The padding behind an old struct's last member lies where a newer release has a member. */
START_TEST(padding_is_not_a_member)
{
  ncclConfig_t user = NCCL_CONFIG_INITIALIZER, config;
  user.size = 48;
  user.version = 21800;
  user.trafficClass = 12345;
  ck_assert_int_eq(tt_config_read(&user, &config), ncclSuccess);
  ck_assert_int_eq(config.trafficClass, NCCL_CONFIG_UNDEF_INT);
}
END_TEST

static void expect_refused(const char *member, const ncclConfig_t *user)
{
  ncclConfig_t config;
  ck_assert_int_eq(tt_config_read(user, &config), ncclInvalidArgument);
  ck_assert_msg(strstr(tt_log_thread_error(), member) != NULL, "\"%s\" does not name %s", tt_log_thread_error(),
                member);
}

START_TEST(wrong_members_are_named)
{
  ncclConfig_t user = NCCL_CONFIG_INITIALIZER;
#define REFUSED(member, value)                                                                                         \
  do {                                                                                                                 \
    ncclConfig_t wrong = user;                                                                                         \
    wrong.member = value;                                                                                              \
    expect_refused(#member, &wrong);                                                                                   \
  } while (0)
  REFUSED(size, 0);
  REFUSED(size, 23);
  REFUSED(magic, 1);
  REFUSED(blocking, 2);
  REFUSED(cgaClusterSize, -1);
  REFUSED(cgaClusterSize, 9);
  ck_assert_str_eq(tt_log_thread_error(), "config member cgaClusterSize is 9; allowed are 0 to 8");
  REFUSED(minCTAs, 4); /* without maxCTAs */
  REFUSED(maxCTAs, 0);
  REFUSED(splitShare, 2);
  REFUSED(collnetEnable, 7);
  REFUSED(CTAPolicy, 9);
  REFUSED(shrinkShare, -3);
  REFUSED(nvlsCTAs, 0);
  REFUSED(nChannelsPerNetPeer, 65);
  REFUSED(nvlinkCentricSched, 2);
  user.maxCTAs = 2;
  REFUSED(minCTAs, 3);
}
END_TEST

static char told[1024];

static void keep_line(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                      const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)func;
  size_t at = strlen(told);
  if (level == TT_LOG_INFO) snprintf(told + at, sizeof told - at, "%s\n", text);
}

static void open_and_close(const ncclConfig_t *user)
{
  ncclComm_t comm;
  ncclUniqueId id;
  told[0] = 0;
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclCommInitRankConfig(&comm, 1, id, 0, (ncclConfig_t *)user), ncclSuccess);
  ck_assert_int_eq(ncclCommDestroy(comm), ncclSuccess);
}

/* Who asks the host device for what it does not know is told so, and nobody else. */
START_TEST(members_without_effect)
{
  ncclConfig_t user = NCCL_CONFIG_INITIALIZER;
  setenv("NCCL_DEBUG", "INFO", 1);
  tt_param_reset();
  tt_log_reset();
  tt_log_redirect(keep_line);
  user.cgaClusterSize = user.nvlinkCentricSched = 0;
  open_and_close(NULL);
  ck_assert_msg(strstr(told, "no effect") == NULL, "%s", told);
  open_and_close(&user);
  ck_assert_msg(strstr(told, "no effect") == NULL, "%s", told);
  user.cgaClusterSize = 2;
  open_and_close(&user);
  ck_assert_msg(strstr(told, "cgaClusterSize (NCCL_CGA_CLUSTER_SIZE) is 2: it has no effect on the host device"), "%s",
                told);
  ck_assert_ptr_null(strstr(told, "nvlinkCentricSched"));
  user.nvlinkCentricSched = 1;
  open_and_close(&user);
  ck_assert_msg(strstr(told, "nvlinkCentricSched (NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE) is 1: it has no effect on "),
                "%s", told);
  tt_log_redirect(NULL);
}
END_TEST

/* Variables have the last word, where they are set. */
START_TEST(hints)
{
  ncclConfig_t user = NCCL_CONFIG_INITIALIZER, config;
  ck_assert_int_eq(tt_config_read(&user, &config), ncclSuccess);
  ck_assert(config.cgaClusterSize == 0 && config.nvlinkCentricSched == 0);
  user.cgaClusterSize = 8;
  user.nvlinkCentricSched = 1;
  ck_assert_int_eq(tt_config_read(&user, &config), ncclSuccess);
  ck_assert(config.cgaClusterSize == 8 && config.nvlinkCentricSched == 1);
  setenv("NCCL_CGA_CLUSTER_SIZE", "4", 1);
  setenv("NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE", "0", 1);
  tt_param_reset();
  ck_assert_int_eq(tt_config_read(&user, &config), ncclSuccess);
  ck_assert(config.cgaClusterSize == 4 && config.nvlinkCentricSched == 0);
  ck_assert_int_eq(tt_config_read(NULL, &config), ncclSuccess);
  ck_assert_int_eq(config.cgaClusterSize, 4);
}
END_TEST

/* What the settings of GPUs' ways do not allow is an error before anything is made, which names the variable, its
 * value, and what it may be. */
START_TEST(wrong_variables_are_named)
{
  static const char *const names[] = {"NCCL_P2P_LEVEL",
                                      "NCCL_P2P_READ_ENABLE",
                                      "NCCL_P2P_DIRECT_DISABLE",
                                      "NCCL_P2P_USE_CUDA_MEMCPY",
                                      "NCCL_CUMEM_ENABLE",
                                      "NCCL_GRAPH_REGISTER",
                                      "NCCL_NVLS_ENABLE",
                                      "NCCL_NET_GDR_LEVEL",
                                      "NCCL_CGA_CLUSTER_SIZE",
                                      "NCCL_MEM_SYNC_DOMAIN",
                                      "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE"};
  static const char *const values[] = {"-3", "maybe", "1 2", "0x", "1.5"};
  for (size_t n = 0; n < sizeof names / sizeof *names; n++)
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
      ncclComm_t comms[2] = {NULL, NULL};
      char said[96];
      setenv(names[n], values[v], 1);
      tt_param_reset();
      ck_assert_msg(ncclCommInitAll(comms, 2, NULL) == ncclInvalidUsage, "%s=%s", names[n], values[v]);
      ck_assert(comms[0] == NULL && comms[1] == NULL);
      snprintf(said, sizeof said, "%s=%s,", names[n], values[v]);
      ck_assert_msg(strstr(ncclGetLastError(NULL), said) != NULL, "\"%s\" does not name %s", ncclGetLastError(NULL),
                    said);
      ck_assert_msg(strstr(ncclGetLastError(NULL), "it must be") != NULL, "\"%s\"", ncclGetLastError(NULL));
      unsetenv(names[n]);
    }
  tt_param_reset();
}
END_TEST

/* The variable, where it is set, has the last word. */
START_TEST(blocking_or_not)
{
  ncclConfig_t user = NCCL_CONFIG_INITIALIZER, config;
  user.blocking = 0;
  ck_assert_int_eq(tt_config_read(&user, &config), ncclSuccess);
  ck_assert_int_eq(config.blocking, 0);
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  tt_param_reset();
  ck_assert_int_eq(tt_config_read(&user, &config), ncclSuccess);
  ck_assert_int_eq(config.blocking, 1);
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  tt_param_reset();
  ck_assert_int_eq(tt_config_read(NULL, &config), ncclSuccess);
  ck_assert_int_eq(config.blocking, 0);
}
END_TEST

Suite *config_suite(void)
{
  Suite *suite = suite_create("config");
  TCase *tests = tcase_create("config");
  tcase_add_test(tests, defaults_without_config);
  tcase_add_test(tests, older_sizes);
  tcase_add_test(tests, every_size);
  tcase_add_test(tests, padding_is_not_a_member);
  tcase_add_test(tests, wrong_members_are_named);
  tcase_add_test(tests, members_without_effect);
  tcase_add_test(tests, hints);
  tcase_add_test(tests, wrong_variables_are_named);
  tcase_add_test(tests, blocking_or_not);
  suite_add_tcase(suite, tests);
  return suite;
}
