/* Which network devices to fuse. See merge.h. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/check.h"
#include "base/text.h"
#include "topology/merge_internal.h"
#include "topology/topology.h"

enum { PORT = TT_PATH_NVL }; /* the number that is free between the device itself and what is behind a bridge */

struct planning {
  const struct tt_xml *xml;
  const struct tt_detect_net *nets;
  int nnets, level, most;
  bool same_rail;
  int *elements; /* <net> of each device; -1: the tree has none */
  bool *placed;
  struct tt_merge_group *groups;
  int ngroups;
};

static ncclResult_t read_rules(struct planning *p, const struct tt_merge_rules *rules)
{
  static const struct {
    const char *name;
    int level;
  } levels[] = {{"LOC", TT_PATH_LOC}, {"PORT", PORT},       {"PIX", TT_PATH_PIX}, {"PXB", TT_PATH_PXB},
                {"P2C", TT_PATH_P2C}, {"PXN", TT_PATH_PXN}, {"PHB", TT_PATH_PHB}, {"SYS", TT_PATH_SYS}};
  const char *level = rules->level ? rules->level : "PORT", *policy = rules->policy ? rules->policy : "ALL";
  size_t l = 0;
  while (l < TT_COUNT(levels) && strcasecmp(level, levels[l].name) != 0) l++;
  if (l == TT_COUNT(levels))
    return TT_FAIL(ncclInvalidUsage,
                   "NCCL_NET_MERGE_LEVEL is \"%.32s\"; it must be LOC, PORT, PIX, PXB, P2C, PXN, PHB or SYS", level);
  p->level = levels[l].level;
  p->same_rail = strcasecmp(policy, "RAIL") == 0;
  if (!p->same_rail && strcasecmp(policy, "ALL") != 0)
    return TT_FAIL(ncclInvalidUsage, "NCCL_NET_MERGE_POLICY is \"%.32s\"; it must be ALL or RAIL", policy);
  p->most = TT_MIN(rules->most, (int)TT_MERGE_MOST);
  return ncclSuccess;
}

ncclResult_t tt_merge_check(const struct tt_merge_rules *rules)
{
  struct planning p;
  return read_rules(&p, rules);
}

/* "mlx5_0", or "mlx5_0:1" with its port. */
static bool is_named(const struct tt_detect_net *net, const char *piece, size_t bytes)
{
  size_t length = strlen(net->name);
  if (bytes < length || memcmp(piece, net->name, length) != 0) return false;
  if (bytes == length) return true;
  char port[16];
  int written = snprintf(port, sizeof(port), ":%d", net->port);
  return bytes - length == (size_t)written && memcmp(piece + length, port, (size_t)written) == 0;
}

static ncclResult_t force_group(struct planning *p, const char *text, size_t bytes)
{
  struct tt_merge_group *group = &p->groups[p->ngroups];
  const char *cursor = text, *piece;
  size_t length;
  *group = (struct tt_merge_group){0};
  char *list = strndup(text, bytes);
  if (!list) return TT_FAIL(ncclSystemError, "no memory for NCCL_NET_FORCE_MERGE");
  ncclResult_t result = ncclSuccess;
  for (cursor = list; result == ncclSuccess && tt_text_next(&cursor, ',', &piece, &length);) {
    int n = 0;
    while (n < p->nnets && (p->placed[n] || p->elements[n] < 0 || !is_named(&p->nets[n], piece, length))) n++;
    if (n == p->nnets)
      result = TT_FAIL(ncclInvalidUsage,
                       "NCCL_NET_FORCE_MERGE: \"%.*s\" in \"%.64s\" is no network device, or is in a group already",
                       (int)TT_MIN(length, (size_t)64), piece, list);
    else if (group->count == p->most)
      result = TT_FAIL(ncclInvalidUsage,
                       "NCCL_NET_FORCE_MERGE: \"%.64s\" has more than the %d devices that the network "
                       "can fuse",
                       list, p->most);
    if (result != ncclSuccess) break;
    group->devs[group->count++] = p->nets[n].dev;
    p->placed[n] = true;
  }
  free(list);
  if (group->count > 1) p->ngroups++;
  return result;
}

