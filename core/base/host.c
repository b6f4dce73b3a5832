/* Host name, host hint, process identity, the library's place and its limit of open files. */
#include "base/host.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/param.h"
#include "base/timer.h"

static char host_name[HOST_NAME_MAX + 1];
static char library_dir[PATH_MAX];
static _Atomic uint64_t *process_word; /* in a page that the kernel zeroes in a forked child */

static void find_name(void)
{
  if (gethostname(host_name, sizeof(host_name) - 1) != 0 || !host_name[0]) strcpy(host_name, "unknown");
  host_name[strcspn(host_name, ".")] = 0;
  for (char *at = host_name; *at; at++)
    if (*at == '%' || *at == '/') *at = '-';
}

const char *tt_host_name(void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find_name);
  return host_name;
}

static uint64_t hash_file(uint64_t hash, const char *path)
{
  char text[256];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return hash;
  ssize_t bytes = read(fd, text, sizeof(text));
  close(fd);
  return bytes > 0 ? tt_hash_more(hash, text, (size_t)bytes) : hash;
}

uint64_t tt_host_hash(void)
{
  const char *given = tt_param_string(TT_PARAM_NCCL_HOSTID);
  if (given) return tt_hash(given, strlen(given));
  const char *name = tt_host_name();
  uint64_t hash = hash_file(tt_hash(name, strlen(name)), "/proc/sys/kernel/random/boot_id");
  struct stat space;
  if (stat("/proc/self/ns/net", &space) == 0) {
    hash = tt_hash_more(hash, &space.st_dev, sizeof(space.st_dev));
    hash = tt_hash_more(hash, &space.st_ino, sizeof(space.st_ino));
  }
  return hash;
}

static void make_process_word(void)
{
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  if (madvise(memory, page, MADV_WIPEONFORK) != 0) {
    munmap(memory, page);
    return;
  }
  process_word = memory;
}

uint64_t tt_host_process(void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  static _Atomic uint64_t seed; /* where the kernel cannot wipe: mixed with the process id instead */
  pthread_once(&once, make_process_word);
  _Atomic uint64_t *word = process_word ? process_word : &seed;
  uint64_t id = atomic_load(word);
  while (id == 0) {
    uint64_t fresh;
    if (tt_random(&fresh, sizeof(fresh)) != ncclSuccess) fresh = tt_timer_ns() ^ (uint64_t)getpid() << 40;
    if (fresh == 0) continue;
    if (atomic_compare_exchange_strong(word, &id, fresh)) id = fresh;
  }
  if (process_word) return id;
  pid_t pid = getpid();
  return tt_hash_more(id, &pid, sizeof(pid));
}

static void find_library_dir(void)
{
  Dl_info info;
  if (library_dir[0]) return;
  if (!dladdr((void *)find_library_dir, &info) || !info.dli_fname) return;
  if (!realpath(info.dli_fname, library_dir) && !realpath("/proc/self/exe", library_dir)) library_dir[0] = 0;
  char *slash = strrchr(library_dir, '/');
  if (slash) *slash = 0;
}

void tt_host_set_library_dir(const char *directory)
{
  snprintf(library_dir, sizeof(library_dir), "%s", directory);
}

const char *tt_host_library_dir(void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find_library_dir);
  return library_dir;
}

const char *tt_host_file_hint(int error, char *text, size_t size)
{
  struct rlimit limit = {0};
  int saved = errno;
  text[0] = 0;
  if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
    snprintf(text, size, " (the limit of open files is %llu; raise it with ulimit -n)",
             (unsigned long long)limit.rlim_cur);
  else if (error == ENFILE)
    snprintf(text, size, " (the limit of the whole system: /proc/sys/fs/file-max)");
  errno = saved;
  return text;
}

void tt_host_raise_file_limit(void)
{
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
    TT_INFO(TT_INIT, "raised the limit of open files from %llu to %llu", (unsigned long long)before,
            (unsigned long long)limit.rlim_max);
}
