/* Memory with a multicast address: what the driver has for it, and the steps in which ranks make it (tutti/device.h).
 *
 * The multicast object is one handle on all ranks: who creates it exports it, as cuMem's memory is exported. Each rank
 * adds its device, allocates its copy, binds that to the object and maps both, the copy and the object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/mapping.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/multicast.h"
#include "kernels/cuda/state.h"

struct tt_device_team {
  size_t bytes, granularity;             /* of a copy, rounded up */
  CUmemGenericAllocationHandle object;   /* multicast */
  CUmemGenericAllocationHandle copy;     /* this rank's, once `copied` */
  CUmemAllocationHandleType exported_as; /* as which the object, and so what is bound to it, can be exported */
  bool added, copied, bound;
  void *own, *all;
};

/* ---- What a device can do ---- */

static bool has_attribute(int device, CUdevice_attribute attribute)
{
  int value = 0;
  return tt_cuda_driver()->cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

/* Which instructions there are (multimem.ld_reduce): none for products, nor for bytes. */
static void fill_reduces(uint8_t reduces[16])
{
  const uint8_t sum = 1u << ncclSum, all = sum | 1u << ncclMin | 1u << ncclMax;
  static const int whole[] = {ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclBfloat16};
  for (size_t i = 0; i < TT_COUNT(whole); i++) reduces[whole[i]] = all;
  reduces[ncclFloat32] = reduces[ncclFloat64] = sum;
}

static void find_obstacle(int index, char *why, size_t size)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  bool vmm;
  if (driver->cuMulticastCreate == NULL || driver->cuMulticastAddDevice == NULL || driver->cuMulticastBindMem == NULL ||
      driver->cuMulticastUnbind == NULL || driver->cuMulticastGetGranularity == NULL)
    snprintf(why, size, "its CUDA driver has no multicast functions; one of CUDA 12.1 or later has");
  else if (!has_attribute(index, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED))
    snprintf(why, size, "GPU %d does not support multicast", index);
  else if (!tt_cuda_nvls_is_built())
    snprintf(why, size, "this library has no kernels for it (TUTTI_CUDA_ARCHITECTURES has nothing from 90 on)");
  else if (tt_cuda_memory_choose(index, &vmm) != ncclSuccess || !vmm)
    snprintf(why, size, "GPU %d allocates without cuMem (NCCL_CUMEM_ENABLE)", index);
}

ncclResult_t tt_cuda_team_check(int index, struct tt_device_multicast *out)
{
  struct tt_device_multicast own = {.size = out->size};
  find_obstacle(index, own.why, sizeof(own.why));
  fill_reduces(own.reduces);
  own.fabric = has_attribute(index, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
  memcpy(out, &own, TT_MIN(out->size, sizeof(own)));
  return ncclSuccess;
}

/* ---- The object ---- */

/* Sizes follow from the configuration, and so are the same on all ranks. */
static ncclResult_t describe(const struct tt_device_team_config *config, struct tt_device_team *team,
                             CUmulticastObjectProp *wanted)
{
  team->exported_as =
      config->kind == TT_EXPORT_FABRIC ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  *wanted = (CUmulticastObjectProp){
      .numDevices = config->devices, .size = config->bytes, .handleTypes = (unsigned long long)team->exported_as};
  TT_TRY(tt_cuda_driver_check(
      tt_cuda_driver()->cuMulticastGetGranularity(&team->granularity, wanted, CU_MULTICAST_GRANULARITY_RECOMMENDED),
      "asking for the granularity of multicast memory"));
  team->bytes = (size_t)(config->bytes + team->granularity - 1) / team->granularity * team->granularity;
  wanted->size = team->bytes;
  return ncclSuccess;
}

/* In one process the handle's number is enough: an import makes a reference of its own. */
static ncclResult_t show(const struct tt_device_team *team, struct tt_device_export *out)
{
  _Static_assert(sizeof(CUmemFabricHandle) <= sizeof(out->handle), "the handle fits");
  switch (out->kind) {
  case TT_EXPORT_LOCAL:
    memcpy(out->handle, &team->object, sizeof(team->object));
    return ncclSuccess;
  case TT_EXPORT_FD:
    return tt_cuda_export_fd(team->object, out);
  default:
    return tt_cuda_driver_check(
        tt_cuda_driver()->cuMemExportToShareableHandle(out->handle, team->object, CU_MEM_HANDLE_TYPE_FABRIC, 0),
        "making a fabric handle for multicast memory");
  }
}

static ncclResult_t create(const struct tt_device_team_config *config, struct tt_device_export *out,
                           struct tt_device_team *team)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUmulticastObjectProp wanted;
  char doing[96];
  TT_TRY(describe(config, team, &wanted));
  snprintf(doing, sizeof(doing), "creating multicast memory of %zu bytes for %u GPUs", team->bytes, config->devices);
  TT_TRY(tt_cuda_driver_check(driver->cuMulticastCreate(&team->object, &wanted), doing));
  *out = (struct tt_device_export){.kind = config->kind, .fd = -1, .bytes = team->bytes};
  ncclResult_t result = show(team, out);
  if (result != ncclSuccess) driver->cuMemRelease(team->object);
  return result;
}

static ncclResult_t import_from(void *shareable, CUmemAllocationHandleType type, struct tt_device_team *team)
{
  return tt_cuda_driver_check(tt_cuda_driver()->cuMemImportFromShareableHandle(&team->object, shareable, type),
                              "importing multicast memory");
}

