/* Memory that several processes use. Each process starts CUDA for itself, after it was forked. */
#include "test_gpu.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECE = 2 << 20 };

/* Runs the child, and returns the parent's end of a socket to it. */
static int start(void (*child)(int fd), pid_t *pid)
{
  int fds[2];
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
  *pid = fork();
  if (*pid == 0) {
    close(fds[0]);
    child(fds[1]);
    _exit(0);
  }
  close(fds[1]);
  return fds[0];
}

/* A child that failed has said why. */
static void end(int fd, pid_t pid)
{
  int status;
  close(fd);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* In the child, where the framework's own checks do not reach the parent. */
#define MUST(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                                  \
      _exit(1);                                                                                                        \
    }                                                                                                                  \
  } while (0)

static void send_fd(int socket, int fd)
{
  char byte = 0, control[CMSG_SPACE(sizeof(fd))] = {0};
  struct iovec data = {&byte, 1};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(fd));
  memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  ck_assert_int_eq(sendmsg(socket, &message, 0), 1);
}

static int receive_fd(int socket)
{
  int fd;
  char byte, control[CMSG_SPACE(sizeof(fd))];
  struct iovec data = {&byte, 1};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
  MUST(recvmsg(socket, &message, 0) == 1);
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
  return fd;
}

/* ---- By descriptors ---- */

static char *map(CUmemGenericAllocationHandle handle, int device)
{
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr at;
  if (cuMemAddressReserve(&at, PIECE, 0, 0, 0) != CUDA_SUCCESS || cuMemMap(at, PIECE, 0, handle, 0) != CUDA_SUCCESS ||
      cuMemSetAccess(at, PIECE, &access, 1) != CUDA_SUCCESS)
    return NULL;
  return (char *)at;
}

static void use_descriptor(int socket)
{
  CUmemGenericAllocationHandle handle;
  char byte = 1;
  int fd = receive_fd(socket), device = 0;
  MUST(cudaSetDevice(1) == cudaSuccess);
  MUST(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
       CUDA_SUCCESS);
  close(fd);
  char *memory = map(handle, 1);
  MUST(memory != NULL);
  MUST(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)memory) == CUDA_SUCCESS);
  MUST(device == 1);
  MUST(cudaMemset(memory, 9, PIECE) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
  MUST(write(socket, &byte, 1) == 1);
  MUST(read(socket, &byte, 1) == 1); /* the owner has released it */
  MUST(memory[PIECE - 1] == 4);
}

START_TEST(descriptors)
{
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
  CUmemGenericAllocationHandle handle;
  pid_t pid;
  int socket = start(use_descriptor, &pid), fd;
  char byte;
  OK(cudaSetDevice(1));
  DRIVER_OK(cuMemCreate(&handle, PIECE, &properties, 0));
  DRIVER_OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  char *memory = map(handle, 1);
  send_fd(socket, fd);
  close(fd);
  ck_assert_int_eq(read(socket, &byte, 1), 1);
  ck_assert_int_eq(memory[PIECE - 1], 9);
  memory[PIECE - 1] = 4;
  DRIVER_OK(cuMemUnmap((CUdeviceptr)memory, PIECE));
  DRIVER_OK(cuMemRelease(handle));
  ck_assert_int_eq(write(socket, &byte, 1), 1);
  end(socket, pid);
}
END_TEST

/* ---- By CUDA IPC ---- */

static void use_handle(int socket)
{
  cudaIpcMemHandle_t handle;
  char *memory, *same, byte = 1;
  MUST(read(socket, &handle, sizeof(handle)) == sizeof(handle));
  MUST(cudaIpcOpenMemHandle((void **)&memory, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  MUST(cudaIpcOpenMemHandle((void **)&same, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  MUST(same == memory && memory[99] == 7);
  MUST(cudaIpcCloseMemHandle(same) == cudaSuccess);
  MUST(cudaMemset(memory, 8, 100) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
  MUST(cudaMemset(memory, 8, 101) == cudaErrorInvalidValue);
  MUST(cudaFree(memory) == cudaErrorInvalidValue);
  MUST(cudaIpcGetMemHandle(&handle, memory) == cudaErrorInvalidValue); /* it is not its own */
  MUST(cudaIpcCloseMemHandle(memory) == cudaSuccess);
  MUST(cudaIpcCloseMemHandle(memory) == cudaErrorInvalidValue);
  MUST(write(socket, &byte, 1) == 1);
  MUST(read(socket, &handle, sizeof(handle)) == sizeof(handle));
  MUST(cudaIpcOpenMemHandle((void **)&memory, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
}

START_TEST(ipc)
{
  cudaIpcMemHandle_t handle;
  pid_t pid;
  int socket = start(use_handle, &pid);
  char *memory, byte;
  void *none;
  OK(cudaMalloc((void **)&memory, 100));
  OK(cudaMemset(memory, 7, 100));
  OK(cudaDeviceSynchronize());
  OK(cudaIpcGetMemHandle(&handle, memory));
  FAILS(cudaIpcOpenMemHandle(&none, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorDeviceUninitialized);
  ck_assert_int_eq(write(socket, &handle, sizeof(handle)), sizeof(handle));
  ck_assert_int_eq(read(socket, &byte, 1), 1);
  ck_assert_int_eq(memory[99], 8);
  OK(cudaFree(memory));
  ck_assert_int_eq(write(socket, &handle, sizeof(handle)), sizeof(handle)); /* of what was freed */
  end(socket, pid);
}
END_TEST

START_TEST(a_child_cannot_go_on)
{
  void *memory;
  int status;
  OK(cudaMalloc(&memory, 1));
  pid_t pid = fork();
  if (pid == 0) _exit(cudaMalloc(&memory, 1) != cudaErrorInitializationError);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
}
END_TEST

void add_processes(Suite *suite);
void add_processes(Suite *suite)
{
  TCase *tc = tcase_create("processes");
  tcase_set_timeout(tc, 20);
  tcase_add_checked_fixture(tc, setup, NULL);
  tcase_add_test(tc, descriptors);
  tcase_add_test(tc, ipc);
  tcase_add_test(tc, a_child_cannot_go_on);
  suite_add_tcase(suite, tc);
}
