/* What the CUDA backend tells of machines, with a CUDA and an NVML made for the test (tests/fakes/nvml). Each test is a
 * process of its own, since what was found out is kept. */
#include <check.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/check.h"
#include "kernels/cuda/describe.h"
#include "kernels/cuda/driver.h"

const char *test_nvml = NVML_NEW, *test_sysfs = "/nowhere";

/* ---- CUDA: the GPUs that this process sees ---- */

static struct {
  const char *pci, *name;
  int sm;
} seen[8];
static int nseen, no_attribute;

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int index)
{
  if (index < 0 || index >= nseen) return cudaErrorInvalidDevice;
  memset(properties, 0, sizeof(*properties));
  snprintf(properties->name, sizeof(properties->name), "%s", seen[index].name);
  properties->major = seen[index].sm / 10;
  properties->minor = seen[index].sm % 10;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *pci, int size, int index)
{
  snprintf(pci, (size_t)size, "%s", seen[index].pci);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int index)
{
  (void)index;
  *value = attribute == cudaDevAttrGPUDirectRDMASupported;
  return no_attribute ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
  return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
  return error == cudaErrorInvalidDevice ? "invalid device ordinal" : "?";
}

const char *cudaGetErrorName(cudaError_t error)
{
  return cudaGetErrorString(error);
}

const struct tt_cuda_driver *tt_cuda_driver(void)
{
  abort(); /* nothing here has a use for it */
}

/* ---- Around the tests ---- */

static char warned[4000], told[4000];

static void keep(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                 const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)func;
  char *to = level == TT_LOG_WARN ? warned : told;
  size_t length = strlen(to);
  snprintf(to + length, sizeof(warned) - length, "%s\n", text);
}

static void begin(const char *machine)
{
  setenv("FAKE_NVML", machine, 1);
  tt_log_redirect(keep);
  nseen = 0;
}

static void see(const char *pci, int sm, const char *name)
{
  seen[nseen].pci = pci;
  seen[nseen].sm = sm;
  seen[nseen++].name = name;
}

static struct tt_device_description describe(int index)
{
  struct tt_device_description d = {.size = sizeof(d)};
  ck_assert_int_eq(tt_cuda_describe(index, &d), ncclSuccess);
  ck_assert_uint_eq(d.size, sizeof(d));
  return d;
}

static void warns(const char *part)
{
  ck_assert_msg(strstr(warned, part) != NULL, "\"%s\" lacks \"%s\"", warned, part);
}

static void neighbour(const struct tt_device_description *d, uint32_t i, const char *pci, uint32_t kind, uint32_t links)
{
  ck_assert_uint_lt(i, d->nneighbours);
  ck_assert_str_eq(d->neighbours[i].pci, pci);
  ck_assert_uint_eq(d->neighbours[i].kind, kind);
  ck_assert_uint_eq(d->neighbours[i].links, links);
}

#define HGX(n) "0000:" n ":00.0 sm=90 links=ssssssssssssssssss pcie=4:8:5:16 fabric=3:7:0:0"

/* ---- Machines ---- */

START_TEST(hgx)
{
  begin(HGX("1b") ";" HGX("43") ";" HGX("52") ";" HGX("61"));
  see("0000:52:00.0", 90, "NVIDIA H100"); /* CUDA_VISIBLE_DEVICES has another order */
  struct tt_device_description d = describe(0);
  ck_assert_uint_eq(d.known, TT_DESCRIBED_NUMBER | TT_DESCRIBED_GPU_DIRECT | TT_DESCRIBED_IDS | TT_DESCRIBED_PCIE |
                                 TT_DESCRIBED_NEIGHBOURS | TT_DESCRIBED_C2C | TT_DESCRIBED_FABRIC);
  ck_assert_int_eq(d.capability, 90);
  ck_assert_str_eq(d.pci, "0000:52:00.0");
  ck_assert_int_eq(d.number, 2);
  ck_assert_int_eq(d.part, -1);
  ck_assert_uint_eq(d.gpu_direct, 1);
  ck_assert_uint_eq(d.vendor, 0x10de);
  ck_assert_uint_eq(d.device, 0x2330);
  ck_assert_uint_eq(d.subsystem_vendor, 0x10de);
  ck_assert_uint_eq(d.subsystem_device, 0x16c1);
  ck_assert_uint_eq(d.pcie_generation, 4);
  ck_assert_uint_eq(d.pcie_width, 8);
  ck_assert_uint_eq(d.pcie_most_generation, 5);
  ck_assert_uint_eq(d.pcie_most_width, 16);
  ck_assert_uint_eq(d.nneighbours, 1);
  neighbour(&d, 0, "0000:c4:00.0", TT_NEIGHBOUR_SWITCH, 18);
  ck_assert_uint_eq(d.c2c_links, 0);
  ck_assert_uint_eq(d.fabric_state, TT_FABRIC_COMPLETED);
  ck_assert_uint_eq(d.fabric_clique, 7);
  ck_assert_uint_eq(d.fabric_cluster[15], 0x11);
  ck_assert(tt_cuda_in_fabric(0));
  ck_assert_str_eq(warned, "");
}
END_TEST

