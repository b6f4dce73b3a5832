/* The log: settings read once, lines put together and written, last errors kept. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "base/log_filter.h"
#include "base/log_write.h"
#include "base/param_source.h"
#include "base/timer.h"

#define ERROR_BYTES 1024      /* what ncclGetLastError keeps */
#define LINE_BYTES 2048       /* longer lines are put together on the heap, */
#define LINE_MOST (64 * 1024) /* and cut here */
#define CUT_MARK "... (cut)"

/* Never changed after it was published, but for the level; a reset publishes another one. */
struct config {
  _Atomic int level;
  unsigned long subsystems;
  int fd;
  unsigned stamped; /* bit 1 << level: lines with a time */
  char stamp[64];
  bool warn_raises;
  uint64_t start;
  struct config *before; /* kept, since another thread may still be reading it */
};

static _Atomic(struct config *) current; /* NULL until the first line */
static struct config *newest;            /* under `mutex` */
static int file_fd = -1;                 /* under `mutex`; one descriptor for the process's life, see open_file */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct config no_memory = {.fd = STDOUT_FILENO};

static _Atomic(tt_log_sink *) redirected; /* NULL: lines are printed here */

static char last_error[ERROR_BYTES]; /* under `error_mutex` */
static pthread_mutex_t error_mutex = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local char thread_error[ERROR_BYTES];
static _Thread_local int thread_device = -1;
static _Thread_local bool thread_hushed;

/* What the settings got wrong; said once they are in force. */
struct complaints {
  int level, subsystems, stamps; /* unknown names */
  int file_error;
  char file[PATH_MAX];
};

/* Opens the file on the descriptor that an earlier one had, so that a thread that is writing never meets a closed or a
 * foreign descriptor. */
static int open_file(const char *pattern, struct complaints *complaints)
{
  if (!tt_log_file_name(pattern, tt_host_name(), getpid(), complaints->file, sizeof(complaints->file))) {
    snprintf(complaints->file, sizeof(complaints->file), "%.*s", 256, pattern);
    complaints->file_error = ENAMETOOLONG;
    return STDOUT_FILENO;
  }
  int fd = open(complaints->file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOCTTY, 0644);
  if (fd >= 0 && file_fd >= 0) {
    int moved = dup3(fd, file_fd, O_CLOEXEC);
    int error = errno;
    close(fd);
    errno = error;
    fd = moved;
  }
  if (fd < 0) {
    complaints->file_error = errno;
    return STDOUT_FILENO;
  }
  file_fd = fd;
  return fd;
}

static struct config *read_config(struct complaints *complaints)
{
  struct config *config = calloc(1, sizeof(*config));
  if (!config) return &no_memory;
  const char *level = tt_param_source_string(TT_PARAM_NCCL_DEBUG);
  int number = level ? tt_log_level(level) : TT_LOG_NONE;
  /* Who asks for an unknown level wants to hear something, and above all that it is unknown. */
  complaints->level = number < 0;
  atomic_init(&config->level, number < 0 ? TT_LOG_WARN : number);
  const char *subsystems = tt_param_source_string(TT_PARAM_NCCL_DEBUG_SUBSYS);
  if (subsystems) config->subsystems = tt_log_subsystems(subsystems, &complaints->subsystems);
  /* A list of unknown names alone would hide all, also the warning that they are unknown. */
  if (!subsystems || (complaints->subsystems && !config->subsystems))
    config->subsystems = TT_INIT | TT_BOOTSTRAP | TT_ENV;
  const char *stamped = tt_param_source_string(TT_PARAM_NCCL_DEBUG_TIMESTAMP_LEVELS);
  config->stamped = stamped ? tt_log_level_bits(stamped, &complaints->stamps) : 1u << TT_LOG_WARN;
  const char *stamp = tt_param_source_string(TT_PARAM_NCCL_DEBUG_TIMESTAMP_FORMAT);
  snprintf(config->stamp, sizeof(config->stamp), "%s", stamp ? stamp : "[%F %T] ");
  config->warn_raises = tt_param_source_int(TT_PARAM_NCCL_WARN_ENABLE_DEBUG_INFO) != 0;
  config->start = tt_timer_ns();
  config->fd = STDOUT_FILENO;
  const char *file = tt_param_source_string(TT_PARAM_NCCL_DEBUG_FILE);
  if (file && number != TT_LOG_NONE && number != TT_LOG_VERSION) config->fd = open_file(file, complaints);
  config->before = newest;
  newest = config;
  return config;
}

