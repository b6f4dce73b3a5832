/* What backends tell, as detection takes it: backends that know the machine, that know a bus id, and that know nothing.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "device/describe.h"

static struct tt_device_description told;
static ncclResult_t result;
static const char *asked_from[8], *asked_to[8];
static int nasked;

static ncclResult_t describe(int index, struct tt_device_description *out)
{
  ck_assert_int_eq(index, 3);
  ck_assert_uint_eq(out->size, sizeof(*out));
  *out = told;
  return result;
}

/* Of the last digit of `to`: reads, then writes. */
static ncclResult_t peer_status(const char *from, const char *to, struct tt_device_peer *out)
{
  asked_from[nasked] = from;
  asked_to[nasked++] = to;
  ck_assert_uint_eq(out->size, sizeof(*out));
  out->read = (uint32_t)(to[strlen(to) - 2] - '0');
  out->write = (uint32_t)(to[strlen(to) - 1] - '0');
  return out->read == 9 ? ncclInvalidArgument : ncclSuccess;
}

static ncclResult_t properties(int index, struct tt_device_properties *out)
{
  (void)index;
  snprintf(out->pci, sizeof(out->pci), "0000:0a:00.0");
  out->capability = 75;
  return result;
}

static const struct tt_device knows = {
    .size = sizeof(knows), .features = TT_DEVICE_DESCRIBED, .describe = describe, .peer_status = peer_status};

START_TEST(all)
{
  struct tt_device_gpu g;
  told = (struct tt_device_description){.size = sizeof(told),
                                        .known = 127,
                                        .capability = 90,
                                        .pci = "0000:52:00.0",
                                        .number = 2,
                                        .part = -1,
                                        .gpu_direct = 1,
                                        .vendor = 0x10de,
                                        .device = 0x2330,
                                        .subsystem_vendor = 1,
                                        .subsystem_device = 2,
                                        .pcie_generation = 4,
                                        .pcie_width = 8,
                                        .pcie_most_generation = 5,
                                        .pcie_most_width = 16,
                                        .nneighbours = 5,
                                        .neighbours = {{"0000:c4:00.0", TT_NEIGHBOUR_SWITCH, 9},
                                                       {"", TT_NEIGHBOUR_SWITCH, 2},
                                                       {"0000:61:00.0", TT_NEIGHBOUR_DEVICE, 4},
                                                       {"0004:04:01.0", TT_NEIGHBOUR_CPU, 3},
                                                       {"0000:62:00.0", 77, 4}},
                                        .c2c_links = 5,
                                        .c2c_megabytes = 44712};
  ck_assert_int_eq(tt_device_detect(&knows, 3, 11, &g), ncclSuccess);
  ck_assert_int_eq(g.gpu.rank, 11);
  ck_assert_int_eq(g.gpu.dev, 2);
  ck_assert_int_eq(g.gpu.sm, 90);
  ck_assert(g.gpu.gdr);
  ck_assert_str_eq(g.gpu.pci, "0000:52:00.0");
  ck_assert_int_eq(g.gpu.numa, -1);
  ck_assert_int_eq(g.gpu.generation, 4);
  ck_assert_int_eq(g.gpu.width, 8);
  ck_assert_uint_eq(g.gpu.vendor, 0x10de);
  ck_assert_uint_eq(g.gpu.device, 0x2330);
  ck_assert_uint_eq(g.gpu.subsystem_vendor, 1);
  ck_assert_uint_eq(g.gpu.subsystem_device, 2);
  ck_assert_int_eq(g.gpu.c2c_links, 5);
  ck_assert_int_eq(g.gpu.c2c_megabytes, 44712);
  ck_assert_int_eq(g.gpu.nnvlinks, 4);
  static const struct tt_detect_nvlink links[] = {{"0000:c4:00.0", "0x068000", 9},
                                                  {NULL, "0x068000", 2},
                                                  {"0000:61:00.0", "0x030200", 4},
                                                  {"0004:04:01.0", "0x068001", 3}};
  for (int i = 0; i < 4; i++) {
    ck_assert_int_eq(g.gpu.nvlinks[i].count, links[i].count);
    ck_assert_str_eq(g.gpu.nvlinks[i].tclass, links[i].tclass);
    if (links[i].target)
      ck_assert_str_eq(g.gpu.nvlinks[i].target, links[i].target);
    else
      ck_assert_ptr_null(g.gpu.nvlinks[i].target);
  }
  told.pcie_generation = 1; /* the link sleeps */
  told.known &= ~(uint32_t)TT_DESCRIBED_NUMBER;
  ck_assert_int_eq(tt_device_detect(&knows, 3, 11, &g), ncclSuccess);
  ck_assert_int_eq(g.gpu.generation, 5);
  ck_assert_int_eq(g.gpu.dev, 3);
  result = ncclUnhandledCudaError;
  ck_assert_int_eq(tt_device_detect(&knows, 3, 11, &g), ncclUnhandledCudaError);
}
END_TEST

