/* Memory of a GPU as a dma-buf, where its driver has them. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "memory.h"

#define DMA_BUF_SUPPORTED 124 /* of CUdevice_attribute */
#define AT ((size_t)64 << 10) /* whole pages of any host */

typedef int device_attribute(int *value, int attribute, int device);

static bool has_dmabufs(int gpu)
{
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  device_attribute *ask = driver == NULL ? NULL : (device_attribute *)dlsym(driver, "cuDeviceGetAttribute");
  int value = 0;
  return ask != NULL && ask(&value, DMA_BUF_SUPPORTED, gpu) == 0 && value != 0;
}

static const char *look_at(int fd)
{
  static char name[200];
  char path[64];
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  ssize_t length = readlink(path, name, sizeof(name) - 1);
  name[length < 0 ? 0 : length] = '\0';
  if (strstr(name, "dmabuf") == NULL) return "the descriptor is none of a dma-buf";
  return lseek(fd, 0, SEEK_END) < (off_t)(2 * AT) ? "the dma-buf is smaller than was asked for" : NULL;
}

static const char *export_part(struct bench *bench, int gpu)
{
  struct tt_device_context *context = bench->gpus[gpu].context;
  struct tt_device_memory memory;
  int fd = -1;
  if (bench->device->alloc(context, TEST_BYTES, &memory) != ncclSuccess) return "alloc";
  ncclResult_t result = bench->device->export_dmabuf(context, (char *)memory.ptr + AT, 2 * AT, 0, &fd);
  const char *problem = result == ncclSuccess ? look_at(fd) : "export_dmabuf";
  if (fd >= 0) close(fd);
  bench->device->release(context, &memory);
  return problem;
}

int test_dmabuf(struct bench *bench)
{
  int failures = 0, fd = -1;
  for (int g = 0; g < bench->ngpus; g++) {
    if (has_dmabufs(g)) {
      failures += report(export_part(bench, g), "dma-buf of GPU %d, %s", g, bench->kind);
      continue;
    }
    bool refused = bench->device->export_dmabuf(bench->gpus[g].context, NULL, AT, 0, &fd) != ncclSuccess && fd < 0;
    failures += report(refused ? NULL : "it has none, but one was made", "no dma-buf of GPU %d, %s", g, bench->kind);
  }
  return failures;
}
