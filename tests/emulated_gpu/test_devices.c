/* Devices and contexts. */
#include "test_gpu.h"

#include <stdlib.h>
#include <string.h>

static int count(const char *gpus, const char *visible)
{
  int devices = -1;
  setenv("EMULATED_GPUS", gpus, 1);
  if (visible != NULL) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
  OK(cudaGetDeviceCount(&devices));
  return devices;
}

START_TEST(as_many_as_are_wanted)
{
  struct cudaDeviceProp a, b;
  char a_bus[32], b_bus[32];
  int can;
  ck_assert_int_eq(count("16", NULL), 16);
  OK(cudaGetDeviceProperties(&a, 0));
  OK(cudaGetDeviceProperties(&b, 15));
  ck_assert_mem_ne(&a.uuid, &b.uuid, sizeof(a.uuid));
  ck_assert_int_eq(10 * a.major + a.minor, 90);
  OK(cudaDeviceGetPCIBusId(a_bus, sizeof(a_bus), 0));
  OK(cudaDeviceGetPCIBusId(b_bus, sizeof(b_bus), 15));
  ck_assert_str_ne(a_bus, b_bus);
  OK(cudaDeviceCanAccessPeer(&can, 0, 15));
  ck_assert_int_eq(can, 1);
  FAILS(cudaDeviceCanAccessPeer(&can, 0, 16), cudaErrorInvalidDevice);
  FAILS(cudaGetDeviceProperties(&a, 16), cudaErrorInvalidDevice);
}
END_TEST

START_TEST(some_are_hidden)
{
  struct cudaDeviceProp properties;
  ck_assert_int_eq(count("4", "3,1,7,0"), 2);
  OK(cudaGetDeviceProperties(&properties, 0));
  ck_assert_int_eq(properties.uuid.bytes[15], 3);
}
END_TEST

START_TEST(none)
{
  int devices = 1;
  setenv("EMULATED_GPUS", "0", 1);
  FAILS(cudaGetDeviceCount(&devices), cudaErrorNoDevice);
  ck_assert_int_eq(devices, 0);
}
END_TEST

START_TEST(a_number_that_is_none)
{
  int devices;
  setenv("EMULATED_GPUS", _i == 0 ? "17" : "many", 1);
  FAILS(cudaGetDeviceCount(&devices), cudaErrorInitializationError);
}
END_TEST

START_TEST(contexts)
{
  CUcontext context, other;
  CUdevice device;
  CUstreamCaptureStatus status;
  DRIVER_FAILS(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
  ck_assert_int_eq(count("2", NULL), 2);
  DRIVER_OK(cuCtxGetCurrent(&context));
  ck_assert_ptr_null(context);
  DRIVER_FAILS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
  OK(cudaSetDevice(1));
  DRIVER_OK(cuCtxGetCurrent(&context));
  DRIVER_OK(cuCtxGetDevice(&device));
  ck_assert_int_eq(device, 1);
  cudaStream_t stream = new_stream();
  DRIVER_OK(cuCtxSetCurrent(NULL));
  OK(cudaFree(NULL)); /* without a choice it is device 0 */
  DRIVER_OK(cuCtxGetDevice(&device));
  ck_assert_int_eq(device, 0);
  DRIVER_OK(cuStreamGetCtx(stream, &other));
  ck_assert_ptr_eq(context, other);
  DRIVER_OK(cuStreamIsCapturing(stream, &status));
  ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
  DRIVER_FAILS(cuCtxSetCurrent((CUcontext)&status), CUDA_ERROR_INVALID_CONTEXT);
  OK(cudaStreamDestroy(stream));
  DRIVER_FAILS(cuStreamGetCtx(stream, &other), CUDA_ERROR_INVALID_HANDLE);
}
END_TEST

START_TEST(peers)
{
  ck_assert_int_eq(count("2", NULL), 2);
  OK(cudaDeviceEnablePeerAccess(1, 0));
  FAILS(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  FAILS(cudaDeviceEnablePeerAccess(0, 0), cudaErrorInvalidDevice);
  FAILS(cudaDeviceEnablePeerAccess(2, 0), cudaErrorInvalidDevice);
}
END_TEST

START_TEST(names)
{
  const char *name;
  ck_assert_str_eq(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady");
  ck_assert_int_gt(strlen(cudaGetErrorString(cudaErrorNotReady)), 0);
  DRIVER_OK(cuGetErrorName(CUDA_ERROR_INVALID_HANDLE, &name));
  ck_assert_str_eq(name, "CUDA_ERROR_INVALID_HANDLE");
  DRIVER_FAILS(cuGetErrorName((CUresult)12345, &name), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

void add_devices(Suite *suite);
void add_devices(Suite *suite)
{
  TCase *tc = tcase_create("devices");
  tcase_set_timeout(tc, 20);
  tcase_add_checked_fixture(tc, setup, NULL);
  tcase_add_test(tc, as_many_as_are_wanted);
  tcase_add_test(tc, some_are_hidden);
  tcase_add_test(tc, none);
  tcase_add_loop_test(tc, a_number_that_is_none, 0, 2);
  tcase_add_test(tc, contexts);
  tcase_add_test(tc, peers);
  tcase_add_test(tc, names);
  suite_add_tcase(suite, tc);
}
