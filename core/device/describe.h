/* What a backend tells of its devices, in the words of the topology: for communicators, each rank of which describes
 * its own device, and for tools, which describe all. Backends of version 1, and those that know nothing of the machine,
 * have devices with a bus id at most. Any thread. */
#ifndef TT_DEVICE_DESCRIBE_H
#define TT_DEVICE_DESCRIBE_H

#include "device/choose.h"
#include "topology/clique.h"
#include "topology/detect.h"
#include "topology/rules.h"

/* Describes a device of this process, by what the backend has: `describe`, else `properties`. */
ncclResult_t tt_device_describe(const struct tt_device *device, int index, struct tt_device_description *description);

/* A device as detection takes it. `gpu` points into the rest, so that this is not to be moved. */
struct tt_device_gpu {
  struct tt_detect_gpu gpu;
  struct tt_detect_nvlink nvlinks[TT_DEVICE_NEIGHBOURS];
  struct tt_device_description description;
};
ncclResult_t tt_device_detect(const struct tt_device *device, int index, int rank, struct tt_device_gpu *out);

/* A rank's own word on its device's place in a fabric; `exported` is the caller's to find out. */
struct tt_fabric tt_device_fabric(const struct tt_device_description *description, uint64_t host);

/* What the driver says of device `own` with each of `count` others of its host, by their bus ids: 0, or TT_PEER_NO_* of
 * topology/rules.h. One row of the table in tt_topology_rules, which the ranks exchange. Others without a bus id (NULL,
 * "") and answers that there are not count as good. */
void tt_device_peer_row(const struct tt_device *device, const char *own, const char *const *others, int count,
                        uint8_t *status);

/* The backend whose devices are this machine's GPUs, for tools: the one that TUTTI_DEVICE names, else CUDA's. False:
 * there is none, and report->reason says why. Unlike tt_device_find it says nothing in the log, and fails for nothing.
 */
bool tt_device_of_machine(struct tt_device_report *report);

#endif