/* GPUs that are linked to each other; some links double. The type of a remote end is known, or only its handle, or only
 * its class. */
START_TEST(hybrid_cube)
{
  static const char *const without[] = {"", "nvmlDeviceGetNvLinkRemoteDeviceType"};
  setenv("FAKE_NVML_WITHOUT", without[_i], 1);
  begin("0000:06:00.0 sm=70 links=112334;0000:07:00.0 sm=70 links=002334;0000:0a:00.0 sm=70;0000:0b:00.0 sm=70;"
        "0000:85:00.0 sm=70");
  see("0000:06:00.0", 70, "Tesla V100");
  struct tt_device_description d = describe(0);
  ck_assert_uint_eq(d.nneighbours, 4);
  neighbour(&d, 0, "0000:07:00.0", TT_NEIGHBOUR_DEVICE, 2);
  neighbour(&d, 1, "0000:0a:00.0", TT_NEIGHBOUR_DEVICE, 1);
  neighbour(&d, 2, "0000:0b:00.0", TT_NEIGHBOUR_DEVICE, 2);
  neighbour(&d, 3, "0000:85:00.0", TT_NEIGHBOUR_DEVICE, 1);
  ck_assert_uint_eq(d.known & TT_DESCRIBED_FABRIC, TT_DESCRIBED_FABRIC);
  ck_assert_uint_eq(d.fabric_state, TT_FABRIC_NONE);
  ck_assert_uint_eq(d.known & TT_DESCRIBED_PCIE, 0); /* this one does not tell */
  ck_assert_str_eq(warned, "");
}
END_TEST

static void write_class(const char *root, const char *pci, const char *class)
{
  char path[200];
  static const char *const folders[] = {"/bus", "/bus/pci", "/bus/pci/devices"};
  mkdir(root, 0700);
  for (size_t i = 0; i < TT_COUNT(folders); i++) {
    snprintf(path, sizeof(path), "%s%s", root, folders[i]);
    mkdir(path, 0700);
  }
  snprintf(path, sizeof(path), "%s/bus/pci/devices/%s", root, pci);
  ck_assert_int_eq(mkdir(path, 0700), 0);
  snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/class", root, pci);
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  fprintf(file, "%s\n", class);
  fclose(file);
}

/* Neighbours that NVML does not know in this container: the kernel has their class. */
START_TEST(by_class)
{
  char root[] = "/tmp/tutti-test-sysfs-XXXXXX", remove[64];
  ck_assert_ptr_nonnull(mkdtemp(root));
  write_class(root, "0004:04:01.0", "0x068001");
  write_class(root, "0000:0a:00.0", "0x030200");
  test_sysfs = root;
  setenv("FAKE_NVML_WITHOUT", "nvmlDeviceGetNvLinkRemoteDeviceType", 1);
  begin("0000:06:00.0 sm=70 links=cccss1;0000:0a:00.0 sm=70 lost");
  see("0000:06:00.0", 70, "Tesla V100");
  struct tt_device_description d = describe(0);
  snprintf(remove, sizeof(remove), "rm -r %s", root);
  ck_assert_int_eq(system(remove), 0);
  ck_assert_uint_eq(d.nneighbours, 3);
  neighbour(&d, 0, "0004:04:01.0", TT_NEIGHBOUR_CPU, 3);
  neighbour(&d, 1, "0000:c4:00.0", TT_NEIGHBOUR_SWITCH, 2); /* no such file: what else has NVLinks */
  neighbour(&d, 2, "0000:0a:00.0", TT_NEIGHBOUR_DEVICE, 1);
}
END_TEST

