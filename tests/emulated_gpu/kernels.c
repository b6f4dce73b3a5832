/* The kernels that there are, and chance. */
#include <stdio.h>
#include <stdlib.h>
#include "grid.h"

static struct known {
  struct emu_kernel kernel;
  struct known *next;
} * kernels;

void emu_kernel_register(const struct emu_kernel *kernel)
{
  struct known *known = malloc(sizeof(*known));
  if (known == NULL) abort();
  *known = (struct known){*kernel, kernels};
  kernels = known;
}

const struct emu_kernel *emu_kernel_find(const void *address)
{
  for (const struct known *known = kernels; known != NULL; known = known->next)
    if (known->kernel.address == address) return &known->kernel;
  return NULL;
}

static uint64_t random_state;

static uint64_t first_state(void)
{
  const char *seed = getenv("EMULATED_SEED");
  char *end = NULL;
  unsigned long long number = seed != NULL ? strtoull(seed, &end, 10) : 1;
  if (seed != NULL && (end == seed || *end != '\0')) {
    fprintf(stderr, "emulated GPU: EMULATED_SEED=\"%s\" is no number\n", seed);
    abort();
  }
  return number * 0x9e3779b97f4a7c15ull | 1;
}

uint32_t emu_random(uint32_t n)
{
  if (random_state == 0) {
    random_state = first_state();
  }
  random_state ^= random_state << 13; /* xorshift64, Marsaglia 2003 */
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)((random_state >> 32) * n >> 32);
}
