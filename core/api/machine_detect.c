/* What a rank tells of itself for detection, and what the ranks of a host see together. */
#include "api/machine_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "topology/fuse.h"

/* No rank tells more of its machine than this. */
#define MOST_TEXT ((size_t)16 << 20)

static ncclResult_t describe_nets(const struct ncclComm *comm, struct tt_detect_net **out, int *count)
{
  int ndev = 0;
  struct tt_detect_net *nets;
  *out = NULL;
  *count = 0;
  if (comm->net == NULL) return ncclSuccess;
  TT_TRY(tt_net_devices(comm->net, &ndev));
  TT_TRY(TT_CALLOC(&nets, (size_t)ndev));
  for (int d = 0; d < ndev; d++) {
    ncclNetProperties_v12_t p = {0};
    ncclResult_t result = tt_net_get_properties(comm->net, d, &p);
    if (result != ncclSuccess) {
      free(nets);
      return result;
    }
    nets[d] = (struct tt_detect_net){
        .name = p.name,
        .pci_path = p.pciPath,
        .dev = d,
        .port = p.port,
        .speed = p.speed,
        .maxconn = p.maxComms,
        .rail = p.railId == NCCL_NET_ID_UNDEF ? -1 : p.railId,
        .plane = p.planeId == NCCL_NET_ID_UNDEF ? -1 : p.planeId,
        .guid = p.guid,
        .latency = p.latency,
        .gdr = (p.ptrSupport & (NCCL_PTR_CUDA | NCCL_PTR_DMABUF)) != 0,
    };
  }
  *out = nets;
  *count = ndev;
  return ncclSuccess;
}

/* A rank's device, and what it points to. */
struct device {
  struct tt_detect_gpu gpu;
  struct tt_device_description description;
  struct tt_detect_nvlink links[TT_DEVICE_NEIGHBOURS];
};

/* What a GPU's backend knows of the machine around it. */
static ncclResult_t ask_backend(const struct ncclComm *comm, struct device *device)
{
  static const char *const classes[] = {
      [TT_NEIGHBOUR_DEVICE] = "0x030000", [TT_NEIGHBOUR_SWITCH] = "0x068000", [TT_NEIGHBOUR_CPU] = "0x068001"};
  struct tt_device_description *d = &device->description;
  struct tt_detect_gpu *gpu = &device->gpu;
  if (!(comm->device->features & TT_DEVICE_DESCRIBED)) return ncclSuccess;
  d->size = sizeof(*d);
  TT_TRY(comm->device->describe(comm->device_index, d));
  if (d->pci[0]) gpu->pci = d->pci;
  if (d->known & TT_DESCRIBED_NUMBER) gpu->dev = d->number;
  gpu->sm = d->capability;
  gpu->gdr = d->gpu_direct != 0;
  gpu->generation = (int)d->pcie_generation;
  gpu->width = (int)d->pcie_width;
  gpu->vendor = d->vendor;
  gpu->device = d->device;
  gpu->subsystem_vendor = d->subsystem_vendor;
  gpu->subsystem_device = d->subsystem_device;
  gpu->c2c_links = (int)d->c2c_links;
  gpu->c2c_megabytes = (int)d->c2c_megabytes;
  gpu->nvlinks = device->links;
  for (uint32_t i = 0; i < d->nneighbours && i < TT_DEVICE_NEIGHBOURS; i++) {
    const struct tt_device_neighbour *n = &d->neighbours[i];
    if (n->kind >= TT_COUNT(classes)) continue; /* of a newer backend */
    device->links[gpu->nnvlinks++] = (struct tt_detect_nvlink){
        .target = n->pci[0] ? n->pci : NULL, .tclass = classes[n->kind], .count = (int)n->links};
  }
  return ncclSuccess;
}

static ncclResult_t describe_device(const struct ncclComm *comm, const struct tt_device_properties *properties,
                                    struct device *device)
{
  const struct tt_peer_info *me = &comm->env->peers[comm->rank];
  device->gpu =
      (struct tt_detect_gpu){.rank = comm->rank, .dev = me->device, .gdr = true, .numa = tt_detect_numa_here(NULL)};
  if (comm->context == NULL) return ncclSuccess;
  device->gpu.sm = properties->pci[0] ? properties->capability : 0;
  device->gpu.pci = properties->pci;
  device->gpu.gdr = false;
  return ask_backend(comm, device);
}

