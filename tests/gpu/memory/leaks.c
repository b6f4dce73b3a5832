/* A communicator's life leaves nothing behind: no memory of the GPU, no descriptor. */
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>
#include "memory.h"

#define ROUNDS 8
#define BLOCKS 4
#define BLOCK_BYTES ((size_t)64 << 20)
/* Less than one block, and than a 2 MiB chunk in each round. */
#define TOLERANCE ((size_t)8 << 20)

static int descriptors(void)
{
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (folder != NULL && readdir(folder) != NULL) count++;
  if (folder != NULL) closedir(folder);
  return count;
}

static const char *live(struct bench *bench, int gpu, int peer)
{
  const struct tt_device *device = bench->device;
  struct tt_device_config config = {.size = sizeof(config), .index = gpu, .rank = 0, .nranks = 2};
  struct tt_device_config other = {.size = sizeof(other), .index = peer, .rank = 1, .nranks = 2};
  struct tt_device_context *mine, *theirs;
  const char *problem = NULL;
  if (device->open(&config, &mine) != ncclSuccess) return "open";
  if (device->open(&other, &theirs) != ncclSuccess) {
    device->close(mine);
    return "open";
  }
  for (int block = 0; block < BLOCKS && problem == NULL; block++) {
    struct tt_device_memory memory, import = {0};
    struct tt_device_export local, remote;
    if (device->alloc(mine, BLOCK_BYTES, &memory) != ncclSuccess) {
      problem = "alloc";
      break;
    }
    if (device->export_memory(mine, &memory, 0, &remote) != ncclSuccess ||
        device->export_memory(mine, &memory, 1, &local) != ncclSuccess)
      problem = "export";
    else if (device->import_memory(theirs, &local, &import) != ncclSuccess)
      problem = "import";
    if (remote.fd >= 0) close(remote.fd);
    device->release(theirs, &import);
    device->release(mine, &memory);
  }
  device->close(mine);
  device->close(theirs);
  return problem;
}

static const char *leaks(struct bench *bench, int gpu, int peer)
{
  static char text[128];
  size_t before, after, all;
  const char *problem = live(bench, gpu, peer); /* what is made only once is there now */
  int fds = descriptors();
  if (cudaSetDevice(gpu) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess ||
      cudaMemGetInfo(&before, &all) != cudaSuccess)
    return "cudaMemGetInfo";
  for (int round = 0; round < ROUNDS && problem == NULL; round++) problem = live(bench, gpu, peer);
  if (problem != NULL) return problem;
  if (cudaDeviceSynchronize() != cudaSuccess || cudaMemGetInfo(&after, &all) != cudaSuccess) return "cudaMemGetInfo";
  if (before > after + TOLERANCE) {
    snprintf(text, sizeof(text), "%zu bytes of GPU memory are gone", before - after);
    return text;
  }
  if (descriptors() != fds) {
    snprintf(text, sizeof(text), "%d descriptors were open, now %d", fds, descriptors());
    return text;
  }
  return NULL;
}

int test_leaks(struct bench *bench)
{
  int failures = 0;
  for (int gpu = 0; gpu < bench->ngpus; gpu++) {
    int peer = (gpu + 1) % bench->ngpus, can = 0;
    if (bench->device->can_map(peer, gpu, &can) != ncclSuccess || !can) peer = gpu;
    failures += report(leaks(bench, gpu, peer), "%s, %d lives of a communicator on GPU %d leave nothing behind",
                       bench->kind, ROUNDS, gpu);
  }
  return failures;
}
