/* The log: NCCL's line format, levels, subsystems and file patterns, since people's scripts parse them.
 *
 *   INFO   host:pid:tid [device] NCCL INFO text
 *   WARN   (empty line) [time] host:pid:tid [device] file:line (function) NCCL WARN text
 *
 * NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE choose what is printed and where, NCCL_DEBUG_TIMESTAMP_* which
 * lines carry the time. Every warning is also kept as the thread's and the process's last error, printed or not. A line
 * is one write(); a log that cannot be written loses lines and nothing else. Any thread may log; errno is preserved. */
#ifndef TT_BASE_LOG_H
#define TT_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"

enum tt_log_level {
  TT_LOG_NONE = 0,
  TT_LOG_VERSION = 1,
  TT_LOG_WARN = 2,
  TT_LOG_INFO = 3,
  TT_LOG_ABORT = 4,
  TT_LOG_TRACE = 5
};

/* Subsystem bits; the same values as in the plugin ABI (tutti/net.h). */
enum {
  TT_INIT = 0x1,
  TT_COLL = 0x2,
  TT_P2P = 0x4,
  TT_SHM = 0x8,
  TT_NET = 0x10,
  TT_GRAPH = 0x20,
  TT_TUNING = 0x40,
  TT_ENV = 0x80,
  TT_ALLOC = 0x100,
  TT_CALL = 0x200,
  TT_PROXY = 0x400,
  TT_NVLS = 0x800,
  TT_BOOTSTRAP = 0x1000,
  TT_REG = 0x2000,
  TT_PROFILE = 0x4000,
  TT_RAS = 0x8000,
  TT_DESTROY = 0x10000,
  TT_ALLOC_HOST = 0x20000
};
#define TT_ALL (~0ul)

/* True if a line of this level and these subsystems would be printed. */
bool tt_log_enabled(enum tt_log_level level, unsigned long subsystems);

void tt_log_line(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                 const char *format, ...) __attribute__((format(printf, 6, 7)));

#define TT_INFO(subsystems, ...)                                                                                       \
  do {                                                                                                                 \
    if (tt_log_enabled(TT_LOG_INFO, (subsystems)))                                                                     \
      tt_log_line(TT_LOG_INFO, (subsystems), __FILE__, __LINE__, __func__, __VA_ARGS__);                               \
  } while (0)
#define TT_TRACE(subsystems, ...)                                                                                      \
  do {                                                                                                                 \
    if (tt_log_enabled(TT_LOG_TRACE, (subsystems)))                                                                    \
      tt_log_line(TT_LOG_TRACE, (subsystems), __FILE__, __LINE__, __func__, __VA_ARGS__);                              \
  } while (0)
/* A warning that does not by itself fail anything. */
#define TT_WARN(...) tt_log_line(TT_LOG_WARN, TT_ALL, __FILE__, __LINE__, __func__, __VA_ARGS__)

/* Warns, remembers the text as the last error, and returns `result`. Use through TT_FAIL. */
ncclResult_t tt_log_fail(ncclResult_t result, const char *file, int line, const char *func, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* While hushed, the calling thread's warnings are lines of TRACE, kept as the thread's last error only: for calls whose
 * failure may turn out to be of no importance to anyone. */
void tt_log_hush(bool hushed);

/* Keeps a sentence that another thread reported as this thread's last error too, without printing it again. */
void tt_log_remember(const char *text);

/* The text of the calling thread's last warning, or "" (never NULL). Valid until the thread's next warning. */
const char *tt_log_thread_error(void);
/* Copies the process's last warning. Returns its length. */
size_t tt_log_last_error(char *text, size_t size);

/* Writes a report that was asked for, whatever the level: to the log where there is one, else to stderr. */
void tt_log_report(const char *text);

/* The device number shown in brackets for the calling thread; [-1] until it is set. */
void tt_log_set_device(int device);

/* Prints the version line once per process: always at INFO and above, else only if `first_rank`. */
void tt_log_version(const char *text, bool first_rank);

/* The function handed to plugins (ncclDebugLogger_t of tutti/net.h). */
void tt_log_plugin(int level, unsigned long flags, const char *where, int line, const char *format, ...);

/* Hands every line to `sink`, which filters and prints, in place of this log; NULL prints again. For plugins, whose
 * lines belong to the log of whoever loaded them. Set before the first line. */
typedef void tt_log_sink(enum tt_log_level level, unsigned long subsystems, const char *file, int line,
                         const char *func, const char *text);
void tt_log_redirect(tt_log_sink *sink);

/* Re-reads the environment; for tests and for ncclResetDebugInit. */
void tt_log_reset(void);

#endif