static ncclResult_t detect(struct ncclComm *comm, const struct tt_device_properties *properties, struct tt_xml **xml)
{
  struct tt_detect_net *nets;
  struct device device = {0};
  struct tt_detect_request request = {
      .file = tt_param_string(TT_PARAM_NCCL_TOPO_FILE),
      .host_hash = comm->env->peers[comm->env->peers[comm->rank].node].host_hash,
      .gpus = &device.gpu,
      .ngpus = 1,
  };
  TT_TRY(describe_device(comm, properties, &device));
  TT_TRY(describe_nets(comm, &nets, &request.nnets));
  request.nets = nets;
  ncclResult_t result = tt_topology_detect(&request, xml, &comm->machine->detected);
  free(nets);
  return result;
}

/* The ranks of this rank's host, ascending; *me is its own place among them. */
static ncclResult_t local_ranks(const struct ncclComm *comm, int **out, int *count, int *me)
{
  const struct tt_peer_info *peers = comm->env->peers;
  int *ranks;
  *count = 0;
  TT_TRY(TT_CALLOC(&ranks, (size_t)comm->nranks));
  for (int r = 0; r < comm->nranks; r++) {
    if (peers[r].node != peers[comm->rank].node) continue;
    if (r == comm->rank) *me = *count;
    ranks[(*count)++] = r;
  }
  *out = ranks;
  return ncclSuccess;
}

/* One machine of the texts of `nlocal` ranks. */
static ncclResult_t fuse(const int *ranks, int nlocal, const unsigned char *texts, const size_t *offsets,
                         struct tt_xml **machine)
{
  ncclResult_t result;
  struct tt_xml *all = NULL, *one = NULL;
  *machine = NULL;
  TT_TRY_GOTO(tt_xml_create("topology of this host", &all), result, out);
  for (int i = 0; i < nlocal; i++) {
    char source[64];
    snprintf(source, sizeof(source), "topology of rank %d", ranks[i]);
    TT_TRY_GOTO(tt_topology_unpack((const char *)texts + offsets[i], offsets[i + 1] - offsets[i], source, &one), result,
                out);
    TT_TRY_GOTO(tt_topology_fuse(all, one), result, out);
    tt_xml_free(one);
    one = NULL;
  }
  TT_TRY_GOTO(tt_topology_settle(all, machine), result, out);
out:
  tt_xml_free(one);
  tt_xml_free(all);
  return result;
}

ncclResult_t tt_machine_see(struct ncclComm *comm, const struct tt_device_properties *properties, struct tt_xml **out)
{
  ncclResult_t result;
  struct tt_xml *mine = NULL;
  char *text = NULL;
  unsigned char *texts = NULL;
  int *ranks = NULL, nlocal = 0, me = 0;
  size_t *offsets = NULL, bytes = 0;
  *out = NULL;
  TT_TRY_GOTO(detect(comm, properties, &mine), result, out);
  TT_TRY_GOTO(tt_topology_pack(mine, &text, &bytes), result, out);
  TT_TRY_GOTO(local_ranks(comm, &ranks, &nlocal, &me), result, out);
  TT_TRY_GOTO(TT_CALLOC(&offsets, (size_t)nlocal + 1), result, out);
  TT_TRY_GOTO(tt_bootstrap_gather_sized(comm->bootstrap, ranks, me, nlocal, text, bytes, MOST_TEXT, &texts, offsets),
              result, out);
  TT_TRY_GOTO(fuse(ranks, nlocal, texts, offsets, out), result, out);
  if (comm->rank == tt_param_int(TT_PARAM_NCCL_TOPO_DUMP_FILE_RANK) &&
      tt_param_string(TT_PARAM_NCCL_TOPO_DUMP_FILE) != NULL)
    tt_topology_dump(*out, tt_param_string(TT_PARAM_NCCL_TOPO_DUMP_FILE));
out:
  free(offsets);
  free(ranks);
  free(texts);
  free(text);
  tt_xml_free(mine);
  return result;
}
