/* See user_buffers.h. The table of windows: who finds, holds, closes. user_window.c opens them. */
#include "transport/user_buffers.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "transport/user_internal.h"

/* Of `holds` and `orphan` of all windows: those who let go may come when the communicator is gone. */
static pthread_mutex_t holds_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- Life ---- */

ncclResult_t tt_user_buffers_create(struct tt_transport_env *env, struct tt_user_buffers **out)
{
  struct tt_user_buffers *buffers;
  *out = NULL;
  TT_TRY(TT_CALLOC(&buffers, 1));
  buffers->env = env;
  buffers->context = tt_context_retain(env->context);
  pthread_mutex_init(&buffers->lock, NULL);
  *out = buffers;
  return ncclSuccess;
}

void tt_user_window_free(struct tt_user_buffers *buffers, struct tt_user_window *window)
{
  for (int r = 0; window->imports && r < buffers->env->nranks; r++) tt_user_import_end(buffers, window->imports[r]);
  free(window->imports);
  free(window->at);
  free(window->extents);
  window->imports = NULL;
  window->at = NULL;
  window->extents = NULL;
  pthread_mutex_lock(&holds_lock);
  window->orphan = true;
  bool last = window->holds == 0;
  pthread_mutex_unlock(&holds_lock);
  if (last) free(window);
}

void tt_user_buffers_destroy(struct tt_user_buffers *buffers)
{
  if (!buffers) return;
  for (int i = 0; i < buffers->nwindows; i++) tt_user_window_free(buffers, buffers->windows[i]);
  for (struct tt_user_window *window = buffers->closed, *next; window; window = next) {
    next = window->next;
    tt_user_window_free(buffers, window);
  }
  tt_user_graphs_destroy(buffers);
  while (buffers->shown) tt_user_withdraw(buffers, buffers->shown->object);
  tt_context_release(buffers->context);
  pthread_mutex_destroy(&buffers->lock);
  free(buffers->windows);
  free(buffers);
}

/* ---- The table ---- */

