/* What the device backend tells of this machine's GPUs, against what nvidia-smi tells.
 *
 *   gpu_topology [SYSFS]     prints what there is, and PASS, FAIL and SKIP lines; ends with 0, 1, or 77 without GPUs
 *
 * Each GPU's bus id, number, PCI ids and link against `nvidia-smi --query-gpu`, its NVLinks against `nvidia-smi nvlink
 * -s`, and the paths of each two, in the topology that detection makes of it all, against `nvidia-smi topo -m`. */
#include <ctype.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "base/timer.h"
#include "device/describe.h"
#include "topology/topology.h"

enum { MOST = 16, ALL_KNOWN = 127 };

static struct tt_device_gpu gpus[MOST];
static int ngpus, failures;

__attribute__((format(printf, 2, 3))) static void check(bool good, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  fputs(good ? "PASS topology: " : "FAIL topology: ", stdout);
  vprintf(format, args);
  putchar('\n');
  va_end(args);
  failures += !good;
}

static void find_libraries(void)
{
  char program[PATH_MAX - 16], folder[PATH_MAX], full[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (length <= 0) return;
  program[length] = '\0';
  *strrchr(program, '/') = '\0';
  snprintf(folder, sizeof(folder), "%s/../lib", program);
  if (realpath(folder, full)) tt_host_set_library_dir(full);
}

/* ---- The backend alone ---- */

static void print(int i, double first_ms, double second_ms)
{
  static const char *const kinds[] = {"GPU", "switch", "CPU"};
  const struct tt_device_description *d = &gpus[i].description;
  printf("device %d: %s, number %d, sm %d, part %d, known 0x%x (%.2f ms, then %.3f ms)\n", i, d->pci, d->number,
         d->capability, d->part, d->known, first_ms, second_ms);
  printf("  ids %04x:%04x %04x:%04x, PCI generation %u of %u, %u of %u lanes, GPUDirect %u\n", d->vendor, d->device,
         d->subsystem_vendor, d->subsystem_device, d->pcie_generation, d->pcie_most_generation, d->pcie_width,
         d->pcie_most_width, d->gpu_direct);
  for (uint32_t n = 0; n < d->nneighbours; n++)
    printf("  %u NVLinks to %s %s\n", d->neighbours[n].links, kinds[TT_MIN(d->neighbours[n].kind, 2u)],
           d->neighbours[n].pci[0] ? d->neighbours[n].pci : "(hidden)");
  printf("  %u C2C links of %u MB/s; fabric state %u, status %d, clique %u, health 0x%x\n", d->c2c_links,
         d->c2c_megabytes, d->fabric_state, d->fabric_status, d->fabric_clique, d->fabric_health);
}

static void describe(const struct tt_device *device, int i)
{
  static struct tt_device_gpu again;
  struct tt_device_properties properties = {.size = sizeof(properties)};
  uint64_t start = tt_timer_ns();
  bool good = tt_device_detect(device, i, i, &gpus[i]) == ncclSuccess;
  uint64_t middle = tt_timer_ns();
  good = good && tt_device_detect(device, i, i, &again) == ncclSuccess;
  uint64_t end = tt_timer_ns();
  check(good, "device %d is described", i);
  print(i, (double)(middle - start) / 1e6, (double)(end - middle) / 1e6);
  const struct tt_device_description *d = &gpus[i].description;
  check(memcmp(d, &again.description, sizeof(*d)) == 0, "device %d is the same when asked again", i);
  if (device->properties && device->properties(i, &properties) == ncclSuccess)
    check(strcmp(d->pci, properties.pci) == 0 && d->capability == properties.capability,
          "device %d has the bus id and capability of its properties", i);
}

static void compare_peers(const struct tt_device *device)
{
  for (int a = 0; a < ngpus; a++) {
    for (int b = 0; b < ngpus; b++) {
      int can = 0;
      struct tt_device_peer peer = {.size = sizeof(peer)};
      if (device->peer_status(gpus[a].gpu.pci, gpus[b].gpu.pci, &peer) != ncclSuccess) {
        check(false, "peer status of devices %d and %d", a, b);
        continue;
      }
      if (peer.read == TT_PEER_STATUS_UNKNOWN) printf("SKIP topology: no peer status of devices %d and %d\n", a, b);
      if (peer.read == TT_PEER_STATUS_UNKNOWN || !device->can_map || device->can_map(a, b, &can) != ncclSuccess)
        continue;
      check((peer.read == 0 && peer.write == 0) == (can != 0),
            "devices %d and %d: peer status %u, %u, and they %s map each other", a, b, peer.read, peer.write,
            can ? "can" : "cannot");
    }
  }
}

/* ---- nvidia-smi ---- */

/* Its output without colours; NULL: it fails or is not there. The caller's to free. */
static char *ask(const char *arguments)
{
  char command[256], *text = NULL;
  size_t size = 0;
  snprintf(command, sizeof(command), "nvidia-smi %s 2>/dev/null", arguments);
  FILE *in = popen(command, "r"), *out = open_memstream(&text, &size);
  for (int c, escape = 0; in && out && (c = fgetc(in)) != EOF;) {
    if (c == 033) escape = 1;
    if (!escape) fputc(c, out);
    if (escape && isalpha(c)) escape = 0;
  }
  if (out) fclose(out);
  if (in && pclose(in) == 0) return text;
  free(text);
  return NULL;
}

static int device_at(const char *bus)
{
  unsigned domain, number, slot;
  char pci[32];
  if (sscanf(bus, "%x:%x:%x", &domain, &number, &slot) != 3) return -1;
  snprintf(pci, sizeof(pci), "%04x:%02x:%02x.0", domain, number, slot);
  for (int i = 0; i < ngpus; i++)
    if (strcmp(gpus[i].gpu.pci, pci) == 0) return i;
  return -1;
}

/* Index among nvidia-smi's GPUs of each device; -1: it does not have it. */
static int smi_index[MOST];

static void compare_query(void)
{
  char *text = ask("--query-gpu=index,pci.bus_id,pci.device_id,pci.sub_device_id,pcie.link.gen.max,pcie.link.width.max,"
                   "pcie.link.width.current --format=csv,noheader"),
       *save;
  if (!text) {
    puts("SKIP topology: nvidia-smi is not there, or does not answer");
    return;
  }
  for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    char bus[32];
    int index;
    unsigned ids, subsystem, generation, most_width, width;
    int read = sscanf(line, "%d, %31[^,], %x, %x, %u, %u, %u", &index, bus, &ids, &subsystem, &generation, &most_width,
                      &width);
    int i = read >= 2 ? device_at(bus) : -1;
    if (i < 0) continue; /* not for this process */
    const struct tt_device_description *d = &gpus[i].description;
    smi_index[i] = index;
    if (d->known & TT_DESCRIBED_NUMBER) check(d->number == index, "device %d is nvidia-smi's GPU %d", i, index);
    if (read < 7) {
      printf("SKIP topology: nvidia-smi says little: %s\n", line);
      continue;
    }
    if (d->known & TT_DESCRIBED_IDS)
      check(ids == ((unsigned)d->device << 16 | d->vendor) &&
                subsystem == ((unsigned)d->subsystem_device << 16 | d->subsystem_vendor),
            "device %d: PCI ids 0x%x, 0x%x", i, ids, subsystem);
    if (d->known & TT_DESCRIBED_PCIE)
      check((d->pcie_most_generation == 0 || d->pcie_most_generation == generation) && d->pcie_width == width &&
                (d->pcie_most_width == 0 || d->pcie_most_width == most_width),
            "device %d: PCI generation %u at most, %u of %u lanes", i, generation, width, most_width);
  }
  free(text);
  for (int i = 0; i < ngpus; i++) check(smi_index[i] >= 0, "nvidia-smi has device %d", i);
}

