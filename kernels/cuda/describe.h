/* What the CUDA backend tells of the machine around its GPUs: see `describe` and `peer_status` of tutti/device.h. */
#ifndef TT_KERNELS_CUDA_DESCRIBE_H
#define TT_KERNELS_CUDA_DESCRIBE_H

#include <stdbool.h>
#include "kernels/cuda/nvml.h"
#include "tutti/device.h"

/* Where the kernel shows PCI devices. Tests have a tree of their own. */
#ifndef TT_CUDA_SYSFS
#define TT_CUDA_SYSFS "/sys"
#endif

ncclResult_t tt_cuda_describe(int index, struct tt_device_description *out);
/* Whether a device has joined a fabric that spans hosts. */
bool tt_cuda_in_fabric(int index);
ncclResult_t tt_cuda_peer_status(const char *from, const char *to, struct tt_device_peer *out);

/* describe_links.c. Fills in the neighbours, and warns of links that do not work, between tt_nvml_enter and
 * tt_nvml_leave. `name` is the GPU's for people: "GPU 3 (0000:5d:00.0, NVIDIA H100)". */
void tt_cuda_describe_links(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, const char *name,
                            struct tt_device_description *out);

/* bus_id.c. Writes a bus id in the form of tt_device_description; false if it is none, or one that NVML gives to what
 * cannot be seen. */
bool tt_cuda_bus_id(const char *text, char pci[24]);

#endif