static ncclResult_t force_groups(struct planning *p, const char *force)
{
  const char *cursor = force, *piece;
  size_t bytes;
  while (tt_text_next(&cursor, ';', &piece, &bytes))
    if (bytes > 0) TT_TRY(force_group(p, piece, bytes));
  return ncclSuccess;
}

/* How far two cards are from each other, by what is above both. */
static int distance(const struct tt_xml *xml, int a, int b)
{
  const int ends[2] = {a, b};
  int above = tt_merge_common(xml, ends, 2);
  if (tt_xml_is(xml, above, "nic") || tt_xml_is(xml, above, "net")) {
    int card = tt_xml_is(xml, above, "nic") ? xml->elements[above].parent : tt_merge_card(xml, above);
    return tt_xml_is(xml, card, "pci") ? PORT : TT_PATH_PHB; /* those on no bus share nothing but their CPU */
  }
  int x = tt_merge_card(xml, a), y = tt_merge_card(xml, b);
  if (x != y && tt_merge_same_card(xml, x, y)) return PORT;
  if (tt_xml_is(xml, above, "system")) return TT_PATH_SYS;
  if (tt_xml_is(xml, above, "cpu")) return TT_PATH_PHB;
  return xml->elements[x].parent == above && xml->elements[y].parent == above ? TT_PATH_PIX : TT_PATH_PXB;
}

static bool may_join(const struct planning *p, int leader, int other)
{
  if (p->placed[other] || p->elements[other] < 0 || other == leader) return false;
  if (p->same_rail && (p->nets[leader].rail < 0 || p->nets[leader].rail != p->nets[other].rail)) return false;
  return distance(p->xml, p->elements[leader], p->elements[other]) <= p->level;
}

static void group_by_distance(struct planning *p)
{
  for (int leader = 0; leader < p->nnets; leader++) {
    if (p->placed[leader] || p->elements[leader] < 0) continue;
    struct tt_merge_group *group = &p->groups[p->ngroups];
    *group = (struct tt_merge_group){.count = 1, .devs = {p->nets[leader].dev}};
    p->placed[leader] = true;
    for (int other = 0; other < p->nnets && group->count < p->most; other++) {
      if (!may_join(p, leader, other)) continue;
      group->devs[group->count++] = p->nets[other].dev;
      p->placed[other] = true;
    }
    if (group->count > 1) p->ngroups++;
  }
}

/* The <net> of a device; -1: there is none, or it stands elsewhere than in a <nic>, and so on no card. */
static int find(const struct tt_xml *xml, int dev)
{
  int element = tt_merge_find(xml, dev);
  return element >= 0 && tt_xml_is(xml, xml->elements[element].parent, "nic") ? element : -1;
}

ncclResult_t tt_merge_plan(const struct tt_xml *xml, const struct tt_merge_rules *rules,
                           const struct tt_detect_net *nets, int nnets, struct tt_merge_group **groups, int *ngroups)
{
  ncclResult_t result;
  struct planning p = {.xml = xml, .nets = nets, .nnets = nnets};
  *groups = NULL;
  *ngroups = 0;
  TT_TRY(read_rules(&p, rules));
  if (p.most < 2) return ncclSuccess;
  TT_TRY_GOTO(TT_CALLOC(&p.elements, (size_t)nnets + 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&p.placed, (size_t)nnets + 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&p.groups, (size_t)nnets + 1), result, out);
  for (int n = 0; n < nnets; n++) p.elements[n] = find(xml, nets[n].dev);
  if (rules->force) TT_TRY_GOTO(force_groups(&p, rules->force), result, out);
  if (p.level > TT_PATH_LOC) group_by_distance(&p);
  *groups = p.groups;
  *ngroups = p.ngroups;
  p.groups = NULL;
out:
  free(p.elements);
  free(p.placed);
  free(p.groups);
  return result;
}