/* In a virtual machine switches have no bus id, or nonsense. */
START_TEST(hidden)
{
  begin("0000:0b:00.0 sm=90 links=ghhhhhhhhhhhhhhhhh");
  see("0000:0B:00.0", 90, "NVIDIA H100");
  struct tt_device_description d = describe(0);
  ck_assert_str_eq(d.pci, "0000:0b:00.0");
  ck_assert_uint_eq(d.nneighbours, 1);
  neighbour(&d, 0, "", TT_NEIGHBOUR_SWITCH, 18);
  ck_assert_str_eq(warned, "");
}
END_TEST

#define GB300(n, links, more) "0008:" n ":00.0 sm=103 ids=31c210de links=" links " c2c=44712:" more
#define ALL "hhhhhhhhhhhhhhhhhh"

START_TEST(grace)
{
  begin(GB300("01", ALL, "aaaaa fabric=3:32766:0:2") ";" GB300("02", ALL, "aaaai"));
  see("0008:01:00.0", 103, "NVIDIA GB300");
  see("0008:02:00.0", 103, "NVIDIA GB300");
  struct tt_device_description d = describe(0);
  ck_assert_uint_eq(d.c2c_links, 5);
  ck_assert_uint_eq(d.c2c_megabytes, 44712);
  ck_assert_uint_eq(d.fabric_clique, 32766);
  ck_assert_uint_eq(d.fabric_health, 2);
  ck_assert_str_eq(warned, "");
  d = describe(1);
  ck_assert_uint_eq(d.c2c_links, 4);
  warns("GPU 1 (0008:02:00.0, NVIDIA GB300): only 4 of its 5 chip-to-chip links");
}
END_TEST

/* One of several equal GPUs has lost its links, in every way in which that may look. */
START_TEST(lost_links)
{
  static const struct {
    const char *links, *says;
    uint32_t left;
  } cases[] = {{"iiiiiiiiiiiiiiiiii", "has 0 of 18 NVLinks that can be used, and another GPU of its kind", 0},
               {"iiiiiiiiiiiiiiiiii", "links 0-17 are inactive", 0},
               {"eeeeeeeeeeeeeeeeee", "links 0-17 are in a state that cannot be read (GPU is lost)", 0},
               {"pppppppppppppppppp", "links 0-17 are not made for peers", 0},
               {"rrrrrrrrrrrrrrrrrr", "links 0-17 are active, with an other end that cannot be read (GPU is lost)", 0},
               {"xxxxxxxxxxxxxxxxxx", "links 0-17 are not told of (GPU is lost)", 0},
               {"hihhihihhhhhhhhhhr", "links 1, 4, 6 are inactive; link 17 is active, with", 14},
               {"hhhhhhhhhhhhhhhhii", "has 16 of 18 NVLinks that can be used, and another GPU of its kind", 16}};
  char machine[400];
  snprintf(machine, sizeof(machine), GB300("01", ALL, "aaaaa") ";" GB300("02", "%s", "aaaaa"), cases[_i].links);
  begin(machine);
  see("0008:01:00.0", 103, "NVIDIA GB300");
  see("0008:02:00.0", 103, "NVIDIA GB300");
  describe(0);
  ck_assert_str_eq(warned, "");
  struct tt_device_description d = describe(1);
  ck_assert_uint_eq(d.known & TT_DESCRIBED_NEIGHBOURS, TT_DESCRIBED_NEIGHBOURS);
  ck_assert_uint_eq(d.nneighbours, cases[_i].left > 0);
  if (cases[_i].left > 0) ck_assert_uint_eq(d.neighbours[0].links, cases[_i].left);
  warns("GPU 1 (0008:02:00.0, NVIDIA GB300)");
  warns(cases[_i].says);
  warned[0] = '\0';
  describe(1);
  ck_assert_str_eq(warned, ""); /* said once */
}
END_TEST

