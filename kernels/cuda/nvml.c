/* Finding NVML; see nvml.h. */
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include "base/check.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool tried, usable; /* under the lock, as what follows */
static struct tt_nvml functions;

static void *find(void *library, const char *newest, const char *older)
{
  void *function = dlsym(library, newest);
  return function || !older ? function : dlsym(library, older);
}

/* Writes why it cannot be used. The library stays loaded: it may have threads. */
static bool load(char *why, size_t size)
{
  void *library = dlopen(TT_CUDA_NVML, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(why, size, "%s", dlerror());
    return false;
  }
#define FIND(member, newest, older, ...) functions.member = (__typeof__(functions.member))find(library, newest, older);
  TT_NVML_FUNCTIONS(FIND)
#undef FIND
  functions.error_string = (__typeof__(functions.error_string))dlsym(library, "nvmlErrorString");
  if (!functions.init || !functions.count || !functions.by_index || !functions.by_bus_id) {
    snprintf(why, size, "%s lacks functions that it always had: it is none, or of another kind", TT_CUDA_NVML);
    return false;
  }
  int result = functions.init();
  if (result == TT_NVML_SUCCESS) return true;
  snprintf(why, size, "it cannot start: %s", tt_nvml_error(&functions, result));
  return false;
}

const struct tt_nvml *tt_nvml_enter(void)
{
  char why[400];
  pthread_mutex_lock(&lock);
  if (!tried) {
    tried = true;
    usable = load(why, sizeof(why));
    if (!usable)
      TT_WARN("NVML cannot be used, so NVLinks, multi-node NVLink and the PCI links of GPUs are not known, and slower "
              "paths may be taken: %s. It comes with the driver; in a container ask for the capability \"utility\"",
              why);
  }
  return usable ? &functions : NULL;
}

void tt_nvml_leave(void)
{
  pthread_mutex_unlock(&lock);
}

const char *tt_nvml_error(const struct tt_nvml *nvml, int result)
{
  if (result == TT_NVML_NO_FUNCTION) return "this version of NVML does not know";
  const char *text = nvml->error_string ? nvml->error_string(result) : NULL;
  return text ? text : "an error that NVML does not name";
}
