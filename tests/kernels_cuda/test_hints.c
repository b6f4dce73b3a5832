/* What becomes of the hints that a context is opened with: the attributes of launches, by the size of their grids. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "fake_cuda.h"
#include "fake_hints.h"
#include "kernels/cuda/attributes.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/multicast.h"
#include "kernels/cuda/state.h"

enum { PROCESSORS = 132, WIDEST = TT_CUDA_MAX_CLUSTER };

static struct tt_device_context *context;
static struct tt_device_config config;

static void setup(void)
{
  config = (struct tt_device_config){.size = sizeof(config), .index = 1, .rank = 3, .nranks = 4};
  fake_hints_reset();
  keep_lines();
}

static void open_one(void)
{
  kept_lines[0] = 0;
  ck_assert_int_eq(tt_cuda_open(&config, &context), ncclSuccess);
}

static const cudaLaunchAttribute *find(unsigned grid, int id)
{
  struct tt_cuda_attribute_list *list = tt_cuda_attributes_of(context, grid);
  for (unsigned a = 0; list != NULL && a < list->count; a++)
    if ((int)list->attributes[a].id == id) return &list->attributes[a];
  return NULL;
}

/* 1: none. */
static unsigned cluster_of(unsigned grid)
{
  const cudaLaunchAttribute *dimension = find(grid, cudaLaunchAttributeClusterDimension);
  const cudaLaunchAttribute *policy = find(grid, cudaLaunchAttributeClusterSchedulingPolicyPreference);
  ck_assert((dimension == NULL) == (policy == NULL));
  if (dimension == NULL) return 1;
  ck_assert(dimension->val.clusterDim.y == 1 && dimension->val.clusterDim.z == 1 && dimension->val.clusterDim.x > 1);
  ck_assert_int_eq(policy->val.clusterSchedulingPolicyPreference, cudaClusterSchedulingPolicySpread);
  return dimension->val.clusterDim.x;
}

static bool is_remote(unsigned grid)
{
  const cudaLaunchAttribute *domain = find(grid, cudaLaunchAttributeMemSyncDomain);
  if (domain == NULL) return false;
  ck_assert_int_eq(domain->val.memSyncDomain, cudaLaunchMemSyncDomainRemote);
  return true;
}

static bool has_links(unsigned grid)
{
  const cudaLaunchAttribute *links = find(grid, FAKE_LINKS_ID);
  if (links == NULL) return false;
  ck_assert(fake_links_are_on(links));
  return true;
}

static void expect_line(const char *words)
{
  ck_assert_msg(strstr(kept_lines, words) != NULL, "\"%s\" does not say \"%s\"", kept_lines, words);
}

/* The largest size that divides the grid, and with which all its blocks run at the same time. */
static void expect_clusters(unsigned wanted)
{
  for (unsigned grid = 1; grid <= PROCESSORS + 3; grid++) {
    unsigned size = grid <= PROCESSORS ? wanted : 1;
    while (size > 1 && (grid % size != 0 || (int)grid > fake_hints.at_once[size] / (int)size * (int)size)) size--;
    ck_assert_msg(cluster_of(grid) == TT_MAX(size, 1), "grid %u: %u, not %u", grid, cluster_of(grid), size);
  }
}

START_TEST(nothing_is_asked_for)
{
  for (config.cluster = 0; config.cluster < 2; config.cluster++) {
    open_one();
    ck_assert_ptr_null(context->attributes);
    ck_assert_int_eq(fake_hints.asked, 0);
    ck_assert_str_eq(kept_lines, "");
    tt_cuda_close(context);
  }
}
END_TEST

/* _i: 2 to 8. */
START_TEST(clusters)
{
  config.cluster = (uint32_t)_i;
  open_one();
  expect_clusters((unsigned)_i);
  ck_assert_uint_eq(cluster_of((unsigned)_i), (unsigned)_i);
  ck_assert(!is_remote(2) && !has_links(2));
  expect_line("rank 3: kernels run in clusters of ");
  ck_assert((strstr(kept_lines, "must run all of a kernel") != NULL) == (_i >= 4)); /* 128 of 132, for example */
  tt_cuda_close(context);
}
END_TEST

/* Few run at the same time, whichever kernel it is that does not. */
START_TEST(clusters_do_not_fit)
{
  const void *narrow[] = {NULL, tt_cuda_kernels[11](TT_PROTO_SIMPLE, TT_CUDA_FORMS - 1),
                          tt_cuda_kernels[0](TT_PROTO_LL, 0), tt_cuda_nvls_kernel(ncclBfloat16)};
  config.cluster = 4;
  fake_hints.at_once[4] = 64;
  fake_hints.at_once[3] = -1;
  for (size_t k = 0; k < TT_COUNT(narrow); k++) {
    fake_hints.narrow = narrow[k];
    open_one();
    expect_clusters(4);
    ck_assert_uint_eq(cluster_of(64), 4);
    ck_assert_uint_eq(cluster_of(68), 2);
    ck_assert_uint_eq(cluster_of(3), 1);
    expect_line("GPU 1 runs 64 blocks at a time in clusters of 4, and must run all of a kernel");
    tt_cuda_close(context);
  }
  fake_hints.at_once[4] = fake_hints.at_once[2] = 0;
  open_one();
  ck_assert_ptr_null(context->attributes);
  expect_line("cgaClusterSize (NCCL_CGA_CLUSTER_SIZE) is 4, and has no effect on GPU 1");
  ck_assert_ptr_null(strstr(kept_lines, "kernels run in clusters"));
  tt_cuda_close(context);
}
END_TEST

