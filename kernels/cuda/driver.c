/* Finding the CUDA driver. */
#include "kernels/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>

#define LIBRARY "libcuda.so.1"

static struct tt_cuda_driver driver;

bool tt_cuda_driver_load(char *why, size_t why_size)
{
  /* Stays loaded, as CUDA's runtime keeps it too. */
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(why, why_size, "the CUDA driver cannot be loaded (%s)", dlerror());
    return false;
  }
#define TEXT_OF(name) #name /* after the header's macros, which choose versions of functions */
#define FIND(name)                                                                                                     \
  driver.name = (__typeof__(&name))dlsym(library, TEXT_OF(name));                                                      \
  if (driver.name == NULL) {                                                                                           \
    snprintf(why, why_size, "the CUDA driver has no function " TEXT_OF(name) ": it is too old");                       \
    return false;                                                                                                      \
  }
  TT_CUDA_DRIVER_FUNCTIONS(FIND)
#undef FIND
#define FIND_LATER(name) driver.name = (__typeof__(&name))dlsym(library, #name);
  TT_CUDA_DRIVER_LATER_FUNCTIONS(FIND_LATER)
#undef FIND_LATER
  return true;
}

const struct tt_cuda_driver *tt_cuda_driver(void)
{
  return &driver;
}
