/* What a rank tells of itself for detection, and what the ranks of a host see together. */
#include "api/machine_internal.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "device/describe.h"
#include "topology/fuse.h"

/* No rank tells more of its machine than this. */
#define MOST_TEXT ((size_t)16 << 20)

/* The devices that the plugin began with. */
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
    if (!tt_machine_is_fused(comm->net, &p, d)) nets[(*count)++] = tt_machine_describe_net(comm, &p, d);
  }
  *out = nets;
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

/* What a rank tells the others of its host: the network devices that it has fused, and its machine without these, as
 * text behind them. */
struct telling {
  int32_t nfused;
  uint32_t bytes; /* of the text */
};

static ncclResult_t tell(const struct tt_xml *machine, const struct tt_machine_fused *fused, int nfused, char **told,
                         size_t *bytes)
{
  char *text;
  size_t length, head = sizeof(struct telling), list = (size_t)nfused * sizeof(*fused);
  TT_TRY(tt_topology_pack(machine, &text, &length));
  const struct telling telling = {.nfused = nfused, .bytes = (uint32_t)length};
  *bytes = head + list + length;
  ncclResult_t result = TT_CALLOC(told, *bytes);
  if (result == ncclSuccess) {
    memcpy(*told, &telling, head);
    if (nfused > 0) memcpy(*told + head, fused, list);
    memcpy(*told + head + list, text, length);
  }
  free(text);
  return result;
}

/* The text in what a rank told, and a copy of its list. */
static ncclResult_t hear(const unsigned char *told, size_t bytes, int rank, struct tt_machine_fused **fused,
                         int *nfused, const char **text, size_t *length)
{
  struct telling telling = {.nfused = -1};
  if (bytes >= sizeof(telling)) memcpy(&telling, told, sizeof(telling));
  const size_t list = telling.nfused < 0 ? bytes : (size_t)telling.nfused * sizeof(**fused);
  if (sizeof(telling) + list + telling.bytes != bytes)
    return TT_FAIL(ncclInternalError, "rank %d told of its machine in %zu bytes that are no such message", rank, bytes);
  TT_TRY(TT_CALLOC(fused, (size_t)telling.nfused + 1));
  *nfused = telling.nfused;
  if (list > 0) memcpy(*fused, told + sizeof(telling), list);
  *text = (const char *)told + sizeof(telling) + list;
  *length = telling.bytes;
  return ncclSuccess;
}

static ncclResult_t detect(struct ncclComm *comm, struct tt_xml **xml, struct tt_machine_fused **fused, int *nfused)
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
  if (result == ncclSuccess && !comm->machine->detected.nets_stand_in)
    result = tt_machine_fuse_nets(comm, *xml, nets, request.nnets, fused, nfused);
  free(nets);
  return result;
}

static int host_of(const struct tt_peer_info *peer)
{
  return peer->node;
}

static int machine_of(const struct tt_peer_info *peer)
{
  return peer->machine;
}

/* The ranks that share this rank's host, or machine, ascending; *me is its own place among them. */
static ncclResult_t ranks_of(const struct ncclComm *comm, int (*of)(const struct tt_peer_info *), int **out, int *count,
                             int *me)
{
  const struct tt_peer_info *peers = comm->env->peers;
  int *ranks;
  *count = 0;
  TT_TRY(TT_CALLOC(&ranks, (size_t)comm->nranks));
  for (int r = 0; r < comm->nranks; r++) {
    if (of(&peers[r]) != of(&peers[comm->rank])) continue;
    if (r == comm->rank) *me = *count;
    ranks[(*count)++] = r;
  }
  *out = ranks;
  return ncclSuccess;
}

/* What `nlocal` ranks told, put together: their machine, and each one's fused devices. */
struct heard {
  const int *ranks;
  int nlocal, me;
  struct tt_machine_fused **fused;
  int *nfused;
};

