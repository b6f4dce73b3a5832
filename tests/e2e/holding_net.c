/* libtutti-net-socket.so, but for one thing: from the first message of HOLD_BYTES or more on nothing is sent any more.
 * So looks a network that waits for the receiver to take what is sent, and says nothing of one that never does. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "tutti/net.h"

extern ncclNet_v12_t ncclNetPlugin_v12;
__attribute__((visibility("default"))) ncclNet_v12_t ncclNetPlugin_v12;
static ncclNet_v12_t real;
static _Atomic char held; /* whether it is so; its address is the request of all that is not sent */

static ncclResult_t holding_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                                  void **request)
{
  if (size >= strtoul(getenv("HOLD_BYTES"), NULL, 10)) held = 1;
  if (!held) return real.isend(comm, data, size, tag, mhandle, phandle, request);
  *request = (void *)&held;
  return ncclSuccess;
}

static ncclResult_t holding_test(void *request, int *done, int *sizes)
{
  *done = 0;
  return request == (void *)&held ? ncclSuccess : real.test(request, done, sizes);
}

__attribute__((constructor)) static void copy_plugin(void)
{
  void *library = dlopen(getenv("HOLD_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  const ncclNet_v12_t *found = library != NULL ? (const ncclNet_v12_t *)dlsym(library, "ncclNetPlugin_v12") : NULL;
  if (found == NULL) abort();
  real = ncclNetPlugin_v12 = *found;
  ncclNetPlugin_v12.isend = holding_isend;
  ncclNetPlugin_v12.test = holding_test;
}