static void complain(const struct complaints *complaints)
{
  if (complaints->level)
    TT_WARN("NCCL_DEBUG=%s is no level; taken as WARN; use NONE, VERSION, WARN, INFO or TRACE",
            tt_param_source_string(TT_PARAM_NCCL_DEBUG));
  if (complaints->subsystems)
    TT_WARN("NCCL_DEBUG_SUBSYS=%s: unknown names are ignored; use a comma list of INIT, COLL, P2P, SHM, NET, GRAPH, "
            "TUNING, ENV, ALLOC, CALL, PROXY, NVLS, BOOTSTRAP, REG, PROFILE, RAS, DESTROY, ALLOC_HOST, ALL",
            tt_param_source_string(TT_PARAM_NCCL_DEBUG_SUBSYS));
  if (complaints->stamps)
    TT_WARN("NCCL_DEBUG_TIMESTAMP_LEVELS=%s: unknown names are ignored; use a comma list of VERSION, WARN, INFO, "
            "TRACE, ALL",
            tt_param_source_string(TT_PARAM_NCCL_DEBUG_TIMESTAMP_LEVELS));
  if (complaints->file_error)
    TT_WARN("NCCL_DEBUG_FILE: cannot write %s: %s; logging to standard output", complaints->file,
            strerror(complaints->file_error));
}

static struct config *start_log(void)
{
  struct complaints complaints;
  memset(&complaints, 0, sizeof(complaints));
  pthread_mutex_lock(&mutex);
  struct config *config = atomic_load(&current);
  bool first = !config;
  if (first) {
    config = read_config(&complaints);
    atomic_store(&current, config);
  }
  pthread_mutex_unlock(&mutex);
  if (first) {
    complain(&complaints);
    static const enum tt_param_id read[] = {TT_PARAM_NCCL_DEBUG,
                                            TT_PARAM_NCCL_DEBUG_SUBSYS,
                                            TT_PARAM_NCCL_DEBUG_FILE,
                                            TT_PARAM_NCCL_DEBUG_TIMESTAMP_LEVELS,
                                            TT_PARAM_NCCL_DEBUG_TIMESTAMP_FORMAT,
                                            TT_PARAM_NCCL_WARN_ENABLE_DEBUG_INFO};
    for (size_t i = 0; i < sizeof(read) / sizeof(read[0]); i++) tt_param_source_announce(read[i]);
  }
  return config;
}

static struct config *get_config(void)
{
  struct config *config = atomic_load_explicit(&current, memory_order_acquire);
  if (config) return config;
  int saved = errno;
  config = start_log();
  errno = saved;
  return config;
}

static bool passes(struct config *config, int level, unsigned long subsystems)
{
  return level <= atomic_load_explicit(&config->level, memory_order_relaxed) && level > TT_LOG_NONE &&
         (subsystems & config->subsystems) != 0;
}

bool tt_log_enabled(enum tt_log_level level, unsigned long subsystems)
{
  if (atomic_load_explicit(&redirected, memory_order_relaxed)) return true;
  return passes(get_config(), level, subsystems);
}

void tt_log_redirect(tt_log_sink *sink)
{
  atomic_store(&redirected, sink);
}

static void keep_error(const char *text)
{
  snprintf(thread_error, sizeof(thread_error), "%s", text);
  pthread_mutex_lock(&error_mutex);
  memcpy(last_error, thread_error, sizeof(last_error));
  pthread_mutex_unlock(&error_mutex);
}

