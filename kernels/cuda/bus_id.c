/* Bus ids: CUDA, NVML and /sys write them differently. See describe.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/describe.h"

/* A hexadecimal number of at most `digits` digits, with what must follow it. Moves *text behind that. */
static bool number(const char **text, size_t digits, char behind, unsigned long *value)
{
  size_t length = strspn(*text, "0123456789abcdefABCDEF");
  if (length == 0 || length > digits || (*text)[length] != behind) return false;
  *value = strtoul(*text, NULL, 16);
  *text += length + (behind != '\0');
  return true;
}

bool tt_cuda_bus_id(const char *text, char pci[24])
{
  unsigned long domain, bus, device, function;
  pci[0] = '\0';
  if (!number(&text, 8, ':', &domain) || !number(&text, 2, ':', &bus) || !number(&text, 2, '.', &device) ||
      !number(&text, 1, '\0', &function) || device > 0x1f || function > 7)
    return false;
  snprintf(pci, 24, "%04lx:%02lx:%02lx.%lx", domain & 0xffffffff, bus & 0xff, device, function);
  return true;
}
