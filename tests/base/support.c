/* Helpers of the base tests: environment, files in memory, the log's text. */
#include "support.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param_source.h"

static int log_fd = -1;
static char log_text[1 << 20];

void clean_setup(void)
{
  for (char **at = environ; at && *at;) {
    char name[256];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(*at, "="), *at);
    if (strncmp(name, "NCCL_", 5) == 0 || strncmp(name, "TUTTI_", 6) == 0) {
      unsetenv(name);
      at = environ;
    } else {
      at++;
    }
  }
  setenv("HOME", "/nonexistent", 1);
  tt_param_source_system_file("/nonexistent/nccl.conf");
  tt_param_reset();
  tt_log_reset();
}

TCase *clean_case(Suite *suite, const char *name)
{
  TCase *one = tcase_create(name);
  tcase_add_checked_fixture(one, clean_setup, NULL);
  tcase_set_timeout(one, 120);
  suite_add_tcase(suite, one);
  return one;
}

static const char *path_of(int fd)
{
  char *path = NULL;
  ck_assert_int_gt(asprintf(&path, "/proc/self/fd/%d", fd), 0);
  /* Kept for the process's life: handed out as a constant. */
  static char *all[64];
  static size_t count;
  ck_assert_uint_lt(count, 64);
  return all[count++] = path;
}

const char *memory_file(const char *content)
{
  int fd = memfd_create("test", 0);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
  return path_of(fd);
}

void start_log(const char *level, const char *subsystems)
{
  log_fd = memfd_create("log", 0);
  ck_assert_int_ge(log_fd, 0);
  setenv("NCCL_DEBUG", level, 1);
  setenv("NCCL_DEBUG_FILE", path_of(log_fd), 1);
  if (subsystems) setenv("NCCL_DEBUG_SUBSYS", subsystems, 1);
  tt_param_reset();
  tt_log_reset();
}

const char *logged(void)
{
  ssize_t bytes = pread(log_fd, log_text, sizeof(log_text) - 1, 0);
  ck_assert_int_ge(bytes, 0);
  log_text[bytes] = 0;
  return log_text;
}

int logged_times(const char *part)
{
  int times = 0;
  for (const char *at = logged(); (at = strstr(at, part)); at += strlen(part)) times++;
  return times;
}

void expect_logged(const char *pattern)
{
  regex_t regex;
  ck_assert_int_eq(regcomp(&regex, pattern, REG_EXTENDED | REG_NEWLINE | REG_NOSUB), 0);
  int found = regexec(&regex, logged(), 0, NULL, 0);
  regfree(&regex);
  ck_assert_msg(found == 0, "the log has no match for %s:\n%s", pattern, log_text);
}

void expect_error(const char *part)
{
  ck_assert_msg(strstr(tt_log_thread_error(), part), "\"%s\" is not in the last error: %s", part,
                tt_log_thread_error());
}

void set_variable(const char *name, const char *value)
{
  if (value)
    setenv(name, value, 1);
  else
    unsetenv(name);
  tt_param_reset();
}

void *zone_of_zeros(size_t bytes)
{
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(memory, MAP_FAILED);
  return memory;
}

uint32_t next_random(uint64_t *state)
{
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}
