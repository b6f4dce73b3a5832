/* See multicast.h. */
#include "plan/multicast.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "device/describe.h"
#include "plan/comm.h"

/* Fewer ranks reach each other's memory as fast by themselves. */
#define FEWEST 3

static void set_why(struct tt_multicast *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void set_why(struct tt_multicast *out, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(out->why, sizeof(out->why), format, args);
  va_end(args);
}

/* The first machine with too few ranks ends it for all. */
static bool has_enough(const int32_t *machine, int nranks, struct tt_multicast *out)
{
  for (int r = 0; r < nranks; r++) {
    int count = 0;
    for (int other = 0; other < nranks; other++) count += machine[other] == machine[r];
    if (count >= FEWEST) continue;
    if (count == nranks)
      set_why(out, "it is not for %d ranks", nranks);
    else
      set_why(out, "rank %d: its machine has %d rank%s, and it is for %d or more", r, count, count == 1 ? "" : "s",
              FEWEST);
    return false;
  }
  return true;
}

/* What keeps a rank's device from being in its machine's team; "": nothing. */
static void check_rank(const struct tt_multicast_card *cards, const struct tt_peer_info *peers, const int32_t *machine,
                       int nranks, int r, struct tt_multicast *out)
{
  char card[sizeof(cards->why)];
  snprintf(card, sizeof(card), "%.*s", (int)sizeof(card) - 1, cards[r].why);
  if (card[0] != '\0') set_why(out, "rank %d: %s", r, card);
  for (int other = 0; other < nranks && out->why[0] == '\0'; other++) {
    if (other == r || machine[other] != machine[r]) continue;
    bool host = peers[other].node == peers[r].node;
    if (host && memcmp(peers[other].device_id, peers[r].device_id, sizeof(peers[r].device_id)) == 0)
      set_why(out, "rank %d: rank %d has the same device", r, other);
    else if (!host && !cards[r].fabric)
      set_why(out, "rank %d: its device cannot share multicast memory with other hosts, as that of rank %d", r, other);
    out->spans |= !host;
  }
}

ncclResult_t tt_multicast_decide(const struct tt_multicast_card *cards, const struct tt_peer_info *peers,
                                 const int32_t *machine, int nranks, int enable, struct tt_multicast *out)
{
  *out = (struct tt_multicast){.wanted = enable == TT_MULTICAST_WANTED};
  if (enable == TT_MULTICAST_NEVER) set_why(out, "NCCL_NVLS_ENABLE is 0");
  if (out->why[0] != '\0' || !has_enough(machine, nranks, out)) return ncclSuccess;
  memset(out->reduces, 0xff, sizeof(out->reduces));
  for (int r = 0; r < nranks && out->why[0] == '\0'; r++) {
    check_rank(cards, peers, machine, nranks, r, out);
    for (size_t type = 0; type < sizeof(out->reduces); type++) out->reduces[type] &= cards[r].reduces[type];
  }
  out->possible = out->why[0] == '\0';
  if (out->possible || !out->wanted) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage,
                 "NCCL_NVLS_ENABLE is 1, but there is no multicast memory: %s. Unset it, or set it to 0", out->why);
}

static ncclResult_t describe_own(const struct ncclComm *comm, struct tt_multicast_card *card)
{
  const struct tt_device *device = comm->device;
  struct tt_device_description d;
  struct tt_device_multicast own = {.size = sizeof(own)};
  if (!(device->features & TT_DEVICE_MULTICAST)) {
    snprintf(card->why, sizeof(card->why), "device %s has no multicast memory", device->name);
    return ncclSuccess;
  }
  TT_TRY(device->team_check(comm->device_index, &own));
  TT_TRY(tt_device_describe(device, comm->device_index, &d));
  snprintf(card->why, sizeof(card->why), "%.*s", (int)sizeof(own.why) - 1, own.why);
  memcpy(card->reduces, own.reduces, sizeof(card->reduces));
  card->fabric = own.fabric != 0;
  if (card->why[0] != '\0' || !(d.known & TT_DESCRIBED_FABRIC) || d.fabric_state == TT_FABRIC_NONE) return ncclSuccess;
  if (d.fabric_state != TT_FABRIC_COMPLETED)
    snprintf(card->why, sizeof(card->why),
             "its GPU has not joined the NVLink fabric yet; see what nvidia-smi -q says under Fabric");
  else if (d.fabric_status != 0)
    snprintf(card->why, sizeof(card->why), "its GPU could not join the NVLink fabric (error %d)", d.fabric_status);
  return ncclSuccess;
}

ncclResult_t tt_multicast_agree(struct ncclComm *comm, const int32_t *machine)
{
  struct tt_multicast_card *cards;
  const int enable = (int)tt_param_int(TT_PARAM_NCCL_NVLS_ENABLE);
  ncclResult_t result = ncclSuccess;
  comm->multicast = (struct tt_multicast){0};
  if (!tt_transport_device_memory(comm->env)) return ncclSuccess;
  TT_TRY(TT_CALLOC(&cards, (size_t)comm->nranks));
  /* Who cannot ask its device says so, and takes part. */
  if (enable != TT_MULTICAST_NEVER && describe_own(comm, &cards[comm->rank]) != ncclSuccess)
    snprintf(cards[comm->rank].why, sizeof(cards->why), "%.180s", tt_log_thread_error());
  TT_TRY_GOTO(tt_bootstrap_all_gather(comm->bootstrap, cards, sizeof(*cards)), result, out);
  TT_TRY_GOTO(tt_multicast_decide(cards, comm->env->peers, machine, comm->nranks, enable, &comm->multicast), result,
              out);
  if (comm->multicast.possible)
    TT_INFO(TT_INIT | TT_NVLS,
            "NVLS multicast support is available: the devices of each machine can share memory with "
            "a multicast address%s",
            comm->multicast.spans ? ", across hosts" : "");
  else
    TT_INFO(TT_INIT | TT_NVLS, "NVLS multicast support is not available: %s", comm->multicast.why);
out:
  free(cards);
  return result;
}

bool tt_multicast_reduces(const struct tt_multicast *multicast, int datatype, int op)
{
  return datatype >= 0 && datatype < (int)sizeof(multicast->reduces) && op >= 0 && op < 8 &&
         (multicast->reduces[datatype] & 1u << op);
}
