/* Memory: allocations, what copies may touch, cuMem's ranges and rights, what pointers point to. */
#include "test_gpu.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "grid.h"

enum { PIECE = 2 << 20 };

START_TEST(copies_stay_inside)
{
  char *device, *host, pageable[8];
  OK(cudaMalloc((void **)&device, 1000));
  OK(cudaHostAlloc((void **)&host, 1000, cudaHostAllocMapped));
  OK(cudaMemset(device, 1, 1000));
  FAILS(cudaMemset(device, 1, 1001), cudaErrorInvalidValue);
  FAILS(cudaMemset(device + 1000, 1, 1), cudaErrorInvalidValue);
  FAILS(cudaMemset(pageable, 1, 1), cudaErrorInvalidValue);
  FAILS(cudaMemcpy(host, device, 1001, cudaMemcpyDefault), cudaErrorInvalidValue);
  FAILS(cudaMemcpy(host + 1, device, 1000, cudaMemcpyDefault), cudaErrorInvalidValue);
  FAILS(cudaMemcpy(pageable, device, 8, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  FAILS(cudaMemcpy(pageable, device, 8, (enum cudaMemcpyKind)9), cudaErrorInvalidMemcpyDirection);
  OK(cudaMemcpy(pageable, device + 992, 8, cudaMemcpyDeviceToHost));
  ck_assert_int_eq(pageable[7], 1);
  OK(cudaFree(device));
  FAILS(cudaMemcpy(pageable, device, 8, cudaMemcpyDefault), cudaErrorInvalidValue);
  FAILS(cudaFree(device), cudaErrorInvalidValue);
  FAILS(cudaFree(host), cudaErrorInvalidValue);
  OK(cudaFreeHost(host));
  FAILS(cudaFreeHost(host), cudaErrorInvalidValue);
  OK(cudaFree(NULL));
}
END_TEST

START_TEST(memory_of_devices_has_an_end)
{
  size_t before, after, total;
  void *memory, *more;
  OK(cudaMemGetInfo(&before, &total));
  ck_assert_uint_eq(before, total);
  OK(cudaMalloc(&memory, total / 2));
  OK(cudaMemGetInfo(&after, &total));
  ck_assert_uint_eq(after, total - total / 2);
  FAILS(cudaMalloc(&more, total / 2 + 1), cudaErrorMemoryAllocation);
  FAILS(cudaMalloc(&more, SIZE_MAX), cudaErrorMemoryAllocation);
  ck_assert_ptr_null(more);
  OK(cudaSetDevice(1));
  OK(cudaMalloc(&more, total / 2 + 1));
  OK(cudaSetDevice(0));
  OK(cudaFree(memory));
  OK(cudaMemGetInfo(&after, &total));
  ck_assert_uint_eq(after, total);
}
END_TEST

/* In devices' memory, of which the pages are then others, and in the host's. */
START_TEST(zeros)
{
  enum { BYTES = 1 << 20 };
  char *memory[2], *seen = malloc(BYTES);
  OK(cudaMalloc((void **)&memory[0], BYTES));
  OK(cudaHostAlloc((void **)&memory[1], BYTES, 0));
  for (int i = 0; i < 2; i++) {
    OK(cudaMemset(memory[i], 1, BYTES));
    OK(cudaMemset(memory[i] + 5, 0, BYTES - 12));
    OK(cudaMemcpy(seen, memory[i], BYTES, cudaMemcpyDefault));
    for (int at = 0; at < BYTES; at++) ck_assert_int_eq(seen[at], at < 5 || at >= BYTES - 7);
  }
  free(seen);
}
END_TEST

/* ---- Faults of kernels ---- */

static const char touch_kernel;

static void touch(const void *address, const void *arguments)
{
  volatile char *at;
  (void)address;
  memcpy((void *)&at, arguments, sizeof(at));
  *at = 1;
}

/* What a process that touches it on a GPU says on its end. */
static void die_of(size_t offset, bool freed, char *words, size_t size)
{
  int ends[2], status;
  ck_assert_int_eq(pipe(ends), 0);
  pid_t pid = fork();
  if (pid == 0) {
    char *memory;
    dup2(ends[1], STDERR_FILENO);
    signal(SIGSEGV, SIG_DFL);
    emu_kernel_register(
        &(struct emu_kernel){.address = &touch_kernel, .call = touch, .bytes = sizeof(char *), .most_threads = 32});
    cudaMalloc((void **)&memory, 512);
    void *arguments[] = {&memory};
    for (int time = 0; time < 2; time++) { /* what a first launch allocates must not come to lie where `memory` was */
      cudaLaunchKernel(&touch_kernel, (dim3){1, 1, 1}, (dim3){32, 1, 1}, arguments, 0, NULL);
      cudaDeviceSynchronize();
      if (time == 0 && freed) cudaFree(memory);
      if (time == 0) memory += offset;
    }
    _exit(0);
  }
  close(ends[1]);
  ssize_t length = read(ends[0], words, size - 1);
  words[length > 0 ? length : 0] = 0;
  close(ends[0]);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert(!WIFEXITED(status) || WEXITSTATUS(status) != 0); /* sanitizers end it in their own way */
}

START_TEST(faults_are_explained)
{
  char words[512];
  die_of(512 + 3, false, words, sizeof(words));
  ck_assert_ptr_nonnull(strstr(words, ": 3 bytes behind the end of 512 bytes at "));
  die_of(7, true, words, sizeof(words));
  ck_assert_ptr_nonnull(strstr(words, "of GPU 0, which were freed or unmapped"));
}
END_TEST

/* What is behind an allocation nobody may touch. */
START_TEST(a_write_beyond_the_end)
{
  volatile char *device;
  signal(SIGSEGV, SIG_DFL); /* sanitizers have ends of their own */
  OK(cudaMalloc((void **)&device, 1024));
  device[1023] = 1;
  device[1024] = 1;
}
END_TEST

START_TEST(registered_memory)
{
  char *host = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct cudaPointerAttributes attributes;
  void *at, *device;
  FAILS(cudaHostGetDevicePointer(&at, host, 0), cudaErrorInvalidValue);
  OK(cudaPointerGetAttributes(&attributes, host));
  ck_assert_int_eq(attributes.type, cudaMemoryTypeUnregistered);
  OK(cudaHostRegister(host, 4096, cudaHostRegisterMapped | cudaHostRegisterPortable));
  FAILS(cudaHostRegister(host, 8192, 0), cudaErrorHostMemoryAlreadyRegistered);
  OK(cudaHostRegister(host + 4096, 4096, 0));
  OK(cudaHostGetDevicePointer(&at, host + 8191, 0));
  ck_assert_ptr_eq(at, host + 8191);
  OK(cudaPointerGetAttributes(&attributes, host + 1));
  ck_assert_int_eq(attributes.type, cudaMemoryTypeHost);
  OK(cudaMalloc(&device, 8192));
  OK(cudaMemset(device, 3, 8192));
  OK(cudaMemcpy(host, device, 8192, cudaMemcpyDeviceToHost)); /* through both */
  ck_assert_int_eq(host[8191], 3);
  FAILS(cudaMemcpy(host, device, 8193, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  FAILS(cudaHostUnregister(host + 1), cudaErrorHostMemoryNotRegistered);
  OK(cudaHostUnregister(host));
  FAILS(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
  munmap(host, 4 * 4096);
  FAILS(cudaHostRegister(host, 4096, 0), cudaErrorInvalidValue);
}
END_TEST

/* ---- cuMem ---- */

static CUmemGenericAllocationHandle create(int device)
{
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  CUmemGenericAllocationHandle handle;
  DRIVER_OK(cuMemCreate(&handle, PIECE, &properties, 0));
  return handle;
}

static CUresult allow(CUdeviceptr at, size_t bytes, int device, CUmemAccess_flags flags)
{
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = flags};
  return cuMemSetAccess(at, bytes, &access, 1);
}

static CUdeviceptr map_two(CUmemGenericAllocationHandle handles[2])
{
  CUdeviceptr at;
  DRIVER_OK(cuMemAddressReserve(&at, 3 * PIECE, 0, 0, 0));
  for (int i = 0; i < 2; i++) {
    handles[i] = create(0);
    DRIVER_OK(cuMemMap(at + (size_t)i * PIECE, PIECE, 0, handles[i], 0));
  }
  return at;
}

START_TEST(ranges_of_addresses)
{
  CUmemGenericAllocationHandle handles[2], same;
  CUdeviceptr at, start, other;
  CUmemLocation second = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
  unsigned long long flags;
  size_t bytes;
  char *host;
  OK(cudaSetDevice(0));
  OK(cudaHostAlloc((void **)&host, 2 * PIECE, 0));
  DRIVER_FAILS(cuMemAddressReserve(&at, PIECE + 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  at = map_two(handles);
  ck_assert_uint_eq(at % PIECE, 0);
  DRIVER_FAILS(cuMemMap(at, PIECE, 0, handles[1], 0), CUDA_ERROR_INVALID_VALUE);
  DRIVER_FAILS(cuMemMap(at + 3 * (size_t)PIECE, PIECE, 0, handles[1], 0), CUDA_ERROR_INVALID_VALUE);
  FAILS(cudaMemcpy(host, (void *)at, 1, cudaMemcpyDefault), cudaErrorInvalidValue); /* nobody has access */
  DRIVER_OK(allow(at, 2 * PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  DRIVER_FAILS(allow(at, 3 * PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_VALUE);
  DRIVER_FAILS(allow(at, PIECE, 2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_DEVICE);
  DRIVER_OK(cuMemGetAccess(&flags, &second, at));
  ck_assert_uint_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  OK(cudaMemset((void *)at, 5, 2 * PIECE));
  OK(cudaMemcpy(host, (void *)at, 2 * PIECE, cudaMemcpyDefault));
  ck_assert_int_eq(host[2 * PIECE - 1], 5);
  FAILS(cudaMemset((void *)at, 5, 2 * PIECE + 1), cudaErrorInvalidValue);

  DRIVER_OK(cuMemGetAddressRange(&start, &bytes, at + PIECE + 7));
  ck_assert_uint_eq(start, at + PIECE);
  ck_assert_uint_eq(bytes, PIECE);
  DRIVER_OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + PIECE + 7));
  ck_assert_uint_eq(start, at);
  DRIVER_OK(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + PIECE + 7));
  ck_assert_uint_eq(bytes, 3 * PIECE);

  /* The same memory at another place, which stays when the first is gone. */
  DRIVER_OK(cuMemRetainAllocationHandle(&same, (void *)(at + 5)));
  ck_assert_uint_eq(same, handles[0]);
  DRIVER_OK(cuMemAddressReserve(&other, PIECE, 0, 0, 0));
  DRIVER_OK(cuMemMap(other, PIECE, 0, same, 0));
  DRIVER_OK(allow(other, PIECE, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  for (int i = 0; i < 2; i++) DRIVER_OK(cuMemRelease(handles[i]));
  DRIVER_OK(cuMemRelease(same));
  DRIVER_FAILS(cuMemRelease(same), CUDA_ERROR_INVALID_VALUE);
  DRIVER_FAILS(cuMemAddressFree(at, 3 * PIECE), CUDA_ERROR_INVALID_VALUE); /* it is still mapped */
  DRIVER_FAILS(cuMemUnmap(at, PIECE / 2), CUDA_ERROR_INVALID_VALUE);
  DRIVER_OK(cuMemUnmap(at, 2 * PIECE));
  DRIVER_FAILS(cuMemAddressFree(at, PIECE), CUDA_ERROR_INVALID_VALUE);
  DRIVER_OK(cuMemAddressFree(at, 3 * PIECE));
  OK(cudaMemcpy(host, (void *)other, 1, cudaMemcpyDefault));
  ck_assert_int_eq(host[0], 5);
  size_t left, total;
  OK(cudaMemGetInfo(&left, &total));
  ck_assert_uint_eq(total - left, PIECE);
  DRIVER_OK(cuMemUnmap(other, PIECE));
  OK(cudaMemGetInfo(&left, &total));
  ck_assert_uint_eq(total, left);
}
END_TEST

START_TEST(an_access_without_right)
{
  CUmemGenericAllocationHandle handles[2];
  signal(SIGSEGV, SIG_DFL);
  OK(cudaSetDevice(0));
  CUdeviceptr at = map_two(handles);
  DRIVER_OK(allow(at, PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  *(volatile char *)at = 1;
  *(volatile char *)(at + PIECE) = 1;
}
END_TEST

START_TEST(handles_that_are_none)
{
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  CUmemGenericAllocationHandle handle;
  void *at;
  int fd;
  OK(cudaMalloc(&at, 1));
  DRIVER_FAILS(cuMemRetainAllocationHandle(&handle, at), CUDA_ERROR_INVALID_VALUE);
  DRIVER_FAILS(cuMemCreate(&handle, 1000, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  DRIVER_OK(cuMemCreate(&handle, PIECE, &properties, 0));
  DRIVER_FAILS(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
               CUDA_ERROR_INVALID_VALUE); /* it was made without */
  DRIVER_FAILS(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0), CUDA_ERROR_NOT_SUPPORTED);
  DRIVER_FAILS(cuMemImportFromShareableHandle(&handle, (void *)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
               CUDA_ERROR_INVALID_VALUE); /* a file, but none of ours */
  DRIVER_FAILS(cuMemImportFromShareableHandle(&handle, (void *)-1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
               CUDA_ERROR_INVALID_VALUE);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  DRIVER_FAILS(cuMemCreate(&handle, PIECE, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
  properties.location.id = 2;
  DRIVER_FAILS(cuMemCreate(&handle, PIECE, &properties, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

/* ---- Pointers ---- */

START_TEST(what_pointers_point_to)
{
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_BUFFER_ID};
  unsigned long long id = 1, other = 2, types = 1;
  unsigned type = 7, ipc = 7, managed = 7;
  int device = -1;
  void *data[] = {&type, &id}, *memory, *host, *both;
  CUdeviceptr at;
  OK(cudaSetDevice(1));
  OK(cudaMalloc(&memory, 100));
  OK(cudaHostAlloc(&host, 100, 0));
  OK(cudaMallocManaged(&both, 100, cudaMemAttachGlobal));
  at = (CUdeviceptr)memory + 99;
  DRIVER_OK(cuPointerGetAttributes(2, asked, data, at));
  ck_assert_uint_eq(type, CU_MEMORYTYPE_DEVICE);
  DRIVER_OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
  ck_assert_int_eq(device, 1);
  DRIVER_OK(cuPointerGetAttribute(&ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at));
  ck_assert_uint_eq(ipc, 1);
  DRIVER_OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at));
  ck_assert_uint_eq(types, 0);
  OK(cudaFree(memory));
  DRIVER_FAILS(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), CUDA_ERROR_INVALID_VALUE);
  DRIVER_OK(cuPointerGetAttributes(2, asked, data, at)); /* that is no error */
  ck_assert_uint_eq(type, 0);
  OK(cudaMalloc(&memory, 100)); /* perhaps at the same place */
  DRIVER_OK(cuPointerGetAttribute(&other, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)memory));
  ck_assert_uint_ne(id, other);
  DRIVER_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)host));
  ck_assert_uint_eq(type, CU_MEMORYTYPE_HOST);
  DRIVER_OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, (CUdeviceptr)both));
  ck_assert_uint_eq(managed, 1);
}
END_TEST

void add_memory(Suite *suite);
void add_memory(Suite *suite)
{
  TCase *tc = tcase_create("memory");
  tcase_set_timeout(tc, 20);
  tcase_add_checked_fixture(tc, setup, NULL);
  tcase_add_test(tc, copies_stay_inside);
  tcase_add_test(tc, memory_of_devices_has_an_end);
  tcase_add_test(tc, zeros);
  tcase_add_test(tc, faults_are_explained);
  tcase_add_test(tc, registered_memory);
  tcase_add_test(tc, ranges_of_addresses);
  tcase_add_test(tc, handles_that_are_none);
  tcase_add_test(tc, what_pointers_point_to);
  tcase_add_test_raise_signal(tc, a_write_beyond_the_end, SIGSEGV);
  tcase_add_test_raise_signal(tc, an_access_without_right, SIGSEGV);
  suite_add_tcase(suite, tc);
}
