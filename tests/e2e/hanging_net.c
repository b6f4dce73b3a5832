/* libtutti-net-socket.so, but for one thing: while the file HANG_FILE exists, its `test` does not return. */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
#include "tutti/net.h"

extern ncclNet_v12_t ncclNetPlugin_v12;
__attribute__((visibility("default"))) ncclNet_v12_t ncclNetPlugin_v12;
static ncclResult_t (*real_test)(void *request, int *done, int *sizes);

static ncclResult_t hanging_test(void *request, int *done, int *sizes)
{
  while (access(getenv("HANG_FILE"), F_OK) == 0) usleep(1000);
  return real_test(request, done, sizes);
}

__attribute__((constructor)) static void copy_plugin(void)
{
  void *library = dlopen(getenv("HANG_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  const ncclNet_v12_t *real = library != NULL ? (const ncclNet_v12_t *)dlsym(library, "ncclNetPlugin_v12") : NULL;
  if (real == NULL) abort();
  ncclNetPlugin_v12 = *real;
  real_test = real->test;
  ncclNetPlugin_v12.test = hanging_test;
}
