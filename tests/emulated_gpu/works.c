/* What a stream or a graph has to do, piece by piece. */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MUCH = 256 << 10 };

/* ---- Marks ---- */

struct emu_mark *emu_mark_make(void)
{
  struct emu_mark *mark = emu_calloc(1, sizeof(*mark));
  mark->references = 1;
  return mark;
}

struct emu_mark *emu_mark_hold(struct emu_mark *mark)
{
  mark->references++;
  return mark;
}

void emu_mark_drop(struct emu_mark *mark)
{
  if (mark != NULL && --mark->references == 0) free(mark);
}

/* ---- Their life ---- */

struct emu_work *emu_work_make(const struct emu_work *work)
{
  return emu_copy_of(work, sizeof(*work));
}

struct emu_work *emu_work_clone(const struct emu_work *work)
{
  struct emu_work *clone = emu_work_make(work);
  clone->next = NULL;
  if (clone->what == EMU_KERNEL)
    clone->launch.arguments = emu_copy_of(clone->launch.arguments, clone->launch.kernel->bytes);
  if (clone->event != NULL) emu_event_hold(clone->event);
  if (clone->mark != NULL) clone->mark = clone->what == EMU_CALL ? emu_mark_make() : emu_mark_hold(clone->mark);
  return clone;
}

void emu_work_free(struct emu_work *work)
{
  free(work->launch.arguments);
  free(work->copy.staging);
  emu_mark_drop(work->mark);
  if (work->event != NULL) emu_event_drop(work->event);
  if (work->run != NULL) emu_run_free(work->run);
  free(work);
}

/* ---- What they do ---- */

/* EMULATED_LATE_GPU names one whose kernels wait a while before they begin. */
static bool is_late(int device)
{
  const char *text = getenv("EMULATED_LATE_GPU");
  char *end;
  if (text == NULL) return false;
  long late = strtol(text, &end, 10);
  if (end == text || *end != '\0' || late < 0 || late >= emu_device_count()) {
    fprintf(stderr, "emulated GPU: EMULATED_LATE_GPU=\"%s\" is the number of none of %d GPUs\n", text,
            emu_device_count());
    abort();
  }
  return device == late && emu_random(200) != 0;
}

static enum emu_progress step_kernel(struct emu_work *work)
{
  if (!work->begun && is_late(work->launch.device)) return EMU_BUSY;
  if (!work->begun) {
    work->begun = true;
    work->launch.grid =
        emu_grid_start(work->launch.kernel, work->launch.blocks, work->launch.threads, work->launch.arguments);
    emu_grid_hold(work->launch.grid, work->launch.held);
    return EMU_BUSY;
  }
  if (!emu_grid_is_done(work->launch.grid)) return EMU_BUSY;
  emu_grid_free(work->launch.grid);
  return EMU_DONE;
}

/* Zeros in much memory of a device: the pages go back to the system, whose next ones are zero. That takes no time for
 * what was never used, as most of a connection's slots never are. */
static bool zero_pages(char *to, size_t bytes)
{
  const uintptr_t page = 4096;
  char *first = (char *)(((uintptr_t)to + page - 1) / page * page),
       *last = (char *)(((uintptr_t)to + bytes) / page * page);
  if (bytes < MUCH || madvise(first, (size_t)(last - first), MADV_REMOVE) != 0) return false;
  memset(to, 0, (size_t)(first - to));
  memset(last, 0, (size_t)(to + bytes - last));
  return true;
}

/* A piece, from its beginning on or from its end on: CUDA does not say in which order bytes are copied. */
static enum emu_progress step_copy(struct emu_work *work)
{
  size_t left = work->copy.bytes - work->copy.done, piece = (size_t)4096 << emu_random(8);
  if (piece > left) piece = left;
  if (!work->begun) {
    work->begun = true;
    work->copy.backwards = emu_random(2) != 0;
    if (work->what == EMU_SET && work->copy.value == 0 && zero_pages(work->copy.to, work->copy.bytes)) return EMU_DONE;
  }
  size_t at = work->copy.backwards ? left - piece : work->copy.done;
  if (work->what == EMU_SET)
    memset(work->copy.to + at, work->copy.value, piece);
  else
    memmove(work->copy.to + at, work->copy.from + at, piece);
  work->copy.done += piece;
  return work->copy.done == work->copy.bytes ? EMU_DONE : EMU_BUSY;
}

static enum emu_progress step_call(struct emu_work *work)
{
  if (!work->begun) {
    work->begun = true;
    emu_call_later(work->call, work->argument, work->mark);
  }
  return work->mark->done ? EMU_DONE : EMU_BLOCKED;
}

enum emu_progress emu_work_step(struct emu_work *work)
{
  switch (work->what) {
  case EMU_KERNEL:
    return !work->begun && emu_random(4) == 0 ? EMU_BUSY : step_kernel(work);
  case EMU_COPY:
  case EMU_SET:
    return emu_random(4) == 0 ? EMU_BUSY : step_copy(work);
  case EMU_RECORD:
    work->mark->done = true;
    return EMU_DONE;
  case EMU_WAIT:
    return work->mark->done ? EMU_DONE : EMU_BLOCKED;
  case EMU_CALL:
    return step_call(work);
  case EMU_GRAPH:
    return emu_run_step(work->run);
  case EMU_EMPTY:
    break;
  }
  return EMU_DONE;
}
