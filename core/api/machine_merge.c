/* Network devices that the plugin makes one of, so that a card with two ports is one NIC of twice the speed.
 *
 * Every process of a host asks its own plugin, for the same groups in the same order, and so mostly gets the same
 * numbers; a rank that sends through another names a device to it by number, so that a fused device is only used if all
 * ranks of the host have it under one number. Plugins keep what they made until they are unloaded: what an earlier
 * communicator fused is found by what it is made of. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "api/machine_internal.h"
#include "base/check.h"
#include "base/param.h"
#include "topology/merge.h"

/* Between looking for a fused device and making it. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

bool tt_machine_is_fused(const struct tt_net *net, const ncclNetProperties_v12_t *properties, int dev)
{
  const ncclNetVDeviceProps_v12_t *parts = &properties->vProps;
  if (tt_net_most_fused(net) == 0 || parts->ndevs < 2) return false;
  for (int i = 0; i < parts->ndevs; i++)
    if (parts->devs[i] < 0 || parts->devs[i] >= dev) return false; /* a device that the plugin always had */
  return true;
}

/* Whether it could use the memory of a device such as this rank's. */
static bool reaches_memory(const struct ncclComm *comm, const ncclNetProperties_v12_t *p)
{
  const bool dmabuf = comm->context == NULL ||
                      ((comm->device->features & TT_DEVICE_DMABUF) && tt_param_int(TT_PARAM_NCCL_DMABUF_ENABLE));
  return p->ptrSupport & NCCL_PTR_CUDA || (p->ptrSupport & NCCL_PTR_DMABUF && dmabuf);
}

struct tt_detect_net tt_machine_describe_net(const struct ncclComm *comm, const ncclNetProperties_v12_t *p, int dev)
{
  return (struct tt_detect_net){
      .name = p->name,
      .pci_path = p->pciPath,
      .dev = dev,
      .port = p->port,
      .speed = p->speed,
      .maxconn = p->maxComms,
      .rail = p->railId == NCCL_NET_ID_UNDEF ? -1 : p->railId,
      .plane = p->planeId == NCCL_NET_ID_UNDEF ? -1 : p->planeId,
      .guid = p->guid,
      .latency = p->latency,
      .gdr = reaches_memory(comm, p),
  };
}

/* "0, 1 and 4" */
static const char *members(const struct tt_merge_group *group, char *text, size_t size)
{
  size_t used = 0;
  for (int i = 0; i < group->count && used < size; i++) {
    const char *before = i == 0 ? "" : i + 1 < group->count ? ", " : " and ";
    used += (size_t)snprintf(text + used, size - used, "%s%d", before, group->devs[i]);
  }
  return text;
}

static bool has(const int *devs, int count, int dev)
{
  while (count > 0 && devs[count - 1] != dev) count--;
  return count > 0;
}

static bool is_made_of(const struct tt_merge_group *group, const ncclNetVDeviceProps_v12_t *parts)
{
  if (parts->ndevs != group->count) return false;
  for (int i = 0; i < group->count; i++)
    if (!has(parts->devs, parts->ndevs, group->devs[i])) return false;
  return true;
}

/* The device that was made of a group before; -1: none. */
static ncclResult_t find(struct tt_net *net, const struct tt_merge_group *group, ncclNetProperties_v12_t *p, int *dev)
{
  int ndev;
  TT_TRY(tt_net_devices(net, &ndev));
  for (*dev = ndev - 1; *dev >= 0; --*dev) {
    *p = (ncclNetProperties_v12_t){0};
    TT_TRY(tt_net_get_properties(net, *dev, p));
    if (tt_machine_is_fused(net, p, *dev) && is_made_of(group, &p->vProps)) break;
  }
  return ncclSuccess;
}

/* The error of a plugin that fuses nothing is no error of the communicator's. */
static ncclResult_t make(struct tt_net *net, const struct tt_merge_group *group, ncclNetProperties_v12_t *p, int *dev)
{
  ncclNetVDeviceProps_v12_t parts = {.ndevs = group->count};
  char text[96];
  int made = -1;
  memcpy(parts.devs, group->devs, (size_t)group->count * sizeof(*parts.devs));
  ncclResult_t result = tt_net_make_vdevice(net, &made, &parts);
  if (result != ncclSuccess) {
    TT_WARN("net plugin %s does not fuse its devices %s, which are used one by one. NCCL_NET_MERGE_LEVEL=LOC asks for "
            "no fusing",
            tt_net_name(net), members(group, text, sizeof(text)));
    *dev = -1;
    return ncclSuccess;
  }
  TT_TRY(find(net, group, p, dev));
  if (*dev < 0)
    TT_WARN("net plugin %s says that device %d is made of its devices %s, but lists no device that is: they are used "
            "one by one. Look for a newer release of the plugin",
            tt_net_name(net), made, members(group, text, sizeof(text)));
  return ncclSuccess;
}