/* What a backend of version 1 tells, which has no describe, and one that has no properties. */
START_TEST(little)
{
  struct tt_device_gpu g;
  const struct tt_device first = {.size = offsetof(struct tt_device, describe), .properties = properties};
  ck_assert_int_eq(tt_device_detect(&first, 1, 0, &g), ncclSuccess);
  ck_assert_int_eq(g.gpu.dev, 1);
  ck_assert_int_eq(g.gpu.sm, 75);
  ck_assert_str_eq(g.gpu.pci, "0000:0a:00.0");
  ck_assert_int_eq(g.gpu.nnvlinks, 0);
  ck_assert_int_eq(g.description.part, -1);
  ck_assert(!g.gpu.gdr);
  result = ncclSystemError;
  ck_assert_int_eq(tt_device_detect(&first, 1, 0, &g), ncclSystemError);
  const struct tt_device host = {.size = sizeof(host)};
  ck_assert_int_eq(tt_device_detect(&host, 4, 5, &g), ncclSuccess);
  ck_assert_str_eq(g.gpu.pci, "");
  ck_assert_int_eq(g.gpu.dev, 4);
  ck_assert_int_eq(g.gpu.sm, 0);
}
END_TEST

START_TEST(fabric)
{
  struct tt_device_description d = {
      .known = TT_DESCRIBED_FABRIC, .fabric_state = TT_FABRIC_COMPLETED, .fabric_clique = 7, .fabric_cluster = {1, 2}};
  struct tt_fabric f = tt_device_fabric(&d, 99);
  ck_assert_uint_eq(f.host, 99);
  ck_assert_uint_eq(f.clique, 7);
  ck_assert_uint_eq(f.joined, 1);
  ck_assert_uint_eq(f.exported, 0);
  ck_assert_mem_eq(f.cluster, d.fabric_cluster, sizeof(f.cluster));
  d.fabric_status = 15; /* in it, but with an error */
  ck_assert_uint_eq(tt_device_fabric(&d, 99).joined, 0);
  d.fabric_status = 0;
  d.fabric_state = TT_FABRIC_IN_PROGRESS;
  ck_assert_uint_eq(tt_device_fabric(&d, 99).joined, 0);
  ck_assert_uint_eq(tt_device_fabric(&d, 99).cluster[0], 0);
  d.fabric_state = TT_FABRIC_COMPLETED;
  d.known = 0;
  ck_assert_uint_eq(tt_device_fabric(&d, 99).joined, 0);
  ck_assert_uint_eq(tt_device_fabric(&d, 99).host, 99);
}
END_TEST

START_TEST(peers)
{
  static const char *const others[] = {"me", NULL, "", "gpu00", "gpu03", "gpu40", "gpu15", "gpu66", "gpu90"};
  static const uint8_t expected[] = {0, 0, 0, 0, TT_PEER_NO_WRITE, TT_PEER_NO_READ, TT_PEER_NO_READ | TT_PEER_NO_WRITE,
                                     0, 0};
  uint8_t status[9];
  memset(status, 0xff, sizeof(status));
  tt_device_peer_row(&knows, "me", others, 9, status);
  ck_assert_mem_eq(status, expected, sizeof(expected));
  ck_assert_int_eq(nasked, 6); /* not of itself, nor of who has no bus id */
  ck_assert_str_eq(asked_from[0], "me");
  ck_assert_str_eq(asked_to[0], "gpu00");
  memset(status, 0xff, sizeof(status));
  const struct tt_device first = {.size = offsetof(struct tt_device, describe)};
  tt_device_peer_row(&first, "me", others, 9, status);
  tt_device_peer_row(&knows, "", others, 9, status);
  ck_assert_mem_eq(status, (uint8_t[9]){0}, 9);
  ck_assert_int_eq(nasked, 6);
}
END_TEST

START_TEST(of_machine)
{
  static const struct {
    const char *folder, *wanted, *name;
  } cases[] = {{WITH, NULL, "cuda"},      {WITH, "auto", "cuda"},     {WITHOUT, NULL, NULL},
               {WITHOUT, "good", "good"}, {WITHOUT, "refuses", NULL}, {WITH, "Host", NULL}};
  struct tt_device_report report;
  tt_host_set_library_dir(cases[_i].folder);
  if (cases[_i].wanted)
    setenv("TUTTI_DEVICE", cases[_i].wanted, 1);
  else
    unsetenv("TUTTI_DEVICE");
  tt_param_reset();
  ck_assert(tt_device_of_machine(&report) == (cases[_i].name != NULL));
  if (cases[_i].name) {
    ck_assert_str_eq(report.device->name, cases[_i].name);
    ck_assert_int_eq(report.devices, 2);
  } else {
    ck_assert_str_ne(report.reason, "");
    ck_assert_ptr_null(report.device);
  }
}
END_TEST

void add_describe(Suite *suite)
{
  TCase *tc = tcase_create("describe");
  tcase_add_test(tc, all);
  tcase_add_test(tc, little);
  tcase_add_test(tc, fabric);
  tcase_add_test(tc, peers);
  tcase_add_loop_test(tc, of_machine, 0, 6);
  suite_add_tcase(suite, tc);
}
