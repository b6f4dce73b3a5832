/* Memory of the fake device (tests/fakes/device): a file in memory, which has a name in the list of mappings. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "direct_memory.h"
#include "tests/fakes/device/fake.h"

/* The backend is in this process already. */
static bool begin(void (*flushed)(void))
{
  const char *device = getenv("TUTTI_DEVICE");
  void *library = device != NULL ? dlopen(device, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) : NULL;
  void (*at_flush)(fake_flushed *) = NULL;
  if (library != NULL) at_flush = (void (*)(fake_flushed *))dlsym(library, "fake_at_flush");
  if (at_flush != NULL) at_flush(flushed);
  if (library != NULL) dlclose(library);
  return true;
}

static bool is_device(const void *ptr, size_t bytes)
{
  char line[512];
  bool found = false;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL) {
    unsigned long long from, to;
    found = sscanf(line, "%llx-%llx", &from, &to) == 2 && (uintptr_t)ptr >= from && (uintptr_t)ptr + bytes <= to &&
            strstr(line, "memfd:tutti-fake-device") != NULL;
  }
  if (maps != NULL) fclose(maps);
  return found;
}

static bool is_dmabuf(int fd, const void *ptr, size_t bytes)
{
  struct fake_dmabuf shown;
  const char *pci = getenv("DIRECT_PCI");
  return pread(fd, &shown, sizeof shown, 0) == sizeof shown && shown.kind == FAKE_DMABUF &&
         shown.ptr == (uintptr_t)ptr && shown.bytes == bytes && (pci == NULL || shown.pci == atoi(pci));
}

static bool copy(void *to, const void *from, size_t bytes)
{
  memcpy(to, from, bytes);
  return true;
}

const struct direct_memory direct_memory_fake = {
    .begin = begin, .is_device = is_device, .is_dmabuf = is_dmabuf, .to_device = copy, .from_device = copy};