static ncclResult_t make_heard(struct heard *heard)
{
  TT_TRY(TT_CALLOC(&heard->fused, (size_t)heard->nlocal));
  return TT_CALLOC(&heard->nfused, (size_t)heard->nlocal);
}

static void free_heard(struct heard *heard)
{
  for (int i = 0; i < heard->nlocal && heard->fused != NULL; i++) free(heard->fused[i]);
  free(heard->fused);
  free(heard->nfused);
}

static ncclResult_t fuse(struct heard *heard, const unsigned char *told, const size_t *offsets, struct tt_xml **machine)
{
  ncclResult_t result;
  struct tt_xml *all = NULL, *one = NULL;
  *machine = NULL;
  TT_TRY_GOTO(tt_xml_create("topology of this host", &all), result, out);
  for (int i = 0; i < heard->nlocal; i++) {
    char source[64];
    const char *text;
    size_t bytes;
    snprintf(source, sizeof(source), "topology of rank %d", heard->ranks[i]);
    TT_TRY_GOTO(hear(told + offsets[i], offsets[i + 1] - offsets[i], heard->ranks[i], &heard->fused[i],
                     &heard->nfused[i], &text, &bytes),
                result, out);
    TT_TRY_GOTO(tt_topology_unpack(text, bytes, source, &one), result, out);
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

/* The dump is the machine as it is, so that it can be read again where devices are fused otherwise. */
static void dump(const struct ncclComm *comm, const struct tt_xml *machine)
{
  const char *path = tt_param_string(TT_PARAM_NCCL_TOPO_DUMP_FILE);
  if (path != NULL && comm->rank == tt_param_int(TT_PARAM_NCCL_TOPO_DUMP_FILE_RANK)) tt_topology_dump(machine, path);
}

/* Devices of a net plugin are numbered by each host. */
static bool several_hosts(const struct ncclComm *comm, const int *ranks, int count)
{
  const struct tt_peer_info *peers = comm->env->peers;
  for (int i = 1; i < count; i++)
    if (peers[ranks[i]].node != peers[ranks[0]].node) return true;
  return false;
}

ncclResult_t tt_machine_see(struct ncclComm *comm, struct tt_xml **out)
{
  ncclResult_t result;
  struct tt_xml *mine = NULL;
  struct tt_machine_fused *fused = NULL;
  struct heard heard = {0};
  char *telling = NULL;
  unsigned char *told = NULL;
  int *ranks = NULL, nfused = 0;
  size_t *offsets = NULL, bytes = 0;
  *out = NULL;
  TT_TRY_GOTO(detect(comm, &mine, &fused, &nfused), result, out);
  TT_TRY_GOTO(tell(mine, fused, nfused, &telling, &bytes), result, out);
  TT_TRY_GOTO(ranks_of(comm, machine_of, &ranks, &heard.nlocal, &heard.me), result, out);
  heard.ranks = ranks;
  TT_TRY_GOTO(make_heard(&heard), result, out);
  TT_TRY_GOTO(TT_CALLOC(&offsets, (size_t)heard.nlocal + 1), result, out);
  TT_TRY_GOTO(tt_bootstrap_gather_sized(comm->bootstrap, ranks, heard.me, heard.nlocal, telling, bytes, MOST_TEXT,
                                        &told, offsets),
              result, out);
  TT_TRY_GOTO(fuse(&heard, told, offsets, out), result, out);
  dump(comm, *out);
  if (several_hosts(comm, ranks, heard.nlocal)) {
    TT_INFO(TT_GRAPH | TT_NET, "network devices are used one by one: the machine has several hosts");
    goto out;
  }
  result = tt_machine_apply_fused((const struct tt_machine_fused *const *)heard.fused, heard.nfused, heard.nlocal,
                                  heard.me, out);
out:
  free_heard(&heard);
  free(offsets);
  free(ranks);
  free(told);
  free(telling);
  free(fused);
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
  TT_TRY_GOTO(ranks_of(comm, host_of, &out->ranks, &out->count, &out->me), result, out);
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