/* Links that are inactive on all GPUs of a kind are how the machine is; a GPU of another kind says nothing of it. */
START_TEST(not_lost)
{
  begin("0000:01:00.0 sm=80 ids=20f510de links=iiiiiiiiiiii;0000:02:00.0 sm=80 ids=20f510de links=iiiiiiiiiiii;"
        "0000:03:00.0 sm=80 ids=20b210de links=ssssssssssss;0000:04:00.0 sm=89 ids=26b910de;"
        "0000:05:00.0 sm=80 ids=20f510de links=iiiiiiiiiii3");
  see("0000:01:00.0", 80, "A100 PCIe");
  see("0000:04:00.0", 89, "L40S");
  unsetenv("FAKE_NVML_WITHOUT");
  struct tt_device_description d = describe(1);
  ck_assert_uint_eq(d.nneighbours, 0);
  ck_assert_str_eq(warned, "");
  ck_assert_str_eq(told, ""); /* a GPU without NVLinks is no news */
  describe(0);
  warns("has 0 of 12 NVLinks that can be used, and another GPU of its kind in this machine has 1");
}
END_TEST

START_TEST(alone)
{
  begin("0000:01:00.0 sm=90 links=iiiiiiiiiiiiiiiiii;0000:02:00.0 sm=90 ids=1 links=ssssssssssssssssss;"
        "0000:03:00.0 sm=90 ids=2 links=sssssssssssssssssr");
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "GRAPH", 1);
  see("0000:01:00.0", 90, "H100 PCIe");
  see("0000:03:00.0", 90, "H100");
  describe(0);
  ck_assert_str_eq(warned, "");
  ck_assert_msg(strstr(told, "uses 0 of 18 NVLinks: links 0-17 are inactive") != NULL, "%s", told);
  describe(1);
  warns("tells too little to use them: link 17 is active, with an other end that cannot be read");
}
END_TEST

/* ---- NVML that says little ---- */

START_TEST(without_nvml)
{
  begin("");
  if (_i == 0) test_nvml = "/nowhere/libnvidia-ml.so.1";
  if (_i == 1) setenv("FAKE_NVML_INIT", "9", 1);
  if (_i == 2) test_nvml = "libc.so.6"; /* some library */
  see("0000:1b:00.0", 90, "NVIDIA H100");
  see("0000:1c:00.0", 90, "NVIDIA H100");
  struct tt_device_description d = describe(0);
  ck_assert_uint_eq(d.known, TT_DESCRIBED_GPU_DIRECT);
  ck_assert_int_eq(d.capability, 90);
  ck_assert_str_eq(d.pci, "0000:1b:00.0");
  warns("NVML cannot be used");
  warns(_i == 0 ? "cannot open shared object" : _i == 1 ? "cannot start: no driver" : "lacks functions");
  warned[0] = '\0';
  describe(1);
  struct tt_device_peer peer = {.size = sizeof(peer)};
  ck_assert_int_eq(tt_cuda_peer_status("0000:1b:00.0", "0000:1c:00.0", &peer), ncclSuccess);
  ck_assert_uint_eq(peer.read, TT_PEER_STATUS_UNKNOWN);
  ck_assert_uint_eq(peer.write, TT_PEER_STATUS_UNKNOWN);
  ck_assert_str_eq(warned, ""); /* said once */
}
END_TEST

START_TEST(old_nvml)
{
  test_nvml = NVML_OLD;
  begin(HGX("1b") ";" HGX("43"));
  see("0000:1b:00.0", 90, "NVIDIA H100");
  struct tt_device_description d = describe(0);
  ck_assert_uint_eq(d.known, TT_DESCRIBED_GPU_DIRECT);
  struct tt_device_peer peer = {.size = sizeof(peer)};
  ck_assert_int_eq(tt_cuda_peer_status("0000:1b:00.0", "0000:43:00.0", &peer), ncclSuccess);
  ck_assert_uint_eq(peer.read, TT_PEER_STATUS_UNKNOWN);
  ck_assert_str_eq(warned, "");
}
END_TEST

