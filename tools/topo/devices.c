/* What a device backend knows of this machine's GPUs, beyond sysfs. See here.h. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "device/describe.h"
#include "here.h"

/* GPUs as the backend describes them, and what its driver says of each two, by rank. They last as long as the tool. */
static struct tt_device_gpu *known;
static uint8_t *peers;
static int npeers;

/* What the backend warns of is of this machine, so it is shown whatever the log's level. */
static void show_warnings(enum tt_log_level level, unsigned long subsystems, const char *file, int line,
                          const char *function, const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)function;
  if (level == TT_LOG_WARN) fprintf(stderr, "warning: %s\n", text);
}

/* Device libraries lie beside libtutti, which this program does without: they are looked for from where it lies itself,
 * in a build folder or where it was installed. */
static void find_libraries(void)
{
  static const char *const places[] = {"../" TOPO_LIBRARY_FOLDER, "../lib", "."};
  char program[PATH_MAX], folder[PATH_MAX + 64], full[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (length <= 0) return;
  program[length] = '\0';
  char *slash = strrchr(program, '/');
  if (slash) *slash = '\0';
  for (size_t i = 0; i < TT_COUNT(places); i++) {
    snprintf(folder, sizeof(folder), "%s/%s/tutti", program, places[i]);
    if (access(folder, X_OK) != 0) continue;
    snprintf(folder, sizeof(folder), "%s/%s", program, places[i]);
    if (realpath(folder, full)) tt_host_set_library_dir(full);
    return;
  }
}

/* The device's place among the GPUs of sysfs; -1: it is none of them. */
static int place_of(const struct tt_detect_gpu *gpus, int ngpus, const char *pci)
{
  for (int g = 0; g < ngpus; g++)
    if (pci[0] && strcmp(gpus[g].pci, pci) == 0) return g;
  return -1;
}

static void ask_peers(const struct tt_device *device, const struct tt_detect_gpu *gpus, int ngpus)
{
  const char **buses = calloc((size_t)ngpus, sizeof(*buses));
  peers = calloc((size_t)ngpus, (size_t)ngpus);
  if (buses && peers) {
    npeers = ngpus;
    for (int g = 0; g < ngpus; g++) buses[g] = gpus[g].pci;
    for (int g = 0; g < ngpus; g++)
      tt_device_peer_row(device, buses[g], buses, ngpus, peers + (size_t)g * (size_t)ngpus);
  }
  free(buses);
}

static int describe(const struct tt_device_report *report, struct tt_detect_gpu *gpus, int ngpus)
{
  int described = 0;
  known = calloc((size_t)report->devices, sizeof(*known));
  for (int i = 0; known && i < report->devices; i++) {
    if (tt_device_detect(report->device, i, 0, &known[i]) != ncclSuccess) continue;
    int g = place_of(gpus, ngpus, known[i].gpu.pci);
    if (g < 0) continue;
    known[i].gpu.rank = known[i].gpu.dev = g; /* all of sysfs are numbered, also those that the backend does not see */
    gpus[g] = known[i].gpu;
    described++;
  }
  return described;
}

void topo_ask_devices(const char *sysfs, struct tt_detect_gpu *gpus, int ngpus)
{
  struct tt_device_report report = {.reason =
                                        "--sysfs names another machine, unless TUTTI_DEVICE names a device for it"};
  if (ngpus == 0) return;
  find_libraries();
  tt_log_redirect(show_warnings);
  bool here = strcmp(sysfs, "/sys") == 0 || tt_param_string(TT_PARAM_TUTTI_DEVICE) != NULL;
  int described = here && tt_device_of_machine(&report) ? describe(&report, gpus, ngpus) : 0;
  if (described > 0) {
    ask_peers(report.device, gpus, ngpus);
    fprintf(stderr, "tutti-topo: device %s tells of %d of %d GPUs\n", report.device->name, described, ngpus);
  } else {
    fprintf(stderr, "tutti-topo: sysfs does not tell the GPUs' sm and NVLinks; they are taken for GPUs without (%s)\n",
            report.device ? "none of the device's GPUs is in sysfs" : report.reason);
  }
  tt_log_redirect(NULL);
}

void topo_peer_status(struct tt_topology_rules *rules)
{
  rules->peer_status = peers;
  rules->peer_ranks = npeers;
}
