/* See buffers.h. */
#include "api/buffers.h"

#include "base/check.h"
#include "base/param.h"

#define LINE ((size_t)128)
/* A slot must hold its header, the LL signature line and some data. */
#define SMALLEST_SLOT 512
/* Of point-to-point operations with one peer: core/tuning/cost_gpu.c. */
#define PEER_CHANNELS 32
/* Slots of Simple are multiples of it. */
#define SIMPLE_STEP ((size_t)4096)

static const enum tt_param_id params[TT_NUM_PROTOCOLS] = {[TT_PROTO_LL] = TT_PARAM_NCCL_LL_BUFFSIZE,
                                                          [TT_PROTO_LL128] = TT_PARAM_NCCL_LL128_BUFFSIZE,
                                                          [TT_PROTO_SIMPLE] = TT_PARAM_NCCL_BUFFSIZE};

static size_t whole_lines(size_t slot)
{
  return (slot + LINE - 1) / LINE * LINE;
}

ncclResult_t tt_comm_buffer_bytes(const struct tt_device *device, int protocol, size_t *bytes)
{
  enum tt_param_id param = params[protocol];
  *bytes = 0;
  if (!(device->protocols & (1u << protocol))) return ncclSuccess;
  int64_t wanted = tt_param_int(param);
  if (wanted >= 0 && wanted < TT_SLOTS * SMALLEST_SLOT)
    return TT_FAIL(ncclInvalidUsage, "%s is %lld bytes; the smallest buffer is %d", tt_param_describe(param)->name,
                   (long long)wanted, TT_SLOTS * SMALLEST_SLOT);
  *bytes = TT_SLOTS * whole_lines((wanted < 0 ? device->default_buffer[protocol] : (size_t)wanted) / TT_SLOTS);
  return ncclSuccess;
}

/* LL and LL128 are for messages of which each rank has its share: with more ranks a share is smaller, and so is the
 * slot that holds it at once. LL128's is as large as two ranks want it, four have half, and beyond, where memory is
 * short, an eighth is what four of them would have. */
static size_t fit_lines(int protocol, int ranks, size_t slot)
{
  size_t least = TT_SLOT_HEADER, divisor = 1;
  if (protocol == TT_PROTO_LL128) {
    least += LINE; /* without data */
    divisor = ranks <= 2 ? 1 : ranks <= TT_BUFFERS_ROOMY ? 2 : 8;
  }
  if (ranks > TT_BUFFERS_ROOMY) divisor *= (size_t)ranks;
  if (slot <= least || divisor == 1) return slot;
  size_t lines = (slot - least) / LINE * (ranks > TT_BUFFERS_ROOMY ? TT_BUFFERS_ROOMY : 1);
  return TT_MIN(whole_lines((lines + divisor - 1) / divisor * LINE + least), slot);
}

/* What is left is Simple's. */
void tt_comm_fit_buffers(const struct tt_device *device, int ranks, bool network, size_t bytes[TT_NUM_PROTOCOLS])
{
  size_t channels = (size_t)TT_MAX(device->channels, 1), simple = bytes[TT_PROTO_SIMPLE] / TT_SLOTS;
  bool host = !(device->features & TT_DEVICE_MEMORY);
  if (host && network && tt_param_int(params[TT_PROTO_SIMPLE]) < 0)
    bytes[TT_PROTO_SIMPLE] = TT_MAX(bytes[TT_PROTO_SIMPLE], TT_SLOTS * TT_BUFFERS_NETWORK_SLOT);
  if (host) return;
  size_t connections = (size_t)(ranks - 1) * (channels + TT_MIN(channels, PEER_CHANNELS)), taken = 0;
  for (int p = 0; p < TT_PROTO_SIMPLE; p++) {
    size_t slot = bytes[p] / TT_SLOTS;
    if (tt_param_int(params[p]) < 0) bytes[p] = TT_SLOTS * fit_lines(p, ranks, slot);
    taken += connections * bytes[p];
  }
  if (ranks <= TT_BUFFERS_ROOMY) return;
  size_t left = (TT_BUFFERS_MOST - TT_MIN(taken, TT_BUFFERS_MOST)) / connections / TT_SLOTS;
  size_t slot = TT_MAX(left / SIMPLE_STEP * SIMPLE_STEP, SIMPLE_STEP);
  if (tt_param_int(params[TT_PROTO_SIMPLE]) < 0) bytes[TT_PROTO_SIMPLE] = TT_SLOTS * TT_MIN(slot, simple);
}