static unsigned links_of(const struct tt_device_description *d)
{
  unsigned links = 0;
  for (uint32_t n = 0; n < d->nneighbours; n++) links += d->neighbours[n].links;
  return links;
}

static void compare_nvlinks(int i)
{
  char arguments[64];
  unsigned active = 0;
  if (smi_index[i] < 0) return;
  snprintf(arguments, sizeof(arguments), "nvlink -s -i %d", smi_index[i]);
  char *text = ask(arguments);
  if (!text) {
    printf("SKIP topology: nvidia-smi does not tell of device %d's NVLinks\n", i);
    return;
  }
  for (const char *at = text; (at = strstr(at, "GB/s")); at++) active++; /* inactive ones have no speed */
  free(text);
  check(links_of(&gpus[i].description) == active, "device %d: %u NVLinks are active, the backend has %u", i, active,
        links_of(&gpus[i].description));
}

/* ---- Paths ---- */

/* The machine that detection makes, with no rule that changes a path. */
static struct tt_topology *detect(const char *sysfs)
{
  struct tt_detect_gpu all[MOST];
  struct tt_xml *xml = NULL;
  struct tt_topology *t = NULL;
  for (int i = 0; i < ngpus; i++) all[i] = gpus[i].gpu;
  const struct tt_detect_request request = {
      .sysfs = sysfs, .default_file = "/nowhere", .host_hash = 1, .gpus = all, .ngpus = ngpus};
  struct tt_topology_rules rules = tt_topology_rules_default();
  rules.peer_level = TT_PATH_SYS;
  rules.net_intra = false;
  bool good = tt_topology_detect(&request, &xml, NULL) == ncclSuccess &&
              tt_topology_create(xml, &rules, 0, 0, &t) == ncclSuccess;
  check(good, "a topology is made of the devices%s%s", good ? "" : ": ", good ? "" : tt_log_thread_error());
  tt_xml_free(xml);
  return t;
}

