/* What a GPU is to the machine around it, from CUDA and NVML. See describe.h.
 *
 * A description is made once for each device and kept, since NVML may be slow; only a fabric that the GPU had not
 * joined yet is asked for again. */
#include "kernels/cuda/describe.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/context.h"

enum { KEPT_DEVICES = 64 };

/* Under NVML's lock, as all of this. */
static struct tt_device_description kept[KEPT_DEVICES];
static bool is_kept[KEPT_DEVICES];

/* ---- CUDA ---- */

/* The part's number behind this word in the device's name, if it is one. */
static int find_part(const char *name)
{
  const char *word = strstr(name, "MLOPart");
  int part;
  return word && sscanf(word, "MLOPart %d", &part) == 1 && part >= 0 ? part : -1;
}

static ncclResult_t ask_cuda(int index, struct tt_device_description *d, char name[128])
{
  struct cudaDeviceProp cuda;
  char pci[32] = "";
  int direct;
  TT_CUDA_TRY(cudaGetDeviceProperties(&cuda, index), "asking for a GPU's properties");
  TT_CUDA_TRY(cudaDeviceGetPCIBusId(pci, sizeof(pci), index), "asking for a GPU's place");
  d->capability = 10 * cuda.major + cuda.minor;
  d->part = find_part(cuda.name);
  tt_cuda_bus_id(pci, d->pci);
  snprintf(name, 128, "GPU %d (%s, %.64s)", index, d->pci, cuda.name);
  if (cudaDeviceGetAttribute(&direct, cudaDevAttrGPUDirectRDMASupported, index) != cudaSuccess) {
    cudaGetLastError(); /* an older driver: nothing is known, and nothing has failed */
    return ncclSuccess;
  }
  d->gpu_direct = direct != 0;
  d->known |= TT_DESCRIBED_GPU_DIRECT;
  return ncclSuccess;
}

/* ---- NVML ---- */

static void ask_pci(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, struct tt_device_description *d)
{
  struct tt_nvml_pci pci = {0};
  uint32_t number, generation, width;
  if (TT_NVML_CALL(nvml, index, gpu, &number) == TT_NVML_SUCCESS) {
    d->number = (int32_t)number;
    d->known |= TT_DESCRIBED_NUMBER;
  }
  if (TT_NVML_CALL(nvml, pci, gpu, &pci) == TT_NVML_SUCCESS) {
    d->vendor = (uint16_t)pci.ids;
    d->device = (uint16_t)(pci.ids >> 16);
    d->subsystem_vendor = (uint16_t)pci.subsystem;
    d->subsystem_device = (uint16_t)(pci.subsystem >> 16);
    d->known |= TT_DESCRIBED_IDS;
  }
  if (TT_NVML_CALL(nvml, generation, gpu, &generation) == TT_NVML_SUCCESS &&
      TT_NVML_CALL(nvml, width, gpu, &width) == TT_NVML_SUCCESS) {
    d->pcie_generation = generation;
    d->pcie_width = width;
    d->known |= TT_DESCRIBED_PCIE;
    if (TT_NVML_CALL(nvml, most_generation, gpu, &generation) == TT_NVML_SUCCESS) d->pcie_most_generation = generation;
    if (TT_NVML_CALL(nvml, most_width, gpu, &width) == TT_NVML_SUCCESS) d->pcie_most_width = width;
  }
}

/* Chip-to-chip links are of one speed. Where NVML knows of none, it may say so in any way. */
static void ask_c2c(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, const char *name,
                    struct tt_device_description *d)
{
  struct tt_nvml_field count = {.id = TT_NVML_FIELD_C2C_COUNT};
  if (d->capability >= 90 && TT_NVML_CALL(nvml, fields, gpu, 1, &count) != TT_NVML_SUCCESS) return;
  d->known |= TT_DESCRIBED_C2C;
  if (d->capability < 90 || count.result != TT_NVML_SUCCESS) return;
  uint32_t links = TT_MIN(count.value.number, 64u);
  for (uint32_t l = 0; l < links; l++) {
    struct tt_nvml_field link[2] = {{.id = TT_NVML_FIELD_C2C_STATUS, .scope = l},
                                    {.id = TT_NVML_FIELD_C2C_MOST_MBPS, .scope = l}};
    if (nvml->fields(gpu, 2, link) != TT_NVML_SUCCESS || link[0].result != TT_NVML_SUCCESS ||
        link[1].result != TT_NVML_SUCCESS || link[0].value.number != 1)
      continue;
    d->c2c_links++;
    d->c2c_megabytes = link[1].value.number;
  }
  if (d->c2c_links < links)
    TT_WARN("%s: only %u of its %u chip-to-chip links to the CPU are active; restart the machine if they should be",
            name, d->c2c_links, links);
}

