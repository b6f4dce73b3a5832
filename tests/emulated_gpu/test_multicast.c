/* Multicast objects: who may do what when, and what an address of one stands for. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include "emulated.h"
#include "test_gpu.h"
#include "threads.h"

enum { TEAM = 2 };
static const CUmulticastObjectProp wanted = {
    .numDevices = TEAM, .size = EMU_GRANULARITY, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};

static CUmemGenericAllocationHandle memory_of(int device, size_t bytes)
{
  CUmemGenericAllocationHandle memory;
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  DRIVER_OK(cuMemCreate(&memory, bytes, &properties, 0));
  return memory;
}

static CUdeviceptr map(CUmemGenericAllocationHandle memory, int device)
{
  CUdeviceptr at;
  const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  DRIVER_OK(cuMemAddressReserve(&at, EMU_GRANULARITY, 0, 0, 0));
  DRIVER_OK(cuMemMap(at, EMU_GRANULARITY, 0, memory, 0));
  DRIVER_OK(cuMemSetAccess(at, EMU_GRANULARITY, &access, 1));
  return at;
}

static CUmemGenericAllocationHandle make(void)
{
  CUmemGenericAllocationHandle team;
  int value;
  setenv("EMULATED_MULTICAST", "1", 1);
  OK(cudaSetDevice(0));
  DRIVER_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
  ck_assert_int_eq(value, 1);
  DRIVER_OK(cuMulticastCreate(&team, &wanted));
  return team;
}

START_TEST(steps)
{
  CUmemGenericAllocationHandle team = make(), again, copies[TEAM];
  CUdeviceptr own[TEAM], all;
  void *found[EMU_MAX_DEVICES];
  int fd, ends[2];
  for (int d = 0; d < TEAM; d++) copies[d] = memory_of(d, EMU_GRANULARITY);
  DRIVER_FAILS(cuMulticastBindMem(team, 0, copies[0], 0, EMU_GRANULARITY, 0), CUDA_ERROR_INVALID_VALUE);
  DRIVER_OK(cuMulticastAddDevice(team, 0));
  DRIVER_FAILS(cuMulticastAddDevice(team, 0), CUDA_ERROR_INVALID_VALUE);
  DRIVER_FAILS(cuMulticastBindMem(team, 0, copies[0], 0, EMU_GRANULARITY, 0), CUDA_ERROR_NOT_READY);
  DRIVER_OK(cuMemExportToShareableHandle(&fd, team, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  DRIVER_OK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  DRIVER_OK(cuMulticastAddDevice(again, 1)); /* another handle of the same object */
  DRIVER_FAILS(cuMulticastBindMem(team, 0, copies[0], 0, EMU_GRANULARITY / 2, 0), CUDA_ERROR_INVALID_VALUE);
  DRIVER_FAILS(cuMulticastBindMem(team, 0, team, 0, EMU_GRANULARITY, 0), CUDA_ERROR_INVALID_VALUE);
  for (int d = 0; d < TEAM; d++) {
    DRIVER_OK(cuMulticastBindMem(d ? again : team, 0, copies[d], 0, EMU_GRANULARITY, 0));
    DRIVER_FAILS(cuMulticastBindMem(team, 0, copies[d], 0, EMU_GRANULARITY, 0), CUDA_ERROR_INVALID_VALUE);
    own[d] = map(copies[d], d);
  }
  all = map(team, 0);
  ck_assert_int_eq(pipe(ends), 0);
  ck_assert(write(ends[1], (const void *)all, 1) < 0 && errno == EFAULT); /* it is no memory */
  ck_assert_int_eq(emu_copies((const void *)(all + 64), found, EMU_MAX_DEVICES), TEAM);
  for (int d = 0; d < TEAM; d++) {
    *(int *)found[d] = 10 + d;
    ck_assert_int_eq(((const int *)own[d])[16], 10 + d);
  }
  DRIVER_FAILS(cuMulticastUnbind(team, 1, 0, EMU_GRANULARITY / 2), CUDA_ERROR_INVALID_VALUE);
  DRIVER_OK(cuMulticastUnbind(team, 1, 0, EMU_GRANULARITY));
  DRIVER_FAILS(cuMulticastUnbind(team, 1, 0, EMU_GRANULARITY), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

/* There is no copy of a device's (0); the address is another one (1). */
START_TEST(no_copies)
{
  CUmemGenericAllocationHandle team = make();
  void *found[EMU_MAX_DEVICES];
  DRIVER_OK(cuMulticastAddDevice(team, 0));
  CUdeviceptr at = map(_i == 1 ? memory_of(0, EMU_GRANULARITY) : team, 0);
  emu_copies((const void *)at, found, EMU_MAX_DEVICES);
}
END_TEST

START_TEST(none)
{
  CUmemGenericAllocationHandle team;
  size_t granularity;
  int value;
  unsetenv("EMULATED_MULTICAST");
  OK(cudaSetDevice(0));
  DRIVER_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
  ck_assert_int_eq(value, 0);
  DRIVER_FAILS(cuMulticastCreate(&team, &wanted), CUDA_ERROR_NOT_SUPPORTED);
  ck_assert_int_eq(cuMulticastGetGranularity(&granularity, &wanted, CU_MULTICAST_GRANULARITY_MINIMUM),
                   CUDA_ERROR_NOT_SUPPORTED);
}
END_TEST

START_TEST(neither_on_nor_off)
{
  int value;
  setenv("EMULATED_MULTICAST", "yes", 1);
  OK(cudaSetDevice(0));
  cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0);
}
END_TEST

void add_multicast(Suite *suite)
{
  TCase *tests = tcase_create("multicast");
  tcase_set_timeout(tests, 120);
  tcase_add_checked_fixture(tests, setup, NULL);
  tcase_add_test(tests, steps);
  tcase_add_test(tests, none);
  tcase_add_test_raise_signal(tests, neither_on_nor_off, SIGABRT);
  tcase_add_loop_test_raise_signal(tests, no_copies, SIGABRT, 0, 2);
  suite_add_tcase(suite, tests);
}
