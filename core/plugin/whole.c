/* See whole.h. Only what the dynamic linker would map is looked at: 64-bit ELF in this machine's order of bytes. */
#include "plugin/whole.h"

#include <elf.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/regular.h"

#define NATIVE_ORDER (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB)

static bool native(const Elf64_Ehdr *header)
{
  return memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && header->e_ident[EI_CLASS] == ELFCLASS64 &&
         header->e_ident[EI_DATA] == NATIVE_ORDER && header->e_phentsize == sizeof(Elf64_Phdr);
}

/* Where a part ends; the largest number if it is beyond all numbers. */
static uint64_t end_of(uint64_t offset, uint64_t bytes)
{
  return bytes > UINT64_MAX - offset ? UINT64_MAX : offset + bytes;
}

/* How many bytes the file must have at the least; 0 if its headers do not say. */
static uint64_t bytes_needed(int fd, uint64_t size)
{
  Elf64_Ehdr header;
  if (pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header || !native(&header)) return 0;
  uint64_t needed = end_of(header.e_phoff, (uint64_t)header.e_phnum * sizeof(Elf64_Phdr));
  if (needed > size) return needed;
  for (int i = 0; i < header.e_phnum; i++) {
    Elf64_Phdr segment;
    off_t offset = (off_t)(header.e_phoff + (uint64_t)i * sizeof segment);
    if (pread(fd, &segment, sizeof segment, offset) != (ssize_t)sizeof segment) return 0;
    if (segment.p_type == PT_LOAD) needed = TT_MAX(needed, end_of(segment.p_offset, segment.p_filesz));
  }
  return needed;
}

bool tt_plugin_whole(const char *file, char reason[TT_PLUGIN_REASON_BYTES])
{
  struct stat status;
  const char *why;
  int fd = tt_regular_open(file, &status, &why);
  if (fd < 0 && errno != EINVAL) return true;
  if (fd < 0) {
    snprintf(reason, TT_PLUGIN_REASON_BYTES, "%s is not a shared library: %s", file, why);
    return false;
  }
  uint64_t size = (uint64_t)status.st_size, needed = bytes_needed(fd, size);
  close(fd);
  if (needed <= size) return true;
  snprintf(reason, TT_PLUGIN_REASON_BYTES, "%s is cut short: %llu of at least %llu bytes; install it again", file,
           (unsigned long long)size, (unsigned long long)needed);
  return false;
}