static void ask_fabric(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, const char *name,
                       struct tt_device_description *d)
{
  struct tt_nvml_fabric fabric = {.version = sizeof(fabric) | 2u << 24};
  if (!nvml->fabric) return;
  int error = nvml->fabric(gpu, &fabric);
  if (error != TT_NVML_SUCCESS && error != TT_NVML_NOT_SUPPORTED) return;
  d->known |= TT_DESCRIBED_FABRIC;
  if (error == TT_NVML_NOT_SUPPORTED) return;
  d->fabric_state = fabric.state;
  if (fabric.state != TT_FABRIC_COMPLETED) return;
  d->fabric_status = fabric.status;
  d->fabric_clique = fabric.clique;
  d->fabric_health = fabric.health;
  memcpy(d->fabric_cluster, fabric.cluster, sizeof(d->fabric_cluster));
  if (fabric.status != TT_NVML_SUCCESS)
    TT_WARN("%s could not join its NVLink fabric: %s. Other hosts of the fabric are reached over the network", name,
            tt_nvml_error(nvml, fabric.status));
  else if ((fabric.health & 3) == 1) /* the field "degraded bandwidth": yes */
    TT_WARN("%s: the NVLink fabric has less bandwidth than it should; see what nvidia-smi -q says under Fabric", name);
}

static void ask_nvml(const struct tt_nvml *nvml, const char *name, struct tt_device_description *d)
{
  struct tt_nvml_gpu *gpu;
  int error = nvml->by_bus_id(d->pci, &gpu);
  if (error != TT_NVML_SUCCESS) {
    TT_WARN("%s is not known to NVML (%s), so neither are its NVLinks; see what nvidia-smi says of it", name,
            tt_nvml_error(nvml, error));
    return;
  }
  ask_pci(nvml, gpu, d);
  tt_cuda_describe_links(nvml, gpu, name, d);
  ask_c2c(nvml, gpu, name, d);
  ask_fabric(nvml, gpu, name, d);
}

static bool joins_fabric(const struct tt_device_description *d)
{
  return d->fabric_state == TT_FABRIC_NOT_STARTED || d->fabric_state == TT_FABRIC_IN_PROGRESS;
}

static ncclResult_t describe(const struct tt_nvml *nvml, int index, struct tt_device_description *d)
{
  char name[128];
  struct tt_nvml_gpu *gpu;
  if (index >= 0 && index < KEPT_DEVICES && is_kept[index]) {
    *d = kept[index];
    snprintf(name, sizeof(name), "GPU %d (%s)", index, d->pci);
    if (nvml && joins_fabric(d) && nvml->by_bus_id(d->pci, &gpu) == TT_NVML_SUCCESS) ask_fabric(nvml, gpu, name, d);
  } else {
    *d = (struct tt_device_description){.part = -1};
    TT_TRY(ask_cuda(index, d, name));
    if (nvml) ask_nvml(nvml, name, d);
  }
  if (index >= KEPT_DEVICES) return ncclSuccess;
  kept[index] = *d;
  is_kept[index] = true;
  return ncclSuccess;
}

ncclResult_t tt_cuda_describe(int index, struct tt_device_description *out)
{
  struct tt_device_description d;
  const size_t size = out->size;
  const struct tt_nvml *nvml = tt_nvml_enter();
  ncclResult_t result = describe(nvml, index, &d);
  tt_nvml_leave();
  if (result != ncclSuccess) return result;
  d.size = size;
  memcpy(out, &d, TT_MIN(size, sizeof(d)));
  return ncclSuccess;
}

bool tt_cuda_in_fabric(int index)
{
  static const unsigned char none[sizeof(((struct tt_device_description *)0)->fabric_cluster)];
  struct tt_device_description d = {.size = sizeof(d)};
  return tt_cuda_describe(index, &d) == ncclSuccess && d.fabric_state == TT_FABRIC_COMPLETED && d.fabric_status == 0 &&
         memcmp(d.fabric_cluster, none, sizeof(none)) != 0;
}
