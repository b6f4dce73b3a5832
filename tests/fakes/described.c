/* A device backend that describes: two GPUs, 0000:12:00.0 and 0000:11:00.0, in this order, with four NVLinks to each
 * other. It runs nothing. FAKE_DESCRIBED_REFUSES is what its driver says of both directions, FAKE_DESCRIBED_WARNS what
 * it warns of when it is asked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tutti/device.h"
#include "tutti/net.h"

static tt_device_log *log_line;
static const char *const pci[] = {"0000:12:00.0", "0000:11:00.0"};

static ncclResult_t count(int *devices)
{
  *devices = 2;
  return ncclSuccess;
}

static ncclResult_t launch(struct tt_work *const *works, int nworks, void *stream, struct tt_launch **out)
{
  (void)works, (void)nworks, (void)stream, (void)out;
  return ncclInternalError;
}

static ncclResult_t progress(struct tt_launch *launched, int *moved, int *done)
{
  (void)launched, (void)moved, (void)done;
  return ncclInternalError;
}

static void finish(struct tt_launch *launched)
{
  (void)launched;
}

static ncclResult_t describe(int index, struct tt_device_description *d)
{
  const char *warns = getenv("FAKE_DESCRIBED_WARNS");
  if (warns && index == 0) log_line(NCCL_LOG_WARN, warns);
  d->known = TT_DESCRIBED_NEIGHBOURS | TT_DESCRIBED_GPU_DIRECT | TT_DESCRIBED_PCIE;
  d->capability = 90;
  snprintf(d->pci, sizeof(d->pci), "%s", pci[index]);
  d->part = -1;
  d->gpu_direct = 1;
  d->pcie_generation = 4;
  d->pcie_width = 16;
  d->nneighbours = 1;
  snprintf(d->neighbours[0].pci, sizeof(d->neighbours[0].pci), "%s", pci[1 - index]);
  d->neighbours[0].kind = TT_NEIGHBOUR_DEVICE;
  d->neighbours[0].links = 4;
  return ncclSuccess;
}

static ncclResult_t peer_status(const char *from, const char *to, struct tt_device_peer *peer)
{
  const char *refuses = getenv("FAKE_DESCRIBED_REFUSES");
  (void)from, (void)to;
  peer->read = peer->write = refuses ? (uint32_t)atoi(refuses) : TT_PEER_STATUS_GOOD;
  return ncclSuccess;
}

__attribute__((visibility("default"))) tt_device_entry tutti_device;
const struct tt_device *tutti_device(tt_device_log *log, char *why, size_t why_size)
{
  static const struct tt_device device = {.size = sizeof(device),
                                          .name = "described",
                                          .protocols = 1u << TT_PROTO_SIMPLE,
                                          .default_buffer = {[TT_PROTO_SIMPLE] = 1 << 16},
                                          .version = TT_DEVICE_VERSION,
                                          .features = TT_DEVICE_DESCRIBED,
                                          .count = count,
                                          .launch = launch,
                                          .progress = progress,
                                          .finish = finish,
                                          .describe = describe,
                                          .peer_status = peer_status};
  (void)why, (void)why_size;
  log_line = log;
  return &device;
}
