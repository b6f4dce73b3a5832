/* The GPUs' thread: it does the works of all streams of all devices, and runs the threads of kernels. In which order
 * streams come is left to chance, and so is how far one goes before the next: whoever needs an order has to ask CUDA
 * for it. Kernels of several streams and devices are active side by side, as many as there are: how many a device has
 * room for is not emulated. */
#include "gpu.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_cond_t something_new = PTHREAD_COND_INITIALIZER, something_done = PTHREAD_COND_INITIALIZER,
                      something_to_call = PTHREAD_COND_INITIALIZER;

/* Signals are for the program's own threads, but those of a thread's own faults. */
static void start_thread(void *(*run)(void *), const char *name)
{
  pthread_t thread;
  sigset_t all, before;
  const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
  sigfillset(&all);
  for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) sigdelset(&all, faults[i]);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&thread, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) {
    fprintf(stderr, "emulated GPU: the thread of %s cannot be started\n", name);
    abort();
  }
  pthread_setname_np(thread, name);
  pthread_detach(thread);
}

/* ---- Works ---- */

/* Goes on with a stream. Returns whether streams are to be looked at again soon: this one, or others that wait for what
 * it has done. */
static bool look_at(struct CUstream_st *stream)
{
  bool again = false;
  while (stream->first != NULL) {
    struct emu_work *work = stream->first;
    enum emu_progress progress = emu_work_step(work);
    if (progress != EMU_DONE) return again || progress == EMU_BUSY;
    again = true;
    stream->first = work->next;
    if (stream->first == NULL) stream->end = &stream->first;
    stream->finished++;
    emu_work_free(work);
    pthread_cond_broadcast(&something_done);
    if (emu_random(2) == 0) break;
  }
  emu_stream_end_if_empty(stream);
  return again;
}

/* All streams, beginning with any. */
static bool look_at_all(void)
{
  static struct CUstream_st **streams;
  static size_t room;
  size_t count = 0;
  bool busy = false;
  for (struct CUstream_st *stream = emu_streams; stream != NULL; stream = stream->next) {
    if (stream->first == NULL) continue;
    if (count == room) {
      room = 2 * room + 16;
      streams = realloc(streams, room * sizeof(*streams));
      if (streams == NULL) abort();
    }
    streams[count++] = stream;
  }
  while (count > 0) {
    size_t at = emu_random((uint32_t)count);
    struct CUstream_st *stream = streams[at];
    streams[at] = streams[--count];
    busy |= look_at(stream);
  }
  return busy;
}

static void *run_works(void *unused)
{
  emu_faults_watch();
  pthread_mutex_lock(&emu_lock);
  for (;;) {
    if (!look_at_all()) {
      pthread_cond_wait(&something_new, &emu_lock);
      continue;
    }
    pthread_mutex_unlock(&emu_lock);
    emu_grids_run();
    sched_yield(); /* other processes' kernels may be what ours wait for */
    pthread_mutex_lock(&emu_lock);
  }
  return unused;
}

void emu_gpu_wake(void)
{
  static bool started;
  if (!started) start_thread(run_works, "emulated-gpu");
  started = true;
  pthread_cond_signal(&something_new);
}

void emu_gpu_wait(void)
{
  pthread_cond_wait(&something_done, &emu_lock);
}

/* ---- Calls of the user's functions ---- */

struct later {
  struct later *next;
  cudaHostFn_t function;
  void *argument;
  struct emu_mark *mark;
};
static struct later *first_later, **later_end = &first_later;

static void *run_calls(void *unused)
{
  emu_in_callback();
  pthread_mutex_lock(&emu_lock);
  for (;;) {
    struct later *later = first_later;
    if (later == NULL) {
      pthread_cond_wait(&something_to_call, &emu_lock);
      continue;
    }
    first_later = later->next;
    if (first_later == NULL) later_end = &first_later;
    pthread_mutex_unlock(&emu_lock);
    later->function(later->argument);
    pthread_mutex_lock(&emu_lock);
    if (later->mark != NULL) {
      later->mark->done = true;
      emu_mark_drop(later->mark);
      emu_gpu_wake();
    }
    free(later);
  }
  return unused;
}

void emu_call_later(cudaHostFn_t function, void *argument, struct emu_mark *mark)
{
  static bool started;
  struct later *later = emu_calloc(1, sizeof(*later));
  *later =
      (struct later){.function = function, .argument = argument, .mark = mark != NULL ? emu_mark_hold(mark) : NULL};
  *later_end = later;
  later_end = &later->next;
  if (!started) start_thread(run_calls, "emulated-calls");
  started = true;
  pthread_cond_signal(&something_to_call);
}
