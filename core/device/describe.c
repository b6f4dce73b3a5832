/* See describe.h. */
#include "device/describe.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/check.h"
#include "base/param.h"
#include "plugin/library.h"

/* A link that sleeps is of the first generation. */
enum { ASLEEP = 1 };

ncclResult_t tt_device_describe(const struct tt_device *device, int index, struct tt_device_description *d)
{
  *d = (struct tt_device_description){.size = sizeof(*d), .part = -1};
  if (device->features & TT_DEVICE_DESCRIBED) return device->describe(index, d);
  if (!device->properties) return ncclSuccess;
  struct tt_device_properties properties = {.size = sizeof(properties)};
  TT_TRY(device->properties(index, &properties));
  d->capability = properties.capability;
  snprintf(d->pci, sizeof(d->pci), "%.*s", (int)sizeof(properties.pci), properties.pci);
  return ncclSuccess;
}

static void set_links(struct tt_device_gpu *out)
{
  static const char *const classes[] = {
      [TT_NEIGHBOUR_DEVICE] = "0x030200", [TT_NEIGHBOUR_SWITCH] = "0x068000", [TT_NEIGHBOUR_CPU] = "0x068001"};
  const struct tt_device_description *d = &out->description;
  for (uint32_t i = 0; i < TT_MIN(d->nneighbours, (uint32_t)TT_DEVICE_NEIGHBOURS); i++) {
    const struct tt_device_neighbour *n = &d->neighbours[i];
    if (n->kind >= TT_COUNT(classes) || n->links == 0) continue; /* of a kind that is to come */
    out->nvlinks[out->gpu.nnvlinks++] = (struct tt_detect_nvlink){
        .target = n->pci[0] ? n->pci : NULL, .tclass = classes[n->kind], .count = (int)n->links};
  }
  out->gpu.nvlinks = out->nvlinks;
}

ncclResult_t tt_device_detect(const struct tt_device *device, int index, int rank, struct tt_device_gpu *out)
{
  struct tt_device_description *d = &out->description;
  *out = (struct tt_device_gpu){.gpu.rank = rank};
  TT_TRY(tt_device_describe(device, index, d));
  struct tt_detect_gpu *gpu = &out->gpu;
  gpu->dev = d->known & TT_DESCRIBED_NUMBER ? d->number : index;
  gpu->sm = d->capability;
  gpu->gdr = d->gpu_direct != 0;
  gpu->pci = d->pci;
  gpu->numa = -1;
  gpu->generation = (int)(d->pcie_generation == ASLEEP ? d->pcie_most_generation : d->pcie_generation);
  gpu->width = (int)d->pcie_width;
  gpu->vendor = d->vendor;
  gpu->device = d->device;
  gpu->subsystem_vendor = d->subsystem_vendor;
  gpu->subsystem_device = d->subsystem_device;
  gpu->c2c_links = (int)d->c2c_links;
  gpu->c2c_megabytes = (int)d->c2c_megabytes;
  set_links(out);
  return ncclSuccess;
}

struct tt_fabric tt_device_fabric(const struct tt_device_description *d, uint64_t host)
{
  struct tt_fabric fabric = {.host = host};
  _Static_assert(sizeof(fabric.cluster) == sizeof(d->fabric_cluster), "a cluster is a UUID");
  if (!(d->known & TT_DESCRIBED_FABRIC) || d->fabric_state != TT_FABRIC_COMPLETED) return fabric;
  memcpy(fabric.cluster, d->fabric_cluster, sizeof(fabric.cluster));
  fabric.clique = d->fabric_clique;
  fabric.joined = d->fabric_status == 0;
  return fabric;
}

static bool is_refused(uint32_t status)
{
  return status != TT_PEER_STATUS_GOOD && status != TT_PEER_STATUS_UNKNOWN;
}

void tt_device_peer_row(const struct tt_device *device, const char *own, const char *const *others, int count,
                        uint8_t *status)
{
  memset(status, 0, (size_t)count);
  if (!(device->features & TT_DEVICE_DESCRIBED) || own[0] == '\0') return;
  for (int i = 0; i < count; i++) {
    struct tt_device_peer peer = {.size = sizeof(peer)};
    if (!others[i] || others[i][0] == '\0' || strcmp(own, others[i]) == 0) continue;
    if (device->peer_status(own, others[i], &peer) != ncclSuccess) continue; /* it has said why */
    if (is_refused(peer.read)) status[i] |= TT_PEER_NO_READ;
    if (is_refused(peer.write)) status[i] |= TT_PEER_NO_WRITE;
  }
}

bool tt_device_of_machine(struct tt_device_report *report)
{
  const char *wanted = tt_param_string(TT_PARAM_TUTTI_DEVICE);
  if (!wanted || strcasecmp(wanted, "auto") == 0 || (strchr(wanted, '/') && tt_plugin_secure())) wanted = "cuda";
  if (strcasecmp(wanted, "host") != 0) return tt_device_load(wanted, report);
  *report = (struct tt_device_report){.reason = "TUTTI_DEVICE asks for the host"};
  return false;
}