static ncclResult_t find_or_make(const struct ncclComm *comm, struct tt_machine_fused *fused)
{
  struct tt_net *net = comm->net;
  ncclNetProperties_v12_t p = {0};
  int dev;
  TT_TRY(find(net, &fused->group, &p, &dev));
  if (dev < 0) TT_TRY(make(net, &fused->group, &p, &dev));
  fused->net.dev = -1;
  if (dev < 0) return ncclSuccess;
  fused->net = tt_machine_describe_net(comm, &p, dev);
  snprintf(fused->name, sizeof(fused->name), "%s", p.name);
  fused->net.name = fused->net.pci_path = NULL; /* no use to other processes */
  return ncclSuccess;
}

ncclResult_t tt_machine_fuse_nets(const struct ncclComm *comm, const struct tt_xml *machine,
                                  const struct tt_detect_net *nets, int nnets, struct tt_machine_fused **fused,
                                  int *count)
{
  const struct tt_merge_rules rules = {.level = tt_param_string(TT_PARAM_NCCL_NET_MERGE_LEVEL),
                                       .force = tt_param_string(TT_PARAM_NCCL_NET_FORCE_MERGE),
                                       .policy = tt_param_string(TT_PARAM_NCCL_NET_MERGE_POLICY),
                                       .most = comm->net != NULL ? tt_net_most_fused(comm->net) : 0};
  struct tt_merge_group *groups;
  int ngroups;
  *fused = NULL;
  *count = 0;
  TT_TRY(tt_merge_check(&rules));
  if (rules.most == 0) {
    if (rules.force != NULL && comm->net != NULL)
      TT_INFO(TT_GRAPH | TT_NET, "network %s cannot fuse devices: NCCL_NET_FORCE_MERGE has no effect",
              tt_net_name(comm->net));
    return ncclSuccess;
  }
  TT_TRY(tt_merge_plan(machine, &rules, nets, nnets, &groups, &ngroups));
  ncclResult_t result = TT_CALLOC(fused, (size_t)ngroups + 1);
  pthread_mutex_lock(&making);
  for (int g = 0; g < ngroups && result == ncclSuccess; g++) {
    (*fused)[g].group = groups[g];
    result = find_or_make(comm, &(*fused)[g]);
    *count = g + 1;
  }
  pthread_mutex_unlock(&making);
  free(groups);
  return result;
}

/* A rank's device of this group. */
static const struct tt_machine_fused *same(const struct tt_machine_fused *list, int count,
                                           const struct tt_merge_group *group)
{
  for (int i = 0; i < count; i++)
    if (memcmp(&list[i].group, group, sizeof(*group)) == 0) return &list[i];
  return NULL;
}

/* The device as all ranks can use it; false if they cannot. */
static bool agree(const struct tt_machine_fused *first, const struct tt_machine_fused *const *all, const int *counts,
                  int nlocal, struct tt_detect_net *net)
{
  *net = first->net;
  for (int r = 1; r < nlocal && net->dev >= 0; r++) {
    const struct tt_machine_fused *its = same(all[r], counts[r], &first->group);
    if (its == NULL || its->net.dev != net->dev) return false;
    net->gdr = net->gdr && its->net.gdr;
  }
  return net->dev >= 0;
}

static ncclResult_t apply(const struct tt_merge_group *group, const struct tt_detect_net *net, struct tt_xml **machine)
{
  struct tt_xml *merged;
  char text[96];
  TT_TRY(tt_merge_apply(*machine, group, net, &merged));
  tt_xml_free(*machine);
  *machine = merged;
  TT_INFO(TT_GRAPH | TT_NET, "network devices %s work as one: device %d, %s, %d Mb/s",
          members(group, text, sizeof(text)), net->dev, net->name, net->speed);
  return ncclSuccess;
}

ncclResult_t tt_machine_apply_fused(const struct tt_machine_fused *const *all, const int *counts, int nlocal, int me,
                                    struct tt_xml **machine)
{
  struct tt_detect_net net;
  char text[96], name[sizeof(all[0]->name)];
  for (int i = 0; i < counts[0]; i++) {
    const struct tt_machine_fused *first = &all[0][i];
    if (!agree(first, all, counts, nlocal, &net)) continue;
    snprintf(name, sizeof(name), "%s", first->name);
    for (char *c = name; *c; c++)
      if (*c < ' ' || *c > '~') *c = '?';
    net.name = name;
    TT_TRY(apply(&first->group, &net, machine));
  }
  for (int i = 0; i < counts[me]; i++) { /* what this rank has in vain */
    const struct tt_machine_fused *mine = &all[me][i], *first = same(all[0], counts[0], &mine->group);
    if (mine->net.dev < 0 || (first != NULL && agree(first, all, counts, nlocal, &net))) continue;
    TT_INFO(TT_GRAPH | TT_NET,
            "network devices %s are used one by one: not all ranks of this host have them fused, as device %d",
            members(&mine->group, text, sizeof(text)), mine->net.dev);
  }
  return ncclSuccess;
}
