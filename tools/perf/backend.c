/* See backend.h: the host's backend, and the choice between it and the GPUs'. */
#include "backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>
#include "load.h"

static int host_count(void)
{
  return 1;
}

static bool host_describe(int device, char *name, size_t name_size, char *pci, size_t pci_size)
{
  (void)device;
  snprintf(name, name_size, "host");
  snprintf(pci, pci_size, "%s", "");
  return true;
}

static bool host_choose(int device)
{
  (void)device;
  return true;
}

static void *host_allocate(size_t bytes)
{
  /* MAP_POPULATE: page faults must not be part of the first measurement. */
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static void host_release(void *memory, size_t bytes)
{
  munmap(memory, bytes);
}

static bool host_zero(void *memory, size_t bytes)
{
  memset(memory, 0, bytes);
  return true;
}

static bool host_copy_in(void *device, const void *host, size_t bytes)
{
  memcpy(device, host, bytes);
  return true;
}

static bool host_copy_out(void *host, const void *device, size_t bytes)
{
  memcpy(host, device, bytes);
  return true;
}

/* On stream NULL operations are complete when the call returns; for -y 0 there are the library's host streams. They are
 * Tutti's own, and found by name, since the tool also runs with another library in Tutti's place. */
static _Thread_local const char *error_text = "out of memory";

static bool good(ncclResult_t result)
{
  if (result != ncclSuccess) error_text = ncclGetLastError(NULL);
  return result == ncclSuccess;
}

static void *find(const char *function)
{
  void *found = dlsym(RTLD_DEFAULT, function);
  if (found == NULL) error_text = "the library has no host streams; use -y 1";
  return found;
}

static bool host_stream_make(cudaStream_t *stream)
{
  ncclResult_t (*create)(cudaStream_t *) = (ncclResult_t(*)(cudaStream_t *))find("tuttiStreamCreate");
  return create != NULL && good(create(stream));
}

static ncclResult_t of_stream(const char *function, cudaStream_t stream)
{
  ncclResult_t (*call)(cudaStream_t) = (ncclResult_t(*)(cudaStream_t))find(function);
  return call != NULL ? call(stream) : ncclInvalidUsage;
}

/* Its failures were seen before. */
static void host_stream_drop(cudaStream_t stream)
{
  if (stream != NULL) (void)of_stream("tuttiStreamDestroy", stream);
}

static enum perf_stream_state host_stream_state(cudaStream_t stream)
{
  ncclResult_t result = stream != NULL ? of_stream("tuttiStreamQuery", stream) : ncclSuccess;
  if (result == ncclInProgress) return PERF_STREAM_BUSY;
  return good(result) ? PERF_STREAM_DONE : PERF_STREAM_FAILED;
}

static bool host_stream_wait(cudaStream_t stream)
{
  return good(of_stream("tuttiStreamSynchronize", stream));
}

static const char *host_error(void)
{
  return error_text;
}

const struct perf_backend perf_backend_host = {
    .size = sizeof(struct perf_backend),
    .name = "host",
    .fp8 = true,
    .count = host_count,
    .describe = host_describe,
    .choose = host_choose,
    .allocate = host_allocate,
    .release = host_release,
    .zero = host_zero,
    .copy_in = host_copy_in,
    .copy_out = host_copy_out,
    .stream_make = host_stream_make,
    .stream_drop = host_stream_drop,
    .stream_state = host_stream_state,
    .stream_wait = host_stream_wait,
    .load_start = perf_host_load_start,
    .load_stop = perf_host_load_stop,
    .error = host_error,
};

/* Place number `i` of the helper, or false: the file that the environment names and no other, or beside this program's
 * libraries, in a build tree and when installed. */
static bool helper_file(int i, char *file, size_t size)
{
  static const char *const places[] = {"../" PERF_LIBDIR "/tutti", "../lib/tutti", "../lib"};
  const char *given = getenv("TUTTI_PERF_CUDA");
  char self[512];
  if (given && *given) {
    snprintf(file, size, "%s", given);
    return i == 0;
  }
  ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (length <= 0 || i >= (int)(sizeof(places) / sizeof(places[0]))) return false;
  self[length] = 0;
  char *slash = strrchr(self, '/');
  snprintf(file, size, "%.*s/%s/libtutti-perf-cuda.so", (int)(slash - self), self, places[i]);
  return true;
}

const struct perf_backend *perf_backend_cuda(char *why, size_t size)
{
  char file[1024];
  void *library = NULL;
  snprintf(why, size, "libtutti-perf-cuda.so is not installed; it is built where there is a CUDA compiler");
  for (int i = 0; !library && helper_file(i, file, sizeof(file)); i++) {
    if (access(file, F_OK) && !getenv("TUTTI_PERF_CUDA")) continue;
    if (!(library = dlopen(file, RTLD_NOW | RTLD_LOCAL))) {
      snprintf(why, size, "%s", dlerror());
      return NULL;
    }
  }
  if (!library) return NULL;
  /* ISO C has no conversion from an object's address to a function's. */
  union {
    void *object;
    perf_backend_entry *function;
  } entry = {dlsym(library, PERF_BACKEND_SYMBOL)};
  const struct perf_backend *backend = entry.object ? entry.function(why, size) : NULL;
  if (!entry.object)
    snprintf(why, size, "%s: has no symbol " PERF_BACKEND_SYMBOL, file);
  else if (backend && backend->size != sizeof(*backend)) {
    snprintf(why, size, "%s: belongs to another build of tutti-perf", file);
    backend = NULL;
  }
  return backend; /* the library stays: its streams and memory are in use until the end */
}

bool perf_device_parse(const char *text, enum perf_device_choice *choice)
{
  static const char *const names[] = {"auto", "host", "cuda"};
  for (int i = 0; i < 3; i++)
    if (!strcasecmp(text, names[i])) {
      *choice = (enum perf_device_choice)i;
      return true;
    }
  return false;
}

/* What TUTTI_DEVICE says. It may name a device library of somebody else; then the helper must be one that suits it. */
static enum perf_device_choice environment_choice(void)
{
  const char *text = getenv("TUTTI_DEVICE");
  enum perf_device_choice choice = PERF_DEVICE_AUTO;
  if (!text || !*text || perf_device_parse(text, &choice)) return choice;
  return PERF_DEVICE_CUDA;
}

bool perf_backend_host_only(enum perf_device_choice choice)
{
  if (choice == PERF_DEVICE_AUTO) choice = environment_choice();
  return choice == PERF_DEVICE_HOST;
}

/* A value of TUTTI_DEVICE that names neither device is taken for GPUs: says so in front of why there are none. */
static void explain_environment(enum perf_device_choice choice, char *why, size_t size)
{
  const char *text = getenv("TUTTI_DEVICE");
  enum perf_device_choice known;
  char reason[256];
  if (choice != PERF_DEVICE_AUTO || !text || perf_device_parse(text, &known)) return;
  snprintf(reason, sizeof(reason), "%s", why);
  snprintf(why, size, "TUTTI_DEVICE is \"%s\"; this tool knows the memory of host and cuda, and took it for GPUs: %s",
           text, reason);
}

const struct perf_backend *perf_backend_select(enum perf_device_choice choice, char *why, size_t size)
{
  enum perf_device_choice wanted = choice == PERF_DEVICE_AUTO ? environment_choice() : choice;
  const struct perf_backend *backend = wanted == PERF_DEVICE_HOST ? NULL : perf_backend_cuda(why, size);
  if (!backend && wanted == PERF_DEVICE_CUDA) {
    explain_environment(choice, why, size);
    return NULL;
  }
  if (!backend) backend = &perf_backend_host;
  /* A value that already means this one may be a path, and is left alone. */
  if (environment_choice() == PERF_DEVICE_AUTO || (choice != PERF_DEVICE_AUTO && environment_choice() != choice))
    setenv("TUTTI_DEVICE", backend->name, 1);
  return backend;
}
