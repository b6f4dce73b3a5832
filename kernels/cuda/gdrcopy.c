/* Flushing what NICs have written into a GPU's memory, by a read of the host's there: a read over the bus comes back
 * behind all writes that went before it. The host sees a word of the GPU's memory by GDRCopy, whose library is found
 * when it is asked for, if it is installed, and stays loaded. */
#include <dlfcn.h>
#include <stdio.h>
#include "base/check.h"
#include "kernels/cuda/state.h"

#ifndef TT_CUDA_GDRAPI
#define TT_CUDA_GDRAPI "libgdrapi.so.2"
#endif
/* What GDRCopy maps. */
#define GPU_PAGE ((size_t)65536)

/* A handle as GDRCopy passes it: by value, in a struct. */
struct gdr_handle {
  unsigned long h;
};

static struct {
  pthread_mutex_t lock;
  bool tried;
  void *gdr; /* NULL: it cannot be used, see `why`; under the lock until it is tried */
  char why[200];
  void *(*open)(void);
  int (*pin)(void *gdr, unsigned long address, size_t bytes, uint64_t token, uint32_t va_space,
             struct gdr_handle *handle);
  int (*unpin)(void *gdr, struct gdr_handle handle);
  int (*map)(void *gdr, struct gdr_handle handle, void **at, size_t bytes);
  int (*unmap)(void *gdr, struct gdr_handle handle, void *at, size_t bytes);
} api = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void load(void)
{
  void *library = dlopen(TT_CUDA_GDRAPI, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(api.why, sizeof(api.why), "GDRCopy is not installed (%s)", dlerror());
    return;
  }
  api.open = (__typeof__(api.open))dlsym(library, "gdr_open");
  api.pin = (__typeof__(api.pin))dlsym(library, "gdr_pin_buffer");
  api.unpin = (__typeof__(api.unpin))dlsym(library, "gdr_unpin_buffer");
  api.map = (__typeof__(api.map))dlsym(library, "gdr_map");
  api.unmap = (__typeof__(api.unmap))dlsym(library, "gdr_unmap");
  if (!api.open || !api.pin || !api.unpin || !api.map || !api.unmap)
    snprintf(api.why, sizeof(api.why), "%s lacks functions of GDRCopy 2", TT_CUDA_GDRAPI);
  else if ((api.gdr = api.open()) == NULL)
    snprintf(api.why, sizeof(api.why), "GDRCopy does not start: is its kernel module gdrdrv loaded?");
}

static bool find_api(char *why, size_t size)
{
  pthread_mutex_lock(&api.lock);
  if (!api.tried) load();
  api.tried = true;
  if (api.gdr == NULL) snprintf(why, size, "%s", api.why);
  pthread_mutex_unlock(&api.lock);
  return api.gdr != NULL;
}

/* Maps a page of the GPU's; nothing else of this library writes there. The context's lock is held. */
static ncclResult_t open_window(struct tt_device_context *context)
{
  struct tt_cuda_window *window = &context->state->window;
  struct gdr_handle handle;
  void *memory;
  if (!find_api(window->why, sizeof(window->why))) return ncclSystemError;
  TT_TRY(tt_cuda_small_alloc(context, 2 * GPU_PAGE, &memory));
  uintptr_t page = ((uintptr_t)memory + GPU_PAGE - 1) / GPU_PAGE * GPU_PAGE;
  int error = api.pin(api.gdr, page, GPU_PAGE, 0, 0, &handle);
  if (error != 0) {
    snprintf(window->why, sizeof(window->why), "GDRCopy cannot pin memory of GPU %d (error %d)", context->device,
             error);
    return ncclSystemError;
  }
  error = api.map(api.gdr, handle, &window->at, GPU_PAGE);
  if (error != 0) {
    api.unpin(api.gdr, handle);
    snprintf(window->why, sizeof(window->why), "GDRCopy cannot map memory of GPU %d (error %d)", context->device,
             error);
    return ncclSystemError;
  }
  window->handle = handle.h;
  atomic_store(&window->word, window->at);
  return ncclSuccess;
}

static ncclResult_t find_window(struct tt_device_context *context)
{
  struct tt_cuda_window *window = &context->state->window;
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&context->lock);
  if (atomic_load(&window->word) == NULL && window->why[0] == '\0') result = open_window(context);
  if (window->why[0] != '\0') result = TT_FAIL(ncclSystemError, "%s", window->why);
  pthread_mutex_unlock(&context->lock);
  return result;
}

ncclResult_t tt_cuda_flush(struct tt_device_context *context)
{
  struct tt_cuda_window *window = &context->state->window;
  const volatile uint64_t *word = atomic_load_explicit(&window->word, memory_order_acquire);
  if (word == NULL) {
    TT_TRY(find_window(context));
    word = atomic_load_explicit(&window->word, memory_order_acquire);
  }
  (void)*word;
  /* The mapping is write-combining: only a fence keeps what follows behind the read. */
  atomic_thread_fence(memory_order_seq_cst);
  return ncclSuccess;
}

void tt_cuda_window_close(struct tt_device_context *context)
{
  struct tt_cuda_window *window = &context->state->window;
  struct gdr_handle handle = {window->handle};
  if (atomic_load(&window->word) == NULL) return;
  api.unmap(api.gdr, handle, window->at, GPU_PAGE);
  api.unpin(api.gdr, handle);
  atomic_store(&window->word, NULL);
}