static ncclResult_t import(const struct tt_device_team_config *config, const struct tt_device_export *in,
                           struct tt_device_team *team)
{
  CUmulticastObjectProp wanted;
  CUmemGenericAllocationHandle theirs;
  struct tt_device_export shown = *in;
  TT_TRY(describe(config, team, &wanted));
  if (in->bytes != team->bytes)
    return TT_FAIL(ncclRemoteError, "a team's copies have %llu bytes where they were made and %zu here",
                   (unsigned long long)in->bytes, team->bytes);
  if (in->kind == TT_EXPORT_FABRIC) return import_from((void *)(uintptr_t)in->handle, CU_MEM_HANDLE_TYPE_FABRIC, team);
  if (in->kind == TT_EXPORT_LOCAL) {
    memcpy(&theirs, in->handle, sizeof(theirs));
    TT_TRY(tt_cuda_export_fd(theirs, &shown));
  }
  ncclResult_t result = import_from((void *)(intptr_t)shown.fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, team);
  if (in->kind == TT_EXPORT_LOCAL) close(shown.fd);
  return result;
}

/* ---- The steps ---- */

/* Either creates or imports. */
static ncclResult_t begin(struct tt_device_context *context, const struct tt_device_team_config *config,
                          const struct tt_device_export *in, struct tt_device_export *out, struct tt_device_team **team)
{
  struct tt_cuda_enter enter;
  struct tt_device_team *made;
  *team = NULL;
  TT_TRY(TT_CALLOC(&made, 1));
  ncclResult_t result = tt_cuda_enter(context, &enter);
  if (result == ncclSuccess) {
    result = in != NULL ? import(config, in, made) : create(config, out, made);
    tt_cuda_leave(&enter);
  }
  if (result == ncclSuccess)
    *team = made;
  else
    free(made);
  return result;
}

ncclResult_t tt_cuda_team_create(struct tt_device_context *context, const struct tt_device_team_config *config,
                                 struct tt_device_export *out, struct tt_device_team **team)
{
  *out = (struct tt_device_export){.kind = TT_EXPORT_NONE, .fd = -1};
  return begin(context, config, NULL, out, team);
}

ncclResult_t tt_cuda_team_import(struct tt_device_context *context, const struct tt_device_team_config *config,
                                 const struct tt_device_export *in, struct tt_device_team **team)
{
  return begin(context, config, in, NULL, team);
}

ncclResult_t tt_cuda_team_add(struct tt_device_context *context, struct tt_device_team *team)
{
  struct tt_cuda_enter enter;
  TT_TRY(tt_cuda_enter(context, &enter));
  ncclResult_t result = tt_cuda_driver_check(tt_cuda_driver()->cuMulticastAddDevice(team->object, context->device),
                                             "adding a GPU to multicast memory");
  team->added = result == ncclSuccess;
  tt_cuda_leave(&enter);
  return result;
}

static ncclResult_t make_copy(struct tt_device_context *context, struct tt_device_team *team)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = team->exported_as | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->device}};
  char doing[96];
  snprintf(doing, sizeof(doing), "allocating %zu bytes for multicast on GPU %d", team->bytes, context->device);
  TT_TRY(tt_cuda_driver_check(driver->cuMemCreate(&team->copy, team->bytes, &wanted, 0), doing));
  team->copied = true;
  TT_TRY(tt_cuda_map_handle(context, team->copy, team->bytes, team->granularity, &team->own));
  TT_TRY(tt_cuda_zero(context, team->own, team->bytes));
  TT_TRY(tt_cuda_driver_check(driver->cuMulticastBindMem(team->object, 0, team->copy, 0, team->bytes, 0),
                              "binding a GPU's memory to a multicast address"));
  team->bound = true;
  return tt_cuda_map_handle(context, team->object, team->bytes, team->granularity, &team->all);
}

ncclResult_t tt_cuda_team_bind(struct tt_device_context *context, struct tt_device_team *team, void **own, void **all)
{
  struct tt_cuda_enter enter;
  TT_TRY(tt_cuda_enter(context, &enter));
  ncclResult_t result = make_copy(context, team);
  if (result == ncclSuccess) result = tt_cuda_nvls_load();
  tt_cuda_leave(&enter);
  *own = team->own;
  *all = team->all;
  return result;
}

static void leave_entered(struct tt_device_context *context, struct tt_device_team *team)
{
  const struct tt_cuda_driver *driver = tt_cuda_driver();
  if (context->state->side_stuck) return; /* the device may still write zeros */
  if (team->all != NULL) tt_cuda_unmap_handle(team->all, team->bytes);
  if (team->bound)
    tt_cuda_driver_check(driver->cuMulticastUnbind(team->object, context->device, 0, team->bytes),
                         "unbinding a GPU's memory from a multicast address");
  if (team->own != NULL) tt_cuda_unmap_handle(team->own, team->bytes);
  if (team->copied) tt_cuda_driver_check(driver->cuMemRelease(team->copy), "releasing memory");
  tt_cuda_driver_check(driver->cuMemRelease(team->object), "releasing multicast memory");
}

void tt_cuda_team_leave(struct tt_device_context *context, struct tt_device_team *team)
{
  struct tt_cuda_enter enter;
  if (tt_cuda_enter(context, &enter) == ncclSuccess) {
    leave_entered(context, team);
    tt_cuda_leave(&enter);
  }
  free(team);
}
