/* What NVML says of two GPUs' use of each other's memory. See describe.h.
 *
 * An answer is kept, since each communicator asks for all its pairs; that NVML has none is not, as it may come to know
 * the GPU. */
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/describe.h"

enum { KEPT_PAIRS = 256 }; /* all of 16 GPUs; more are asked for each time */

struct pair {
  char from[24], to[24];
  struct tt_device_peer peer;
};

/* Under NVML's lock. */
static struct pair kept[KEPT_PAIRS];
static int nkept;

static uint32_t ask(const struct tt_nvml *nvml, struct tt_nvml_gpu *from, struct tt_nvml_gpu *to, int what)
{
  uint32_t status = TT_PEER_STATUS_UNKNOWN;
  if (TT_NVML_CALL(nvml, peer_status, from, to, what, &status) != TT_NVML_SUCCESS) return TT_PEER_STATUS_UNKNOWN;
  return TT_MIN(status, (uint32_t)TT_PEER_STATUS_UNKNOWN); /* NVML's numbers are the same */
}

static bool find(struct pair *pair)
{
  for (int i = 0; i < nkept; i++) {
    if (strcmp(kept[i].from, pair->from) != 0 || strcmp(kept[i].to, pair->to) != 0) continue;
    pair->peer = kept[i].peer;
    return true;
  }
  return false;
}

static void ask_both(const struct tt_nvml *nvml, struct pair *pair)
{
  struct tt_nvml_gpu *from, *to;
  struct tt_device_peer *peer = &pair->peer;
  if (find(pair)) return;
  if (nvml->by_bus_id(pair->from, &from) != TT_NVML_SUCCESS || nvml->by_bus_id(pair->to, &to) != TT_NVML_SUCCESS)
    return;
  const bool same = from == to; /* NVML does not answer for a GPU and itself */
  peer->read = same ? TT_PEER_STATUS_GOOD : ask(nvml, from, to, TT_NVML_PEER_READ);
  peer->write = same ? TT_PEER_STATUS_GOOD : ask(nvml, from, to, TT_NVML_PEER_WRITE);
  const bool answered = peer->read != TT_PEER_STATUS_UNKNOWN && peer->write != TT_PEER_STATUS_UNKNOWN;
  if (answered && nkept < KEPT_PAIRS) kept[nkept++] = *pair;
}

ncclResult_t tt_cuda_peer_status(const char *from, const char *to, struct tt_device_peer *out)
{
  struct pair pair = {.peer = {.read = TT_PEER_STATUS_UNKNOWN, .write = TT_PEER_STATUS_UNKNOWN}};
  if (!tt_cuda_bus_id(from, pair.from)) return TT_FAIL(ncclInvalidArgument, "\"%.32s\" is no GPU's bus id", from);
  if (!tt_cuda_bus_id(to, pair.to)) return TT_FAIL(ncclInvalidArgument, "\"%.32s\" is no GPU's bus id", to);
  const struct tt_nvml *nvml = tt_nvml_enter();
  if (nvml) ask_both(nvml, &pair);
  tt_nvml_leave();
  pair.peer.size = out->size;
  memcpy(out, &pair.peer, TT_MIN(out->size, sizeof(pair.peer)));
  return ncclSuccess;
}
