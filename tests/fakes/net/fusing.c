/* A net plugin that fuses devices, made of a real one (FUSING_INNER, a path) whose first device does all the work. Its
 * devices have the names of FUSING_NETS, a comma list, 100 Gb/s each, and rails 0, 1, 0, 1, ... It refuses to fuse the
 * device FUSING_REFUSE with another, and any group twice. With FUSING_EARLY it begins with a device made of its first
 * and last. It logs what it makes. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tutti/net.h"

enum { MOST = 16 };

extern ncclNet_v12_t ncclNetPlugin_v12;
__attribute__((visibility("default"))) ncclNet_v12_t ncclNetPlugin_v12;

static ncclNet_v12_t inner;
static ncclDebugLogger_t say;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char names[MOST][256];
static ncclNetVDeviceProps_v12_t parts[MOST];
static int plain, all; /* devices: before any was made, and now */

static void append(char *name, const char *more)
{
  size_t used = strlen(name);
  while (*more && used + 1 < sizeof(names[0])) name[used++] = *more++;
  name[used] = 0;
}

static int add(const ncclNetVDeviceProps_v12_t *of)
{
  parts[all] = *of;
  names[all][0] = 0;
  for (int i = 0; i < of->ndevs; i++) {
    if (i > 0) append(names[all], "+");
    append(names[all], names[of->devs[i]]);
  }
  return all++;
}

static void begin(void)
{
  char list[256], *rest = list, *name;
  if (all > 0) return;
  snprintf(list, sizeof(list), "%s", getenv("FUSING_NETS"));
  while ((name = strsep(&rest, ",")) != NULL && plain < MOST / 2) {
    snprintf(names[plain], sizeof(names[plain]), "%s", name);
    parts[plain] = (ncclNetVDeviceProps_v12_t){1, {plain}};
    plain++;
  }
  all = plain;
  if (getenv("FUSING_EARLY")) add(&(ncclNetVDeviceProps_v12_t){2, {0, plain - 1}});
}

static ncclResult_t init(void **ctx, uint64_t id, ncclNetCommConfig_v12_t *config, ncclDebugLogger_t log,
                         ncclProfilerCallback_t profile)
{
  pthread_mutex_lock(&lock);
  begin();
  say = log;
  pthread_mutex_unlock(&lock);
  return inner.init(ctx, id, config, log, profile);
}

static ncclResult_t devices(int *n)
{
  pthread_mutex_lock(&lock);
  *n = all;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

static ncclResult_t get_properties(int dev, ncclNetProperties_v12_t *p)
{
  ncclResult_t result = inner.getProperties(0, p);
  pthread_mutex_lock(&lock);
  p->name = names[dev];
  p->pciPath = NULL;
  p->guid = 0x100 + (uint64_t)dev;
  p->speed = 100000 * parts[dev].ndevs;
  p->railId = dev < plain ? (int16_t)(dev % 2) : (int16_t)NCCL_NET_ID_UNDEF;
  p->vProps = parts[dev];
  pthread_mutex_unlock(&lock);
  return result;
}

static int refuses(const ncclNetVDeviceProps_v12_t *wanted)
{
  const char *never = getenv("FUSING_REFUSE");
  for (int i = 0; i < wanted->ndevs; i++)
    if (never != NULL && atoi(never) == wanted->devs[i]) return 1;
  for (int d = 0; d < all; d++)
    if (parts[d].ndevs == wanted->ndevs &&
        memcmp(parts[d].devs, wanted->devs, (size_t)wanted->ndevs * sizeof(int)) == 0)
      return 1;
  return all == MOST;
}

static ncclResult_t make(int *d, ncclNetVDeviceProps_v12_t *wanted)
{
  pthread_mutex_lock(&lock);
  const int refused = refuses(wanted);
  *d = refused ? -1 : add(wanted);
  pthread_mutex_unlock(&lock);
  if (refused) return ncclSystemError;
  say(NCCL_LOG_INFO, NCCL_NET, __FILE__, __LINE__, "fusing: made device %d, %s", *d, names[*d]);
  return ncclSuccess;
}

static ncclResult_t listen(void *ctx, int dev, void *handle, void **comm)
{
  return dev < 0 || dev >= all ? ncclInvalidArgument : inner.listen(ctx, 0, handle, comm);
}

static ncclResult_t connect(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_v12_t **device)
{
  return dev < 0 || dev >= all ? ncclInvalidArgument : inner.connect(ctx, 0, handle, comm, device);
}

__attribute__((constructor)) static void copy_plugin(void)
{
  const char *path = getenv("FUSING_INNER");
  void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  const ncclNet_v12_t *real = library != NULL ? (const ncclNet_v12_t *)dlsym(library, "ncclNetPlugin_v12") : NULL;
  if (real == NULL) abort();
  inner = ncclNetPlugin_v12 = *real;
  ncclNetPlugin_v12.name = "Fusing";
  ncclNetPlugin_v12.init = init;
  ncclNetPlugin_v12.devices = devices;
  ncclNetPlugin_v12.getProperties = get_properties;
  ncclNetPlugin_v12.makeVDevice = make;
  ncclNetPlugin_v12.listen = listen;
  ncclNetPlugin_v12.connect = connect;
}