/* Whichever function is missing, it costs what it tells and nothing else. */
START_TEST(one_missing)
{
  static const struct {
    const char *function;
    uint32_t lost;
  } cases[] = {{"nvmlDeviceGetIndex", TT_DESCRIBED_NUMBER},
               {"nvmlDeviceGetPciInfo_v3", TT_DESCRIBED_IDS},
               {"nvmlDeviceGetCurrPcieLinkGeneration", TT_DESCRIBED_PCIE},
               {"nvmlDeviceGetCurrPcieLinkWidth", TT_DESCRIBED_PCIE},
               {"nvmlDeviceGetMaxPcieLinkGeneration", 0},
               {"nvmlDeviceGetMaxPcieLinkWidth", 0},
               {"nvmlDeviceGetNvLinkCapability", 0},
               {"nvmlDeviceGetNvLinkState", 0},
               {"nvmlDeviceGetNvLinkRemotePciInfo", 0},
               {"nvmlDeviceGetNvLinkRemoteDeviceType", 0},
               {"nvmlDeviceGetFieldValues", TT_DESCRIBED_C2C},
               {"nvmlDeviceGetGpuFabricInfoV", TT_DESCRIBED_FABRIC}};
  const uint32_t all = 127;
  setenv("FAKE_NVML_WITHOUT", cases[_i].function, 1);
  begin(HGX("1b"));
  see("0000:1b:00.0", 90, "NVIDIA H100");
  struct tt_device_description d = describe(0);
  ck_assert_uint_eq(d.known, all & ~cases[_i].lost);
}
END_TEST

START_TEST(lost_gpu)
{
  begin(HGX("1b") " lost");
  see("0000:1b:00.0", 90, "NVIDIA H100");
  no_attribute = 1;
  struct tt_device_description d = describe(0);
  ck_assert_uint_eq(d.known, 0);
  warns("GPU 0 (0000:1b:00.0, NVIDIA H100) is not known to NVML (GPU is lost)");
  ck_assert_int_eq(tt_cuda_describe(1, &d), ncclUnhandledCudaError);
  ck_assert_int_eq(tt_cuda_describe(-1, &d), ncclUnhandledCudaError);
}
END_TEST

/* ---- Fabrics ---- */

START_TEST(fabric)
{
  begin("0000:01:00.0 sm=100 links=ssssssssssssssssss fabric=2:5:0:0;"
        "0000:02:00.0 sm=100 links=ssssssssssssssssss fabric=3:5:15:0;"
        "0000:03:00.0 sm=100 links=ssssssssssssssssss fabric=3:5:0:1;"
        "0000:04:00.0 sm=100 links=ssssssssssssssssss");
  for (int i = 0; i < 4; i++) {
    static const char *const pci[] = {"0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"};
    see(pci[i], 100, "NVIDIA B200");
  }
  struct tt_device_description d = describe(0);
  ck_assert_uint_eq(d.fabric_state, TT_FABRIC_IN_PROGRESS);
  ck_assert_uint_eq(d.fabric_clique, 0);
  ck_assert_uint_eq(d.fabric_cluster[0], 0);
  d = describe(0); /* it has joined meanwhile: that is not kept from before */
  ck_assert_uint_eq(d.fabric_state, TT_FABRIC_COMPLETED);
  ck_assert_uint_eq(d.fabric_clique, 5);
  ck_assert_uint_eq(d.nneighbours, 1);
  ck_assert_str_eq(warned, "");
  d = describe(1);
  ck_assert_int_eq(d.fabric_status, 15);
  ck_assert(!tt_cuda_in_fabric(1));
  warns("GPU 1 (0000:02:00.0, NVIDIA B200) could not join its NVLink fabric: GPU is lost");
  d = describe(2);
  ck_assert_int_eq(d.fabric_status, 0);
  warns("GPU 2 (0000:03:00.0, NVIDIA B200): the NVLink fabric has less bandwidth");
  d = describe(3);
  ck_assert_uint_eq(d.fabric_state, TT_FABRIC_NONE);
  ck_assert(!tt_cuda_in_fabric(3));
  ck_assert_uint_eq(d.known & TT_DESCRIBED_FABRIC, TT_DESCRIBED_FABRIC);
}
END_TEST

