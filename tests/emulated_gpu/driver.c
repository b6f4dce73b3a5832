/* The driver's calls for contexts, devices and streams. */
#include "devices.h"
#include "gpu.h"

CUresult cuInit(unsigned flags)
{
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return (CUresult)emu_leave(emu_enter(EMU_NO_CONTEXT));
}

CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
  return (CUresult)cudaDeviceGetPCIBusId(id, length, device);
}

static CUresult get_current(CUcontext *context)
{
  *context = emu_thread_context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
  EMU_DRIVER(EMU_NO_CONTEXT, get_current(context));
}

static CUresult set_current(CUcontext context)
{
  for (int d = 0; context != NULL && context != emu_primary(d); d++)
    if (d >= emu_device_count()) return CUDA_ERROR_INVALID_CONTEXT;
  emu_thread_context = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
  EMU_DRIVER(EMU_NO_CONTEXT, set_current(context));
}

static CUresult get_device(CUdevice *device)
{
  *device = emu_device();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
  EMU_DRIVER(EMU_CONTEXT, get_device(device));
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
  EMU_DRIVER(EMU_NO_CONTEXT, (CUresult)emu_device_attribute(value, (int)attribute, device));
}

static CUresult get_stream_context(CUstream handle, CUcontext *context)
{
  struct CUstream_st *stream;
  CUresult result = (CUresult)emu_stream_find(handle, &stream);
  if (result == CUDA_SUCCESS) *context = emu_primary(stream->device);
  return result;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
  EMU_DRIVER(EMU_CONTEXT, get_stream_context(stream, context));
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
  struct CUstream_st *stream;
  cudaError_t error = emu_stream_find(handle, &stream);
  if (error == cudaSuccess) error = emu_legacy_allowed(stream, false);
  if (error != cudaSuccess) return (CUresult)error;
  *status = stream->capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
  EMU_DRIVER(EMU_CONTEXT, is_capturing(stream, status));
}