/* The first window that ends behind `ptr`; nwindows if there is none. Locked. */
static int first_behind(const struct tt_user_buffers *buffers, const unsigned char *ptr)
{
  int low = 0, high = buffers->nwindows;
  while (low < high) {
    int middle = (low + high) / 2;
    const struct tt_user_window *window = buffers->windows[middle];
    if ((uintptr_t)ptr < (uintptr_t)window->base + window->bytes)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

struct tt_user_window *tt_user_overlapping(struct tt_user_buffers *buffers, const void *ptr, size_t bytes)
{
  pthread_mutex_lock(&buffers->lock);
  int i = first_behind(buffers, ptr);
  struct tt_user_window *window = i < buffers->nwindows ? buffers->windows[i] : NULL;
  if (window && (uintptr_t)window->base >= (uintptr_t)ptr + bytes) window = NULL;
  pthread_mutex_unlock(&buffers->lock);
  return window;
}

struct tt_user_window *tt_user_same(struct tt_user_buffers *buffers, const void *ptr, size_t bytes)
{
  struct tt_user_window *window = tt_user_overlapping(buffers, ptr, bytes);
  return window && window->base == ptr && window->bytes == bytes ? window : NULL;
}

ncclResult_t tt_user_insert(struct tt_user_buffers *buffers, struct tt_user_window *window)
{
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&buffers->lock);
  if (buffers->nwindows == buffers->room) {
    int room = buffers->room > 0 ? 2 * buffers->room : 8;
    struct tt_user_window **grown = realloc(buffers->windows, (size_t)room * sizeof(struct tt_user_window *));
    if (grown) {
      buffers->windows = grown;
      buffers->room = room;
    } else {
      result = TT_FAIL(ncclSystemError, "no memory for %d windows", room);
    }
  }
  if (result == ncclSuccess) {
    int i = first_behind(buffers, window->base);
    struct tt_user_window **place = &buffers->windows[i];
    memmove(place + 1, place, (size_t)(buffers->nwindows - i) * sizeof(*place));
    *place = window;
    buffers->nwindows++;
  }
  pthread_mutex_unlock(&buffers->lock);
  return result;
}

/* ---- Use ---- */

/* That there is none is for the caller to say. */
ncclResult_t tt_user_look(const struct tt_user_buffers *buffers, const void *ptr, struct tt_device_buffer *buffer)
{
  *buffer = (struct tt_device_buffer){.size = sizeof(*buffer)};
  tt_log_hush(true);
  ncclResult_t result = buffers->env->device->find_buffer(buffers->context->handle, ptr, buffer);
  tt_log_hush(false);
  return result;
}

bool tt_user_is_alive(const struct tt_user_buffers *buffers, const struct tt_user_window *window, const void *ptr,
                      size_t bytes)
{
  const unsigned char *at = ptr, *end = at + bytes;
  for (uint32_t e = 0; e < window->nextents && at < end; e++) {
    const struct tt_user_extent *extent = &window->extents[e];
    struct tt_device_buffer buffer;
    if (at >= extent->end) continue;
    if (tt_user_look(buffers, at, &buffer) != ncclSuccess || buffer.id != extent->id) return false;
    at = extent->end;
  }
  return true;
}

static ncclResult_t check_alive(const struct tt_user_buffers *buffers, const struct tt_user_window *window,
                                const void *ptr, size_t bytes)
{
  struct tt_device_buffer buffer;
  if (tt_user_is_alive(buffers, window, ptr, bytes)) return ncclSuccess;
  bool again = tt_user_look(buffers, ptr, &buffer) == ncclSuccess;
  return TT_FAIL(ncclInvalidUsage,
                 "rank %d: %p lies in window %u (%p, %zu bytes), whose memory was freed%s; call "
                 "ncclCommWindowDeregister before memory is freed",
                 buffers->env->rank, ptr, window->number, (void *)window->base, window->bytes,
                 again ? " and allocated again" : "");
}

ncclResult_t tt_user_buffers_find(struct tt_user_buffers *buffers, const void *ptr, size_t bytes,
                                  struct tt_user_place *place, void **at)
{
  *place = (struct tt_user_place){0};
  if (!buffers) return ncclSuccess;
  pthread_mutex_lock(&buffers->lock);
  int i = first_behind(buffers, ptr);
  struct tt_user_window *window = i < buffers->nwindows ? buffers->windows[i] : NULL;
  size_t offset = window ? (uintptr_t)ptr - (uintptr_t)window->base : 0;
  if (window && ((uintptr_t)ptr < (uintptr_t)window->base || bytes > window->bytes - offset)) window = NULL;
  if (window) {
    *place = (struct tt_user_place){
        .window = window, .number = window->number, .offset = offset, .everywhere = window->everywhere};
    for (int r = 0; r < buffers->env->nranks; r++) at[r] = window->at[r] ? window->at[r] + offset : NULL;
  }
  pthread_mutex_unlock(&buffers->lock);
  ncclResult_t result = window ? check_alive(buffers, window, ptr, bytes) : ncclSuccess;
  if (result != ncclSuccess) *place = (struct tt_user_place){0};
  return result;
}

bool tt_user_buffers_any(const struct tt_user_buffers *buffers)
{
  return atomic_load_explicit(&buffers->nwindows, memory_order_relaxed) > 0;
}

void tt_user_window_hold(struct tt_user_window *window)
{
  pthread_mutex_lock(&holds_lock);
  window->holds++;
  pthread_mutex_unlock(&holds_lock);
}

void tt_user_window_let_go(struct tt_user_window *window)
{
  pthread_mutex_lock(&holds_lock);
  bool last = --window->holds == 0 && window->orphan;
  pthread_mutex_unlock(&holds_lock);
  if (last) free(window);
}

static bool held(const struct tt_user_window *window)
{
  pthread_mutex_lock(&holds_lock);
  bool is = window->holds > 0;
  pthread_mutex_unlock(&holds_lock);
  return is;
}

/* ---- The end ---- */

void tt_user_reap(struct tt_user_buffers *buffers)
{
  tt_user_graphs_reap(buffers);
  for (;;) {
    pthread_mutex_lock(&buffers->lock);
    struct tt_user_window **place = &buffers->closed;
    while (*place && held(*place)) place = &(*place)->next;
    struct tt_user_window *window = *place;
    if (window) *place = window->next;
    pthread_mutex_unlock(&buffers->lock);
    if (!window) return;
    tt_user_window_free(buffers, window);
  }
}

void tt_user_window_close(struct tt_transport_env *env, struct tt_user_window *window)
{
  struct tt_user_buffers *buffers = env->users;
  pthread_mutex_lock(&buffers->lock);
  if (--window->opened == 0) {
    int i = first_behind(buffers, window->base);
    struct tt_user_window **place = &buffers->windows[i];
    buffers->nwindows--;
    memmove(place, place + 1, (size_t)(buffers->nwindows - i) * sizeof(*place));
    window->next = buffers->closed;
    buffers->closed = window;
  }
  pthread_mutex_unlock(&buffers->lock);
  tt_user_reap(buffers);
}