START_TEST(domains)
{
  config.apart = 1;
  open_one();
  for (unsigned grid = 1; grid <= PROCESSORS; grid++) ck_assert(is_remote(grid) && cluster_of(grid) == 1);
  ck_assert(!has_links(1));
  ck_assert_str_eq(kept_lines, "");
  tt_cuda_close(context);
  config.cluster = 2;
  open_one();
  ck_assert(is_remote(3) && is_remote(4) && cluster_of(3) == 1 && cluster_of(4) == 2);
  tt_cuda_close(context);
}
END_TEST

START_TEST(links)
{
  config.links = 1;
  fake_hints.capability = 100;
  open_one();
  ck_assert(has_links(1) && has_links(PROCESSORS) && !is_remote(1) && cluster_of(2) == 1);
  ck_assert_str_eq(kept_lines, "");
  tt_cuda_close(context);
  config.cluster = WIDEST;
  config.apart = 1; /* all of them */
  open_one();
  ck_assert(has_links(WIDEST) && is_remote(WIDEST) && cluster_of(WIDEST) == WIDEST);
  ck_assert(has_links(1) && is_remote(1) && cluster_of(1) == 1);
  tt_cuda_close(context);
  config.cluster = config.apart = 0;
  fake_hints.driver = 12080;
  open_one();
  ck_assert_ptr_null(context->attributes);
  expect_line(
      "nvlinkCentricSched (NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE) has no effect: the CUDA driver is made for CUDA "
      "12.8, and not 13.0 or later");
  tt_cuda_close(context);
  fake_hints.driver = 13000;
  fake_hints.capability = 90;
  open_one();
  ck_assert_ptr_null(context->attributes);
  expect_line(
      "nvlinkCentricSched (NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE) has no effect on GPU 1, whose compute capability "
      "is 9.0 and not 10.0 or later");
  tt_cuda_close(context);
}
END_TEST

/* Nothing of it is for GPUs before 9.0; only what a user has asked for is worth a line. */
START_TEST(old_gpus)
{
  fake_hints.capability = 89;
  config.apart = 1;
  open_one();
  ck_assert_ptr_null(context->attributes);
  ck_assert_str_eq(kept_lines, "");
  tt_cuda_close(context);
  config.cluster = 4;
  open_one();
  ck_assert_ptr_null(context->attributes);
  ck_assert_int_eq(fake_hints.asked, 0);
  expect_line("cgaClusterSize (NCCL_CGA_CLUSTER_SIZE) has no effect on GPU 1, whose compute capability is 8.9 and not "
              "9.0 or later");
  tt_cuda_close(context);
}
END_TEST

/* Its struct ends where the hints begin, and what lies there means nothing. */
START_TEST(core_without_hints)
{
  memset((char *)&config + offsetof(struct tt_device_config, unused), 0x5a,
         sizeof(config) - offsetof(struct tt_device_config, unused));
  config.size = offsetof(struct tt_device_config, cluster);
  ck_assert_uint_eq(config.size, sizeof(size_t) + 4 * sizeof(int32_t)); /* as it has always been */
  open_one();
  ck_assert_ptr_null(context->attributes);
  tt_cuda_close(context);
}
END_TEST

static bool can_begin_early(int capability, int driver, const char *wanted)
{
  fake_hints.capability = capability;
  fake_hints.driver = driver;
  setenv("TUTTI_PROGRAMMATIC_LAUNCH", wanted, 1);
  tt_param_reset();
  open_one();
  bool can = context->executor->can_begin_early;
  tt_cuda_close(context);
  unsetenv("TUTTI_PROGRAMMATIC_LAUNCH");
  tt_param_reset();
  return can;
}

START_TEST(early_launches)
{
  ck_assert(can_begin_early(90, 12030, "1") && can_begin_early(100, 13000, "1"));
  ck_assert(!can_begin_early(89, 13000, "1"));
  ck_assert(!can_begin_early(90, 12020, "1"));
  ck_assert(!can_begin_early(90, 13000, "0"));
  config.cluster = 2;
  ck_assert(can_begin_early(90, 13000, "1"));
  fake_hints.ptx = 80; /* compiled for an older GPU */
  ck_assert(!can_begin_early(90, 13000, "1"));
}
END_TEST

/* Whichever call fails, nothing is left. */
START_TEST(open_fails)
{
  config.cluster = 4;
  config.links = config.apart = 1;
  for (int call = 1;; call++) {
    fake.fail_at = call;
    ncclResult_t result = tt_cuda_open(&config, &context);
    bool reached = fake.fail_at == 0;
    fake.fail_at = 0;
    if (!reached) break;
    ck_assert_int_eq(result, ncclUnhandledCudaError);
    ck_assert_ptr_null(context);
  }
  ck_assert_uint_eq(cluster_of(4), 4);
  tt_cuda_close(context);
}
END_TEST

void add_hints(Suite *suite);
void add_hints(Suite *suite)
{
  TCase *tc = tcase_create("hints");
  tcase_add_checked_fixture(tc, setup, NULL);
  tcase_add_test(tc, nothing_is_asked_for);
  tcase_add_loop_test(tc, clusters, 2, WIDEST + 1);
  tcase_add_test(tc, clusters_do_not_fit);
  tcase_add_test(tc, domains);
  if (FAKE_LINKS) tcase_add_test(tc, links);
  tcase_add_test(tc, old_gpus);
  tcase_add_test(tc, core_without_hints);
  tcase_add_test(tc, early_launches);
  tcase_add_test(tc, open_fails);
  suite_add_tcase(suite, tc);
}
