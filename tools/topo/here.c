/* This machine's GPUs and NICs as sysfs lists them; devices.c asks a device backend for more. Net plugins know more of
 * NICs, but to look is all that this takes. See here.h. */
#include "here.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "topology/detect_internal.h"

enum { MOST = 512, NAME = 288 };

struct scan {
  const char *sysfs;
  struct tt_detect_gpu gpus[MOST];
  struct tt_detect_net nets[MOST];
  char buses[MOST][TT_DETECT_BUS], names[MOST][NAME], *paths[MOST];
  int ngpus, nnets;
};

static int compare_names(const struct dirent **a, const struct dirent **b)
{
  return strverscmp((*a)->d_name, (*b)->d_name);
}

typedef void visitor(struct scan *s, const char *folder, const char *name);

/* Visits what a folder of sysfs holds, in order. */
static void each(struct scan *s, const char *folder, visitor *visit)
{
  char *path;
  struct dirent **entries = NULL;
  if (asprintf(&path, "%s/%s", s->sysfs, folder) < 0) return;
  int count = scandir(path, &entries, NULL, compare_names);
  for (int i = 0; i < count; i++) {
    if (entries[i]->d_name[0] != '.') visit(s, path, entries[i]->d_name);
    free(entries[i]);
  }
  free(entries);
  free(path);
}

static void visit_pci(struct scan *s, const char *folder, const char *name)
{
  char path[4096], text[64];
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  if (s->ngpus == MOST || !tt_detect_bus(name, s->buses[s->ngpus])) return;
  if (!tt_detect_read(path, "class", text, sizeof(text)) || strncmp(text, "0x03", 4) != 0) return;
  if (!tt_detect_read(path, "vendor", text, sizeof(text)) || strcmp(text, "0x10de") != 0) return;
  int g = s->ngpus++;
  s->gpus[g] = (struct tt_detect_gpu){.rank = g, .dev = g, .gdr = true, .pci = s->buses[g], .numa = -1};
}

static void add_net(struct scan *s, const char *path, const char *name, int port, int speed, uint64_t guid, bool gdr)
{
  char device[4096];
  if (s->nnets == MOST) return;
  int n = s->nnets++;
  snprintf(device, sizeof(device), "%s/device", path);
  snprintf(s->names[n], NAME, "%s", name);
  s->paths[n] = realpath(device, NULL);
  s->nets[n] = (struct tt_detect_net){.name = s->names[n],
                                      .pci_path = s->paths[n],
                                      .dev = n,
                                      .port = port,
                                      .speed = speed,
                                      .rail = -1,
                                      .plane = -1,
                                      .guid = guid,
                                      .gdr = gdr};
}

/* "0002:c903:00a1:b2c3" */
static uint64_t read_guid(const char *path)
{
  char text[64];
  uint64_t guid = 0;
  if (!tt_detect_read(path, "node_guid", text, sizeof(text))) return 0;
  for (char *c = text, *end; *c; c = *end ? end + 1 : end) {
    guid = guid << 16 | (strtoul(c, &end, 16) & 0xffff);
    if (end == c) break;
  }
  return guid;
}

/* Each port of an RDMA device that is up. */
static void visit_rdma(struct scan *s, const char *folder, const char *name)
{
  char path[4096], port_path[4200], text[64], label[NAME];
  int ports = 0;
  bool gdr = tt_detect_read(s->sysfs, "module/nvidia_peermem/refcnt", text, sizeof(text));
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  for (int port = 1; port <= 8; port++) {
    snprintf(port_path, sizeof(port_path), "%s/ports/%d", path, port);
    if (tt_detect_read(port_path, "state", text, sizeof(text)) && !strstr(text, "ACTIVE")) continue;
    if (!tt_detect_read(port_path, "rate", text, sizeof(text))) continue;
    double gigabits = strtod(text, NULL);
    snprintf(label, sizeof(label), ports++ ? "%.250s:%d" : "%.250s", name, port);
    add_net(s, path, label, port, gigabits > 0 && gigabits < 1e6 ? (int)(gigabits * 1000) : 0, read_guid(path), gdr);
  }
}

/* An interface of a card that is no RDMA device too. */
static void visit_interface(struct scan *s, const char *folder, const char *name)
{
  char path[4096], text[64], rdma[4200];
  int speed = 0;
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  snprintf(rdma, sizeof(rdma), "%s/device/infiniband", path);
  DIR *is_rdma = opendir(rdma);
  if (is_rdma) {
    closedir(is_rdma);
    return;
  }
  snprintf(rdma, sizeof(rdma), "%s/device", path);
  char *device = realpath(rdma, NULL);
  if (!device) return;
  free(device);
  if (tt_detect_read(path, "operstate", text, sizeof(text)) && strcmp(text, "down") == 0) return;
  tt_detect_read_int(path, "speed", 1, INT32_MAX, &speed);
  add_net(s, path, name, 0, speed, (uint64_t)s->nnets, false);
}

static void visit_node(struct scan *s, const char *folder, const char *name)
{
  (void)folder;
  int node;
  char extra;
  if (s->ngpus == MOST || sscanf(name, "node%d%c", &node, &extra) != 1) return;
  int g = s->ngpus++;
  s->gpus[g] = (struct tt_detect_gpu){.rank = g, .dev = g, .numa = node};
}

/* Whether a folder looks like sysfs. The system's own is not asked, since a container may hide it. */
static bool is_copy(const char *sysfs)
{
  char path[PATH_MAX];
  snprintf(path, sizeof(path), "%s/bus/pci", sysfs);
  if (access(path, F_OK) == 0) return true;
  snprintf(path, sizeof(path), "%s/devices", sysfs);
  return access(path, F_OK) == 0;
}

ncclResult_t topo_detect(const char *sysfs, struct tt_xml **xml)
{
  ncclResult_t result;
  struct scan *s;
  if (strcmp(sysfs, "/sys") != 0 && !is_copy(sysfs))
    return TT_FAIL(ncclInvalidArgument, "--sysfs %s: neither bus/pci nor devices is there; name a copy of /sys", sysfs);
  TT_TRY(TT_CALLOC(&s, 1));
  s->sysfs = sysfs;
  each(s, "bus/pci/devices", visit_pci);
  if (s->ngpus > 0) {
    topo_ask_devices(sysfs, s->gpus, s->ngpus);
  } else {
    fputs("tutti-topo: sysfs lists no NVIDIA GPU; each NUMA node is shown with one rank of the host device\n", stderr);
    each(s, "devices/system/node", visit_node);
    if (s->ngpus == 0) s->gpus[s->ngpus++] = (struct tt_detect_gpu){.numa = -1};
  }
  each(s, "class/infiniband", visit_rdma);
  each(s, "class/net", visit_interface);
  struct tt_detect_request request = {.sysfs = sysfs,
                                      .host_hash = tt_host_hash(),
                                      .gpus = s->gpus,
                                      .ngpus = s->ngpus,
                                      .nets = s->nets,
                                      .nnets = s->nnets};
  result = tt_topology_detect(&request, xml, NULL);
  for (int n = 0; n < s->nnets; n++) free(s->paths[n]);
  free(s);
  return result;
}
