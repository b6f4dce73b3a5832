/* Physical memory of the devices: memfds. Their names say which device's they are and which memory, so that whoever
 * gets a descriptor, from a socket or of another process, sees what it is. */
#include "emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "tutti-emulated-gpu"
enum { MULTICAST = 99 }; /* in place of a device's number */

static struct emu_physical *all;
static size_t used[EMU_MAX_DEVICES];

/* Nobody may rely on zeros in fresh memory; so there are none where they would be seen first. */
static bool scribble(int fd, size_t bytes)
{
  enum { PIECE = 65536 };
  static char junk[PIECE];
  size_t piece = bytes < PIECE ? bytes : PIECE;
  memset(junk, 0xa5, sizeof(junk));
  return pwrite(fd, junk, piece, 0) == (ssize_t)piece &&
         pwrite(fd, junk, piece, (off_t)(bytes - piece)) == (ssize_t)piece;
}

static struct emu_physical *add(int fd, size_t bytes, int device, uint64_t id)
{
  struct emu_physical *physical = emu_calloc(1, sizeof(*physical));
  *physical = (struct emu_physical){.next = all, .fd = fd, .bytes = bytes, .device = device, .id = id};
  return all = physical;
}

/* -1: no memory. */
static int make_file(int number, uint64_t id, size_t bytes)
{
  char name[96];
  snprintf(name, sizeof(name), NAME ":%d:%llx", number, (unsigned long long)id);
  int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

cudaError_t emu_physical_make(int device, size_t bytes, struct emu_physical **physical)
{
  uint64_t id = emu_new_id();
  if (bytes > EMU_DEVICE_BYTES - used[device]) return cudaErrorMemoryAllocation;
  int fd = make_file(emu_device_number(device), id, bytes);
  if (fd < 0) return cudaErrorMemoryAllocation;
  if (!scribble(fd, bytes)) {
    close(fd);
    return cudaErrorMemoryAllocation;
  }
  *physical = add(fd, bytes, device, id);
  (*physical)->own = true;
  used[device] += bytes;
  return cudaSuccess;
}

static cudaError_t open_team(uint32_t devices, struct emu_physical *physical)
{
  if (emu_team_open(physical, devices)) return cudaSuccess;
  emu_physical_check(physical);
  return cudaErrorMemoryAllocation;
}

cudaError_t emu_physical_make_team(uint32_t devices, size_t bytes, struct emu_physical **physical)
{
  uint64_t id = emu_new_id();
  int fd = make_file(MULTICAST, id, bytes);
  if (fd < 0) return cudaErrorMemoryAllocation;
  *physical = add(fd, bytes, -1, id);
  return open_team(devices, *physical);
}

static int find_device(int number)
{
  for (int d = 0; d < emu_device_count(); d++)
    if (emu_device_number(d) == number) return d;
  return -1;
}

cudaError_t emu_physical_open(int fd, struct emu_physical **physical)
{
  char path[64], name[160];
  unsigned long long id;
  int number;
  struct stat file;
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  ssize_t length = readlink(path, name, sizeof(name) - 1);
  if (length < 0 || fstat(fd, &file) != 0) goto fail;
  name[length] = 0;
  if (sscanf(name, "/memfd:" NAME ":%d:%llx", &number, &id) != 2) goto fail;
  *physical = add(fd, (size_t)file.st_size, find_device(number), id);
  (*physical)->exporting = true;
  return number == MULTICAST ? open_team(0, *physical) : cudaSuccess;
fail:
  if (fd >= 0) close(fd);
  return cudaErrorInvalidValue;
}

struct emu_physical *emu_physical_of(uint64_t handle)
{
  struct emu_physical *physical = all;
  while (physical != NULL && ((uint64_t)(uintptr_t)physical != handle || physical->handles == 0))
    physical = physical->next;
  return physical;
}

void emu_physical_check(struct emu_physical *physical)
{
  if (physical->handles + physical->mappings > 0) return;
  struct emu_physical **place = &all;
  while (*place != physical) place = &(*place)->next;
  *place = physical->next;
  if (physical->own) used[physical->device] -= physical->bytes;
  if (physical->team != NULL) emu_team_close(physical);
  close(physical->fd);
  free(physical);
}

size_t emu_physical_used(int device)
{
  return used[device];
}
