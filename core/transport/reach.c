/* See reach.h. What a rank tells is short: the devices that it sees and cannot map, in most machines none. They are
 * named by their ids, since each process may number devices in its own way. */
#include "transport/reach.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"

#define MAX_BLOCKED 15 /* a host of 16 devices, each alone */

struct blocked {
  unsigned char ids[MAX_BLOCKED][16]; /* those unused are zero, which is nobody's id */
  uint64_t count;
};

struct tt_reach {
  struct blocked *ranks;
};

static bool is_blocked(const struct blocked *blocked, const unsigned char id[16])
{
  for (uint64_t i = 0; i < TT_MIN(blocked->count, MAX_BLOCKED); i++)
    if (memcmp(blocked->ids[i], id, 16) == 0) return true;
  return false;
}

/* This process's index of a device; -1 if it does not see it. */
static ncclResult_t index_of(const struct tt_device *device, const unsigned char id[16], int *index)
{
  int count = 0;
  *index = -1;
  TT_TRY(device->count(&count));
  for (int i = 0; i < count && *index < 0; i++) {
    struct tt_device_properties properties = {.size = sizeof(properties)};
    TT_TRY(device->properties(i, &properties));
    if (memcmp(properties.id, id, 16) == 0) *index = i;
  }
  return ncclSuccess;
}

static ncclResult_t ask(const struct tt_device *device, int rank, int nranks, const struct tt_peer_info *peers,
                        struct blocked *blocked)
{
  static const unsigned char none[16];
  const struct tt_peer_info *me = &peers[rank];
  for (int r = 0; r < nranks; r++) {
    const unsigned char *id = peers[r].device_id;
    bool other = peers[r].node == me->node && memcmp(id, me->device_id, 16) != 0 && memcmp(id, none, 16) != 0;
    if (!other || is_blocked(blocked, id)) continue;
    bool asked = false;
    for (int before = 0; before < r && !asked; before++)
      asked = peers[before].node == me->node && memcmp(peers[before].device_id, id, 16) == 0;
    int index = -1, can = 1;
    if (!asked) TT_TRY(index_of(device, id, &index));
    if (index < 0) continue;
    TT_TRY(device->can_map(me->device, index, &can));
    if (can) continue;
    if (blocked->count == MAX_BLOCKED)
      return TT_FAIL(ncclSystemError, "%s device %d of rank %d cannot map more than %d other devices of its host",
                     device->name, me->device, rank, MAX_BLOCKED);
    memcpy(blocked->ids[blocked->count++], id, 16);
  }
  return ncclSuccess;
}

ncclResult_t tt_reach_create(const struct tt_device *device, int rank, int nranks, const struct tt_peer_info *peers,
                             struct tt_bootstrap *bootstrap, struct tt_reach **out)
{
  *out = NULL;
  struct tt_reach *reach;
  ncclResult_t result;
  TT_TRY(TT_CALLOC(&reach, 1));
  TT_TRY_GOTO(TT_CALLOC(&reach->ranks, (size_t)nranks), result, out);
  TT_TRY_GOTO(ask(device, rank, nranks, peers, &reach->ranks[rank]), result, out);
  if (nranks > 1 && bootstrap)
    TT_TRY_GOTO(tt_bootstrap_all_gather(bootstrap, reach->ranks, sizeof(*reach->ranks)), result, out);
  *out = reach;
out:
  if (result != ncclSuccess) tt_reach_destroy(reach);
  return result;
}

void tt_reach_destroy(struct tt_reach *reach)
{
  if (!reach) return;
  free(reach->ranks);
  free(reach);
}

bool tt_reach_both_ways(const struct tt_reach *reach, const struct tt_peer_info *peers, int a, int b)
{
  return !is_blocked(&reach->ranks[a], peers[b].device_id) && !is_blocked(&reach->ranks[b], peers[a].device_id);
}