/* ---- Peers ---- */

START_TEST(peers)
{
  static const struct {
    const char *to;
    uint32_t read, write;
  } cases[] = {{"0000:01:00.0", TT_PEER_STATUS_GOOD, TT_PEER_STATUS_GOOD}, /* itself */
               {"0000:02:00.0", TT_PEER_STATUS_GOOD, TT_PEER_STATUS_GOOD},
               {"0000:03:00.0", TT_PEER_STATUS_CHIPSET, TT_PEER_STATUS_CHIPSET},
               {"0000:04:00.0", TT_PEER_STATUS_DISABLED, TT_PEER_STATUS_DISABLED},
               {"0000:05:00.0", TT_PEER_STATUS_GOOD, TT_PEER_STATUS_UNSUPPORTED},
               {"0000:06:00.0", TT_PEER_STATUS_UNKNOWN, TT_PEER_STATUS_UNKNOWN},  /* a number to come */
               {"0000:07:00.0", TT_PEER_STATUS_UNKNOWN, TT_PEER_STATUS_UNKNOWN}}; /* none of this container */
  begin("0000:01:00.0 peers=0014w9;0000:02:00.0;0000:03:00.0;0000:04:00.0;0000:05:00.0;0000:06:00.0");
  for (size_t i = 0; i < TT_COUNT(cases); i++) {
    struct tt_device_peer peer = {.size = sizeof(peer), .read = 99};
    ck_assert_int_eq(tt_cuda_peer_status("0000:01:00.0", cases[i].to, &peer), ncclSuccess);
    ck_assert_uint_eq(peer.read, cases[i].read);
    ck_assert_uint_eq(peer.write, cases[i].write);
    ck_assert_uint_eq(peer.size, sizeof(peer));
  }
  struct tt_device_peer peer = {.size = offsetof(struct tt_device_peer, write), .write = 77};
  ck_assert_int_eq(tt_cuda_peer_status("0000:01:00.0", "0000:04:00.0", &peer), ncclSuccess);
  ck_assert_uint_eq(peer.read, TT_PEER_STATUS_DISABLED);
  ck_assert_uint_eq(peer.write, 77); /* beyond what the core has */
  ck_assert_int_eq(tt_cuda_peer_status("GPU-1", "0000:04:00.0", &peer), ncclInvalidArgument);
  ck_assert_int_eq(tt_cuda_peer_status("0000:01:00.0", "", &peer), ncclInvalidArgument);
}
END_TEST

/* Of 17 GPUs there are more pairs than are kept; the answers are right all the same. */
START_TEST(many_peers)
{
  char machine[1000] = "", pci[17][16];
  for (int i = 0; i < 17; i++) {
    snprintf(pci[i], sizeof(pci[i]), "0000:%02x:00.0", (unsigned)i + 1);
    strcat(machine, pci[i]);
    strcat(machine, i % 2 ? " peers=01010101010101010;" : " peers=44444444444444444;");
  }
  begin(machine);
  for (int turn = 0; turn < 2; turn++) {
    for (int a = 0; a < 17; a++) {
      for (int b = 0; b < 17; b++) {
        struct tt_device_peer peer = {.size = sizeof(peer)};
        uint32_t odd = b % 2 ? TT_PEER_STATUS_CHIPSET : TT_PEER_STATUS_GOOD;
        uint32_t expected = a == b ? TT_PEER_STATUS_GOOD : a % 2 ? odd : TT_PEER_STATUS_DISABLED;
        ck_assert_int_eq(tt_cuda_peer_status(pci[a], pci[b], &peer), ncclSuccess);
        ck_assert_uint_eq(peer.read, expected);
        ck_assert_uint_eq(peer.write, expected);
      }
    }
  }
}
END_TEST

/* ---- Sizes, parts, bus ids, threads ---- */

START_TEST(smaller_core)
{
  struct tt_device_description d;
  memset(&d, 0x5a, sizeof(d));
  d.size = offsetof(struct tt_device_description, gpu_direct);
  begin(HGX("1b"));
  see("0000:1b:00.0", 90, "NVIDIA B300 MLOPart 1");
  ck_assert_int_eq(tt_cuda_describe(0, &d), ncclSuccess);
  ck_assert_uint_eq(d.size, offsetof(struct tt_device_description, gpu_direct));
  ck_assert_int_eq(d.part, 1);
  ck_assert_uint_eq(d.gpu_direct, 0x5a5a5a5a);
}
END_TEST

