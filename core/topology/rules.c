/* Reads the rules of rules.h from variables. */
#include "topology/rules.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/check.h"
#include "base/text.h"
#include "topology/topology.h"

enum kind { LEVEL, READ, ON, OFF, NETS }; /* ON: 1 sets the member, OFF: 1 clears it */

struct variable {
  const char *name;
  enum kind kind;
  size_t offset;
  const char *meaning;
};

#define AT(member) offsetof(struct tt_topology_rules, member)
static const struct variable variables[] = {
    {"NCCL_P2P_LEVEL", LEVEL, AT(peer_level), "farthest path on which GPUs use each other's memory directly"},
    {"NCCL_P2P_DISABLE", OFF, AT(peers), "1: GPUs never use each other's memory directly"},
    {"NCCL_SHM_DISABLE", OFF, AT(shared_memory), "1: ranks never share memory of the host"},
    {"NCCL_NVB_DISABLE", OFF, AT(relays), "1: no NVLink path leads through another GPU"},
    {"NCCL_NET_DISABLE_INTRA", OFF, AT(net_intra), "1: the network is never preferred between GPUs of a host"},
    {"NCCL_NET_GDR_LEVEL", LEVEL, AT(gpu_direct_level), "farthest path on which NICs use GPUs' memory directly"},
    {"NCCL_NET_GDR_READ", READ, AT(gpu_direct_read),
     "0, 1: whether NICs read GPUs' memory directly; -2: by the machine"},
    {"NCCL_NET_GDR_C2C", ON, AT(gpu_direct_c2c), "0: NICs do not use GPUs' memory across a chip-to-chip link"},
    {"NCCL_PXN_DISABLE", OFF, AT(pxn), "1: no GPU sends through the NIC of another"},
    {"NCCL_PXN_C2C", ON, AT(pxn_c2c), "0: nor where that GPU reaches its NIC across a chip-to-chip link"},
    {"NCCL_NETDEVS_POLICY", NETS, AT(nets_per_gpu), "NICs a GPU uses: AUTO, ALL or MAX:n"},
};

struct tt_topology_rules tt_topology_rules_default(void)
{
  return (struct tt_topology_rules){.peer_level = -1,
                                    .gpu_direct_level = -1,
                                    .gpu_direct_read = -2,
                                    .gpu_direct_c2c = true,
                                    .peers = true,
                                    .shared_memory = true,
                                    .relays = true,
                                    .net_intra = true,
                                    .pxn = true,
                                    .pxn_c2c = true};
}

/* A type's name, or the number that it had when there were six of them. */
static bool read_level(const char *value, int *level)
{
  static const int numbered[] = {TT_PATH_LOC, TT_PATH_PIX, TT_PATH_PXB, TT_PATH_PHB, TT_PATH_SYS, TT_PATH_SYS};
  const char *name = strncasecmp(value, "PATH_", 5) == 0 ? value + 5 : value;
  for (int type = TT_PATH_LOC; type <= TT_PATH_SYS; type++) {
    if (strcasecmp(name, tt_topology_name_path((enum tt_path_type)type)) != 0) continue;
    *level = type;
    return true;
  }
  int64_t number;
  if (!tt_text_int(value, &number) || number < 0) return false;
  *level = numbered[TT_MIN(number, (int64_t)TT_COUNT(numbered) - 1)];
  return true;
}

static bool read_nets(const char *value, int *nets)
{
  int64_t number = 0;
  if (strcasecmp(value, "AUTO") == 0)
    *nets = 0;
  else if (strcasecmp(value, "ALL") == 0)
    *nets = -1;
  else if (strncasecmp(value, "MAX:", 4) == 0 && tt_text_int(value + 4, &number) && number > 0 && number < INT32_MAX)
    *nets = (int)number;
  else
    return false;
  return true;
}

static bool read_number(const char *value, int64_t least, int64_t *number)
{
  return tt_text_int(value, number) && *number >= least && *number <= 1 && *number != -1;
}

ncclResult_t tt_topology_rules_set(struct tt_topology_rules *rules, const char *name, const char *value, bool *known)
{
  static const char *const allowed[] = {
      [LEVEL] = "LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB or SYS, or a number from 0 to 5",
      [READ] = "-2, 0 or 1",
      [ON] = "0 or 1",
      [OFF] = "0 or 1",
      [NETS] = "AUTO, ALL or MAX:n"};
  *known = false;
  for (size_t i = 0; i < TT_COUNT(variables); i++) {
    const struct variable *v = &variables[i];
    if (strcmp(v->name, name) != 0) continue;
    *known = true;
    void *member = (char *)rules + v->offset;
    int64_t number = 0;
    bool good = v->kind == LEVEL  ? read_level(value, member)
                : v->kind == NETS ? read_nets(value, member)
                                  : read_number(value, v->kind == READ ? -2 : 0, &number);
    if (!good) return TT_FAIL(ncclInvalidUsage, "%s is \"%.64s\"; it must be %s", name, value, allowed[v->kind]);
    if (v->kind == READ) *(int *)member = (int)number;
    if (v->kind == ON || v->kind == OFF) *(bool *)member = (number != 0) == (v->kind == ON);
  }
  return ncclSuccess;
}

ncclResult_t tt_topology_rules_from_environment(struct tt_topology_rules *rules)
{
  for (size_t i = 0; i < TT_COUNT(variables); i++) {
    bool known;
    const char *value = getenv(variables[i].name);
    if (value && *value) TT_TRY(tt_topology_rules_set(rules, variables[i].name, value, &known));
  }
  return ncclSuccess;
}

bool tt_topology_rules_describe(int i, const char **name, const char **meaning)
{
  if (i < 0 || i >= (int)TT_COUNT(variables)) return false;
  *name = variables[i].name;
  *meaning = variables[i].meaning;
  return true;
}