void tt_log_hush(bool hushed)
{
  thread_hushed = hushed;
}

void tt_log_remember(const char *text)
{
  keep_error(text);
}

/* Where a line comes from. A plugin gives one name for file or function; `func` is NULL then. */
struct place {
  const char *file;
  int line;
  const char *func;
};

/* The last two parts of a path: enough to find the file, and the same on every build machine. */
static const char *short_file(const char *file)
{
  if (!file) return "?";
  const char *slash = strrchr(file, '/');
  if (!slash) return file;
  while (slash > file && slash[-1] != '/') slash--;
  return slash;
}

static size_t write_prefix(char *text, size_t size, struct config *config, int level, unsigned long subsystems,
                           const struct place *place)
{
  char stamp[96] = "";
  if (config->stamped & 1u << level) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    tt_log_time(config->stamp, &now, stamp, sizeof(stamp));
  }
  char who[96];
  snprintf(who, sizeof(who), "%.60s:%d:%d", tt_host_name(), (int)getpid(), (int)gettid());
  const char *file = short_file(place->file);
  int bytes = 0;
  if (level == TT_LOG_WARN && place->func)
    bytes = snprintf(text, size, "\n%s%s [%d] %.200s:%d (%.200s) NCCL WARN ", stamp, who, thread_device, file,
                     place->line, place->func);
  else if (level == TT_LOG_WARN)
    bytes = snprintf(text, size, "\n%s%s [%d] %.200s:%d NCCL WARN ", stamp, who, thread_device, file, place->line);
  else if (level == TT_LOG_TRACE && subsystems == TT_CALL)
    bytes = snprintf(text, size, "%s%s NCCL CALL ", stamp, who);
  else if (level == TT_LOG_TRACE)
    bytes = snprintf(text, size, "%s%s [%d] %f %.200s:%d NCCL TRACE ", stamp, who, thread_device,
                     (double)(tt_timer_ns() - config->start) / 1e6, place->func ? place->func : file, place->line);
  else if (level != TT_LOG_VERSION)
    bytes =
        snprintf(text, size, "%s%s [%d] NCCL %s ", stamp, who, thread_device, level == TT_LOG_ABORT ? "ABORT" : "INFO");
  return bytes < 0 ? 0 : (size_t)bytes;
}

/* Ends the message in text[start..]: no line end of its own, a mark where it was cut, then one line end. */
static size_t finish_line(char *text, size_t size, size_t start, size_t wanted)
{
  size_t end = start + wanted;
  if (end + 2 > size) {
    end = size - 2;
    memcpy(text + end - strlen(CUT_MARK), CUT_MARK, strlen(CUT_MARK));
  }
  while (end > start && text[end - 1] == '\n') end--;
  text[end] = 0;
  return end;
}

static void log_to_sink(tt_log_sink *sink, int level, unsigned long subsystems, const struct place *place,
                        const char *format, va_list args)
{
  char text[LINE_BYTES];
  if (vsnprintf(text, sizeof(text), format, args) < 0) snprintf(text, sizeof(text), "%s", format);
  if (level == TT_LOG_WARN && thread_hushed) {
    level = TT_LOG_TRACE;
    snprintf(thread_error, sizeof(thread_error), "%.*s", (int)sizeof(thread_error) - 1, text);
  }
  sink((enum tt_log_level)level, subsystems, short_file(place->file), place->line, place->func, text);
}

