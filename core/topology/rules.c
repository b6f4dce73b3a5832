/* Reads the rules of rules.h from variables. Their names, ranges and meanings are in base/param_table.h. */
#include "topology/rules.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/check.h"
#include "base/param.h"
#include "base/text.h"
#include "topology/topology.h"

enum kind { LEVEL, READ, NUMBER, ON, OFF, NETS }; /* ON: 1 sets the member, OFF: 1 clears it */

struct variable {
  enum tt_param_id id;
  enum kind kind;
  size_t offset;
};

#define AT(member) offsetof(struct tt_topology_rules, member)
static const struct variable variables[] = {
    {TT_PARAM_NCCL_P2P_LEVEL, LEVEL, AT(peer_level)},
    {TT_PARAM_NCCL_P2P_DISABLE, OFF, AT(peers)},
    {TT_PARAM_NCCL_SHM_DISABLE, OFF, AT(shared_memory)},
    {TT_PARAM_NCCL_P2P_READ_ENABLE, READ, AT(peer_reads)},
    {TT_PARAM_NCCL_IGNORE_DISABLED_P2P, NUMBER, AT(ignore_disabled_peers)},
    {TT_PARAM_NCCL_NVB_DISABLE, OFF, AT(relays)},
    {TT_PARAM_NCCL_NET_DISABLE_INTRA, OFF, AT(net_intra)},
    {TT_PARAM_NCCL_NET_GDR_LEVEL, LEVEL, AT(gpu_direct_level)},
    {TT_PARAM_NCCL_NET_GDR_READ, READ, AT(gpu_direct_read)},
    {TT_PARAM_NCCL_NET_GDR_C2C, ON, AT(gpu_direct_c2c)},
    {TT_PARAM_NCCL_NET_FORCE_FLUSH, ON, AT(force_flush)},
    {TT_PARAM_NCCL_PXN_DISABLE, OFF, AT(pxn)},
    {TT_PARAM_NCCL_PXN_C2C, ON, AT(pxn_c2c)},
    {TT_PARAM_NCCL_NETDEVS_POLICY, NETS, AT(nets_per_gpu)},
};

struct tt_topology_rules tt_topology_rules_default(void)
{
  return (struct tt_topology_rules){.peer_level = -1,
                                    .gpu_direct_level = -1,
                                    .gpu_direct_read = -2,
                                    .peer_reads = -2,
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

static bool read_number(const struct variable *v, const char *value, int64_t *number)
{
  const struct tt_param *param = tt_param_describe(v->id);
  return tt_text_int(value, number) && *number >= param->min && *number <= param->max;
}

/* False: the value is not allowed. */
static bool set(struct tt_topology_rules *rules, const struct variable *v, const char *value)
{
  void *member = (char *)rules + v->offset;
  int64_t number = 0;
  switch (v->kind) {
  case LEVEL:
    return read_level(value, member);
  case NETS:
    return read_nets(value, member);
  default:
    if (!read_number(v, value, &number)) return false;
  }
  if (v->kind == READ)
    *(int *)member = number < 0 ? -2 : (int)number;
  else if (v->kind == NUMBER)
    *(int *)member = (int)number;
  else
    *(bool *)member = (number != 0) == (v->kind == ON);
  return true;
}

static const char *allowed(const struct variable *v)
{
  static const char *const words[] = {[LEVEL] =
                                          "LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB or SYS, or a number from 0 to 5",
                                      [READ] = "-2, 0 or 1",
                                      [NUMBER] = "0, 1 or 2",
                                      [ON] = "0 or 1",
                                      [OFF] = "0 or 1",
                                      [NETS] = "AUTO, ALL or MAX:n"};
  return words[v->kind];
}

ncclResult_t tt_topology_rules_set(struct tt_topology_rules *rules, const char *name, const char *value, bool *known)
{
  *known = false;
  for (size_t i = 0; i < TT_COUNT(variables); i++) {
    const struct variable *v = &variables[i];
    if (strcmp(tt_param_describe(v->id)->name, name) != 0) continue;
    *known = true;
    if (!set(rules, v, value))
      return TT_FAIL(ncclInvalidUsage, "%s is \"%.64s\"; it must be %s", name, value, allowed(v));
  }
  return ncclSuccess;
}

ncclResult_t tt_topology_rules_from_parameters(struct tt_topology_rules *rules)
{
  for (size_t i = 0; i < TT_COUNT(variables); i++) {
    const struct variable *v = &variables[i];
    const char *value = tt_param_string(v->id);
    if (value && !set(rules, v, value)) return tt_param_refuse(v->id, allowed(v));
  }
  return ncclSuccess;
}

bool tt_topology_rules_describe(int i, const char **name, const char **meaning)
{
  if (i < 0 || i >= (int)TT_COUNT(variables)) return false;
  const struct tt_param *param = tt_param_describe(variables[i].id);
  *name = param->name;
  *meaning = param->help;
  return true;
}

/* The row of a rank; -1: it has none. */
static int row_of(const struct tt_topology_rules *rules, int rank)
{
  int low = 0, high = rules->peer_ranks;
  if (rules->peers_of == NULL) return rank < rules->peer_ranks ? rank : -1;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (rules->peers_of[middle] < rank)
      low = middle + 1;
    else
      high = middle;
  }
  return low < rules->peer_ranks && rules->peers_of[low] == rank ? low : -1;
}

uint8_t tt_topology_rules_peer(const struct tt_topology_rules *rules, int from, int to)
{
  if (rules->peer_status == NULL) return 0;
  const int a = row_of(rules, from), b = row_of(rules, to);
  return a < 0 || b < 0 ? 0 : rules->peer_status[(int64_t)a * rules->peer_ranks + b];
}
