/* GDRCopy's library without a GPU: pages of the host stand for those of the GPU's. FAKE_GDR names a call that fails:
 * open, pin or map. `fake_gdr` counts what exists. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define PAGE ((size_t)65536)

struct handle {
  unsigned long h;
};

EXPORT int fake_gdr_pinned, fake_gdr_mapped;
EXPORT void *fake_gdr_at; /* the last mapping */

static int fails(const char *call)
{
  const char *failing = getenv("FAKE_GDR");
  return failing != NULL && strcmp(failing, call) == 0;
}

EXPORT void *gdr_open(void)
{
  return fails("open") ? NULL : &fake_gdr_pinned;
}

EXPORT int gdr_pin_buffer(void *gdr, unsigned long address, size_t bytes, uint64_t token, uint32_t va_space,
                          struct handle *handle)
{
  if (gdr != &fake_gdr_pinned || address % PAGE != 0 || bytes != PAGE || token != 0 || va_space != 0) abort();
  if (fails("pin")) return 22;
  handle->h = address;
  fake_gdr_pinned++;
  return 0;
}

EXPORT int gdr_unpin_buffer(void *gdr, struct handle handle)
{
  if (gdr != &fake_gdr_pinned || handle.h == 0) abort();
  fake_gdr_pinned--;
  return 0;
}

EXPORT int gdr_map(void *gdr, struct handle handle, void **at, size_t bytes)
{
  if (gdr != &fake_gdr_pinned || handle.h == 0) abort();
  if (fails("map")) return 12;
  *at = fake_gdr_at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  fake_gdr_mapped++;
  return 0;
}

EXPORT int gdr_unmap(void *gdr, struct handle handle, void *at, size_t bytes)
{
  if (gdr != &fake_gdr_pinned || handle.h == 0 || munmap(at, bytes) != 0) abort();
  fake_gdr_mapped--;
  return 0;
}