static void log_va(int level, unsigned long subsystems, const struct place *place, const char *format, va_list args)
{
  int saved = errno;
  tt_log_sink *sink = atomic_load(&redirected);
  if (sink) {
    log_to_sink(sink, level, subsystems, place, format, args);
    errno = saved;
    return;
  }
  struct config *config = get_config();
  bool warns = level == TT_LOG_WARN;
  if (warns && thread_hushed) level = TT_LOG_TRACE;
  bool print = passes(config, level, subsystems);
  if (!print && !warns) {
    errno = saved;
    return;
  }
  char stack[LINE_BYTES], *line = stack, *heap = NULL;
  size_t size = sizeof(stack);
  size_t start = print ? write_prefix(line, size, config, level, subsystems, place) : 0;
  va_list again;
  va_copy(again, args);
  int wanted = vsnprintf(line + start, size - start, format, args);
  if (wanted < 0) wanted = snprintf(line + start, size - start, "(a message that cannot be formatted) %s", format);
  if (wanted >= 0 && start + (size_t)wanted + 2 > size) {
    size_t more = start + (size_t)wanted + 2;
    if (more > LINE_MOST) more = LINE_MOST;
    heap = malloc(more);
    if (heap) {
      memcpy(heap, stack, start);
      line = heap;
      size = more;
      vsnprintf(line + start, size - start, format, again);
    }
  }
  va_end(again);
  size_t end = finish_line(line, size, start, wanted < 0 ? 0 : (size_t)wanted);
  if (level == TT_LOG_WARN)
    keep_error(line + start);
  else if (warns)
    snprintf(thread_error, sizeof(thread_error), "%s", line + start);
  if (print) {
    line[end] = '\n';
    tt_log_write(config->fd, line, end + 1);
  }
  free(heap);
  if (print && level == TT_LOG_WARN && config->warn_raises && atomic_load(&config->level) < TT_LOG_INFO)
    atomic_store(&config->level, TT_LOG_INFO);
  errno = saved;
}

void tt_log_line(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                 const char *format, ...)
{
  struct place place = {file, line, func};
  va_list args;
  va_start(args, format);
  log_va((int)level, subsystems, &place, format, args);
  va_end(args);
}

ncclResult_t tt_log_fail(ncclResult_t result, const char *file, int line, const char *func, const char *format, ...)
{
  struct place place = {file, line, func};
  va_list args;
  va_start(args, format);
  log_va(TT_LOG_WARN, TT_ALL, &place, format, args);
  va_end(args);
  return result;
}

void tt_log_plugin(int level, unsigned long flags, const char *where, int line, const char *format, ...)
{
  if (level <= TT_LOG_NONE || !format) return;
  if (level > TT_LOG_TRACE) level = TT_LOG_TRACE;
  struct place place = {where, line, NULL};
  va_list args;
  va_start(args, format);
  log_va(level, flags, &place, format, args);
  va_end(args);
}

const char *tt_log_thread_error(void)
{
  return thread_error;
}

size_t tt_log_last_error(char *text, size_t size)
{
  pthread_mutex_lock(&error_mutex);
  size_t bytes = strlen(last_error);
  if (size > 0) snprintf(text, size, "%s", last_error);
  pthread_mutex_unlock(&error_mutex);
  return bytes;
}

void tt_log_report(const char *text)
{
  struct config *config = get_config();
  bool logs = atomic_load_explicit(&config->level, memory_order_relaxed) > TT_LOG_NONE;
  tt_log_write(logs ? config->fd : STDERR_FILENO, text, strlen(text));
}

void tt_log_set_device(int device)
{
  thread_device = device;
}

void tt_log_version(const char *text, bool first_rank)
{
  static atomic_flag printed = ATOMIC_FLAG_INIT;
  if (!first_rank && !tt_log_enabled(TT_LOG_INFO, TT_ALL)) return;
  if (!tt_log_enabled(TT_LOG_VERSION, TT_ALL) || atomic_flag_test_and_set(&printed)) return;
  tt_log_line(TT_LOG_VERSION, TT_ALL, __FILE__, __LINE__, __func__, "%s", text);
}

void tt_log_reset(void)
{
  tt_param_source_forget_log();
  pthread_mutex_lock(&mutex);
  atomic_store(&current, NULL);
  pthread_mutex_unlock(&mutex);
}
