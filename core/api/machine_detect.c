/* What a rank tells of itself for detection, and what the ranks of a host see together. */
#include "api/machine_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "device/describe.h"
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

/* A device without a context is the host's: one of its kind for each rank. */
static ncclResult_t describe_device(const struct ncclComm *comm, struct tt_device_gpu *device)
{
  const struct tt_peer_info *me = &comm->env->peers[comm->rank];
  const int numa = tt_detect_numa_here(NULL);
  device->gpu = (struct tt_detect_gpu){.rank = comm->rank, .dev = me->device, .gdr = true, .numa = numa};
  if (comm->context == NULL) return ncclSuccess;
  TT_TRY(tt_device_detect(comm->device, comm->device_index, comm->rank, device));
  device->gpu.numa = numa;
  return ncclSuccess;
}

static ncclResult_t detect(struct ncclComm *comm, struct tt_xml **xml)
{
  struct tt_detect_net *nets;
  struct tt_device_gpu device = {0};
  struct tt_detect_request request = {
      .file = tt_param_string(TT_PARAM_NCCL_TOPO_FILE),
      .host_hash = comm->env->peers[comm->env->peers[comm->rank].node].host_hash,
      .gpus = &device.gpu,
      .ngpus = 1,
  };
  TT_TRY(describe_device(comm, &device));
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

ncclResult_t tt_machine_see(struct ncclComm *comm, struct tt_xml **out)
{
  ncclResult_t result;
  struct tt_xml *mine = NULL;
  char *text = NULL;
  unsigned char *texts = NULL;
  int *ranks = NULL, nlocal = 0, me = 0;
  size_t *offsets = NULL, bytes = 0;
  *out = NULL;
  TT_TRY_GOTO(detect(comm, &mine), result, out);
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

ncclResult_t tt_machine_ask_peers(const struct ncclComm *comm, struct tt_machine_peers *out)
{
  ncclResult_t result;
  const struct tt_peer_info *peers = comm->env->peers;
  const char **others = NULL;
  *out = (struct tt_machine_peers){0};
  if (comm->context == NULL || !(comm->device->features & TT_DEVICE_DESCRIBED)) return ncclSuccess;
  TT_TRY_GOTO(local_ranks(comm, &out->ranks, &out->count, &out->me), result, out);
  TT_TRY_GOTO(TT_CALLOC(&others, (size_t)out->count), result, out);
  TT_TRY_GOTO(TT_CALLOC(&out->status, (size_t)out->count * (size_t)out->count), result, out);
  for (int i = 0; i < out->count; i++) others[i] = peers[out->ranks[i]].pci;
  tt_device_peer_row(comm->device, peers[comm->rank].pci, others, out->count, out->status + out->me * out->count);
  result =
      tt_bootstrap_group_all_gather(comm->bootstrap, out->ranks, out->me, out->count, out->status, (size_t)out->count);
out:
  free(others);
  return result;
}

void tt_machine_free_peers(struct tt_machine_peers *peers)
{
  free(peers->ranks);
  free(peers->status);
}