/* The word of nvidia-smi's table for a path. */
static bool is_same(const struct tt_path *path, const char *word)
{
  if (strncmp(word, "NV", 2) == 0) return path->type == TT_PATH_NVL;
  if (strcmp(word, "NODE") == 0) word = "PHB"; /* bridges of one CPU: one type here */
  if (strcmp(word, "X") == 0) word = "LOC";
  return strcmp(word, tt_topology_name_path((enum tt_path_type)path->type)) == 0;
}

/* A row is a name and a word for each GPU, in the order of nvidia-smi's numbers. The header begins with a blank. */
static void compare_row(const struct tt_topology *t, char *line)
{
  char *words[64], *save;
  int nwords = 0, row = -1;
  if (strncmp(line, "GPU", 3) != 0) return;
  for (char *w = strtok_r(line, " \t", &save); w && nwords < 64; w = strtok_r(NULL, " \t", &save)) words[nwords++] = w;
  if (nwords < 2 || sscanf(words[0], "GPU%d", &row) != 1) return;
  for (int a = 0; a < ngpus; a++) {
    for (int b = 0; smi_index[a] == row && b < ngpus; b++) {
      int from = tt_topology_gpu_of_rank(t, a), to = tt_topology_gpu_of_rank(t, b);
      if (smi_index[b] < 0 || smi_index[b] + 1 >= nwords || from < 0 || to < 0) continue;
      const struct tt_path *path = tt_topology_path_between(t, TT_NODE_GPU, from, TT_NODE_GPU, to);
      check(is_same(path, words[smi_index[b] + 1]), "devices %d and %d: nvidia-smi says %s, the topology %s %.4g", a, b,
            words[smi_index[b] + 1], tt_topology_name_path((enum tt_path_type)path->type), (double)path->bandwidth);
    }
  }
}

static void compare_paths(const char *sysfs)
{
  struct tt_topology *t = detect(sysfs);
  char *text = ask("topo -m"), *save;
  if (!text) puts("SKIP topology: nvidia-smi topo -m does not answer");
  for (char *line = t && text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save))
    compare_row(t, line);
  free(text);
  tt_topology_free(t);
}

int main(int argc, char **argv)
{
  struct tt_device_report report;
  find_libraries();
  if (!tt_device_of_machine(&report) || !(report.device->features & TT_DEVICE_DESCRIBED)) {
    printf("SKIP topology: %s\n", report.device ? "the backend does not describe its devices" : report.reason);
    return 77;
  }
  ngpus = TT_MIN(report.devices, (int)MOST);
  printf("%d devices of %s\n", ngpus, report.path);
  for (int i = 0; i < ngpus; i++) {
    smi_index[i] = -1;
    describe(report.device, i);
    const uint32_t known = gpus[i].description.known;
    if (strcmp(report.device->name, "cuda") == 0) check(known == ALL_KNOWN, "device %d: known is 0x%x", i, known);
  }
  compare_peers(report.device);
  compare_query();
  for (int i = 0; i < ngpus; i++) compare_nvlinks(i);
  compare_paths(argc > 1 ? argv[1] : NULL);
  return failures > 0;
}
