/* The devices: as many as EMULATED_GPUS says, of which CUDA_VISIBLE_DEVICES may hide some. They are alike, and
 * much like an H100, without multicast memory, fabrics, or anything for NICs. */
#include "devices.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Buses are high ones, where the machine is less likely to have devices of its own. */
enum { DEFAULT_DEVICES = 2, FIRST_BUS = 0xe0 };

_Thread_local struct CUctx_st *emu_thread_context;
static struct CUctx_st primaries[EMU_MAX_DEVICES];
static int numbers[EMU_MAX_DEVICES]; /* of devices that can be seen */
static int count;

/* ---- Finding them ---- */

static bool read_number(const char **text, long *number)
{
  char *end;
  if (!isdigit((unsigned char)**text)) return false;
  *number = strtol(*text, &end, 10);
  *text = end;
  return true;
}

/* As CUDA has it: those before the first that is none. */
static int find_visible(const char *text, int devices)
{
  int found = 0;
  long number;
  bool used[EMU_MAX_DEVICES] = {false};
  while (read_number(&text, &number) && number < devices && !used[number]) {
    used[number] = true;
    numbers[found++] = (int)number;
    if (*text != ',') break;
    text++;
  }
  return found;
}

cudaError_t emu_devices_find(void)
{
  const char *wanted = getenv("EMULATED_GPUS"), *visible = getenv("CUDA_VISIBLE_DEVICES");
  long devices = DEFAULT_DEVICES;
  if (wanted != NULL) {
    const char *text = wanted;
    if (!read_number(&text, &devices) || *text != 0 || devices > EMU_MAX_DEVICES) {
      fprintf(stderr, "emulated GPU: EMULATED_GPUS=\"%s\" is no number from 0 to %d\n", wanted, EMU_MAX_DEVICES);
      return cudaErrorInitializationError;
    }
  }
  for (int d = 0; d < EMU_MAX_DEVICES; d++) {
    numbers[d] = d;
    primaries[d].device = d;
  }
  count = visible != NULL ? find_visible(visible, (int)devices) : (int)devices;
  return count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

int emu_device_count(void)
{
  return count;
}

int emu_device_number(int device)
{
  return numbers[device];
}

struct CUctx_st *emu_primary(int device)
{
  return device >= 0 && device < count ? &primaries[device] : NULL;
}

int emu_device(void)
{
  return emu_thread_context->device;
}

/* ---- The runtime's calls ---- */

cudaError_t cudaDriverGetVersion(int *version)
{
  *version = CUDA_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
  *version = CUDART_VERSION;
  return cudaSuccess;
}

static cudaError_t get_count(int *devices)
{
  *devices = count;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *devices)
{
  *devices = 0;
  EMU_RUNTIME(EMU_NO_CONTEXT, get_count(devices));
}

static cudaError_t set_device(int device)
{
  if (emu_primary(device) == NULL) return cudaErrorInvalidDevice;
  emu_thread_context = emu_primary(device);
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
  EMU_RUNTIME(EMU_NO_CONTEXT, set_device(device));
}

static cudaError_t get_device(int *device)
{
  *device = emu_thread_context != NULL ? emu_thread_context->device : 0;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
  EMU_RUNTIME(EMU_NO_CONTEXT, get_device(device));
}

static cudaError_t get_properties(struct cudaDeviceProp *properties, int device)
{
  if (emu_primary(device) == NULL) return cudaErrorInvalidDevice;
  *properties = (struct cudaDeviceProp){.totalGlobalMem = EMU_DEVICE_BYTES,
                                        .sharedMemPerBlock = 48 << 10,
                                        .regsPerBlock = 65536,
                                        .warpSize = 32,
                                        .maxThreadsPerBlock = 1024,
                                        .maxThreadsDim = {1024, 1024, 64},
                                        .maxGridSize = {2147483647, 65535, 65535},
                                        .totalConstMem = 65536,
                                        .major = EMU_MAJOR,
                                        .minor = EMU_MINOR,
                                        .multiProcessorCount = EMU_PROCESSORS,
                                        .canMapHostMemory = 1,
                                        .concurrentKernels = 1,
                                        .pciBusID = FIRST_BUS + emu_device_number(device),
                                        .asyncEngineCount = 3,
                                        .unifiedAddressing = 1,
                                        .managedMemory = 1,
                                        .maxThreadsPerMultiProcessor = 2048,
                                        .streamPrioritiesSupported = 1};
  snprintf(properties->name, sizeof(properties->name), "Emulated GPU");
  memcpy(properties->uuid.bytes, "tutti emulated ", 15);
  properties->uuid.bytes[15] = (char)emu_device_number(device);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
  EMU_RUNTIME(EMU_NO_CONTEXT, get_properties(properties, device));
}

static cudaError_t get_bus_id(char *id, int length, int device)
{
  if (id == NULL || emu_primary(device) == NULL) return cudaErrorInvalidValue;
  if (length < 13) return cudaErrorInvalidValue;
  snprintf(id, (size_t)length, "0000:%02X:00.0", (unsigned)(FIRST_BUS + emu_device_number(device)));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device)
{
  EMU_RUNTIME(EMU_NO_CONTEXT, get_bus_id(id, length, device));
}

/* The driver's numbers of attributes are the runtime's. What is not said here it is not able to do. */
cudaError_t emu_device_attribute(int *value, int attribute, int device)
{
  if (value == NULL || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return cudaErrorInvalidValue;
  if (emu_primary(device) == NULL) return cudaErrorInvalidDevice;
  *value = 0;
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    *value = 1024;
    break;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
    *value = 32;
    break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    *value = EMU_PROCESSORS;
    break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    *value = EMU_MAJOR;
    break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    *value = EMU_MINOR;
    break;
  case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
    *value = FIRST_BUS + emu_device_number(device);
    break;
  case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
  case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
  case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
  case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    *value = 1;
    break;
  case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
    *value = emu_has_multicast();
    break;
  default:
    break;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
  EMU_RUNTIME(EMU_NO_CONTEXT, emu_device_attribute(value, (int)attribute, device));
}

/* ---- Peers ---- */

static cudaError_t can_access(int *can, int device, int peer)
{
  if (emu_primary(device) == NULL || emu_primary(peer) == NULL) return cudaErrorInvalidDevice;
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
  EMU_RUNTIME(EMU_NO_CONTEXT, can_access(can, device, peer));
}

/* Kernels reach all memory here, whether they may or not: that they were given access is not seen. */
static cudaError_t enable_peer(int peer, unsigned flags)
{
  if (flags != 0) return cudaErrorInvalidValue;
  if (emu_primary(peer) == NULL || peer == emu_device()) return cudaErrorInvalidDevice;
  if (emu_thread_context->reaches[peer]) return cudaErrorPeerAccessAlreadyEnabled;
  emu_thread_context->reaches[peer] = true;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
  EMU_RUNTIME(EMU_CONTEXT, enable_peer(peer, flags));
}

static cudaError_t disable_peer(int peer)
{
  if (emu_primary(peer) == NULL) return cudaErrorInvalidDevice;
  if (!emu_thread_context->reaches[peer]) return cudaErrorPeerAccessNotEnabled;
  emu_thread_context->reaches[peer] = false;
  return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
  EMU_RUNTIME(EMU_CONTEXT, disable_peer(peer));
}