START_TEST(bus_ids)
{
  static const char *const same[][2] = {{"0000:1b:00.0", "0000:1b:00.0"},
                                        {"00000000:1B:00.0", "0000:1b:00.0"},
                                        {"0:1b:0.0", "0000:1b:00.0"},
                                        {"10000:E1:1f.7", "10000:e1:1f.7"},
                                        {"F0000001:00:00.0", "f0000001:00:00.0"}};
  static const char *const none[] = {"",
                                     "fffffff:ffff:ff",
                                     "fffffff:ff:ff.0",
                                     "0000:1b:00",
                                     "0000:1b:00.8",
                                     "0000:1b:20.0",
                                     "0000:1b:00.0 ",
                                     "000000000:1b:00.0",
                                     "0000:1b:00.00",
                                     "\001\377\002",
                                     ":::."};
  char pci[24];
  for (size_t i = 0; i < TT_COUNT(same); i++) {
    ck_assert(tt_cuda_bus_id(same[i][0], pci));
    ck_assert_str_eq(pci, same[i][1]);
  }
  for (size_t i = 0; i < TT_COUNT(none); i++) {
    ck_assert_msg(!tt_cuda_bus_id(none[i], pci), "\"%s\"", none[i]);
    ck_assert_str_eq(pci, "");
  }
}
END_TEST

static void *ask(void *unused)
{
  (void)unused;
  for (int i = 0; i < 8; i++) {
    struct tt_device_description d = describe(i % 2);
    struct tt_device_peer peer = {.size = sizeof(peer)};
    ck_assert_uint_eq(d.neighbours[0].links, 18);
    ck_assert_int_eq(tt_cuda_peer_status("0000:1b:00.0", "0000:43:00.0", &peer), ncclSuccess);
    ck_assert_uint_eq(peer.write, TT_PEER_STATUS_GOOD);
  }
  return NULL;
}

/* The fake ends the program if two threads are in it. */
START_TEST(threads)
{
  pthread_t thread[4];
  begin(HGX("1b") ";" HGX("43"));
  see("0000:1b:00.0", 90, "NVIDIA H100");
  see("0000:43:00.0", 90, "NVIDIA H100");
  for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&thread[i], NULL, ask, NULL), 0);
  for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
  void *nvml = dlopen(NVML_NEW, RTLD_NOW | RTLD_NOLOAD);
  const int *calls = nvml ? (const int *)dlsym(nvml, "fake_nvml_calls") : NULL;
  ck_assert_ptr_nonnull(calls);
  int before = *calls;
  struct tt_device_peer peer = {.size = sizeof(peer)};
  describe(0);
  describe(1);
  ck_assert_int_eq(tt_cuda_peer_status("0000:1B:00.0", "0000:43:00.0", &peer), ncclSuccess);
  ck_assert_int_eq(*calls, before); /* nothing is asked twice */
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("kernels_cuda_describe");
  TCase *tc = tcase_create("describe");
  tcase_set_timeout(tc, 60);
  tcase_add_test(tc, hgx);
  tcase_add_loop_test(tc, hybrid_cube, 0, 2);
  tcase_add_test(tc, by_class);
  tcase_add_test(tc, hidden);
  tcase_add_test(tc, grace);
  tcase_add_loop_test(tc, lost_links, 0, 8);
  tcase_add_test(tc, not_lost);
  tcase_add_test(tc, alone);
  tcase_add_loop_test(tc, without_nvml, 0, 3);
  tcase_add_test(tc, old_nvml);
  tcase_add_loop_test(tc, one_missing, 0, 12);
  tcase_add_test(tc, lost_gpu);
  tcase_add_test(tc, fabric);
  tcase_add_test(tc, peers);
  tcase_add_test(tc, many_peers);
  tcase_add_test(tc, smaller_core);
  tcase_add_test(tc, bus_ids);
  tcase_add_test(tc, threads);
  suite_add_tcase(suite, tc);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
