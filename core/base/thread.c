/* Helper threads: stack size and signal mask do not depend on what the application set. */
#include "base/thread.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"

#define STACK_LEAST ((size_t)1 << 20)
#define STACK_MOST ((size_t)8 << 20)

/* What of a stack is not for the thread's functions: its thread-local storage, of all libraries, lies there too. Only
 * glibc knows how much; the function has no header, and language runtimes look it up the same way. */
static size_t reserved_bytes(void)
{
  size_t (*least_stack)(const pthread_attr_t *) = NULL;
  *(void **)&least_stack = dlsym(RTLD_DEFAULT, "__pthread_get_minstack");
  pthread_attr_t attr;
  if (least_stack && pthread_attr_init(&attr) == 0) {
    size_t bytes = least_stack(&attr);
    pthread_attr_destroy(&attr);
    return bytes;
  }
  long least = sysconf(_SC_THREAD_STACK_MIN);
  return least > 0 ? (size_t)least : 0;
}

/* The process's own limit where it is sane. A small one would overflow, and an unlimited one makes glibc fall back to
 * 2 MiB on some machines and reserve gigabytes on others. */
static size_t stack_bytes(void)
{
  size_t bytes = STACK_MOST;
  struct rlimit limit;
  if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < STACK_MOST)
    bytes = (size_t)limit.rlim_cur;
  if (bytes < STACK_LEAST) bytes = STACK_LEAST;
  bytes += reserved_bytes();
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

/* Faults of the thread itself stay deliverable, so that an application's crash handler still sees them. */
static void block_signals(sigset_t *before)
{
  sigset_t all;
  sigfillset(&all);
  const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
  for (size_t i = 0; i < TT_COUNT(faults); i++) sigdelset(&all, faults[i]);
  pthread_sigmask(SIG_SETMASK, &all, before);
}

ncclResult_t tt_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg)
{
  pthread_attr_t attr;
  int error = pthread_attr_init(&attr);
  if (error) return TT_FAIL(ncclSystemError, "thread %s: no attributes: %s", name, strerror(error));
  size_t stack = stack_bytes();
  error = pthread_attr_setstacksize(&attr, stack);
  if (!error) {
    /* The child inherits the mask; blocking after its start would leave a gap. */
    sigset_t before;
    block_signals(&before);
    error = pthread_create(thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  pthread_attr_destroy(&attr);
  if (error)
    return TT_FAIL(ncclSystemError,
                   "thread %s with a stack of %zu KiB did not start: %s; the limits on processes (ulimit -u, the "
                   "container's pids limit) and on memory (ulimit -v) count threads too",
                   name, stack >> 10, strerror(error));
  char short_name[16];
  snprintf(short_name, sizeof(short_name), "%s", name);
  pthread_setname_np(*thread, short_name);
  return ncclSuccess;
}
