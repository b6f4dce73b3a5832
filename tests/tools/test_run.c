/* tutti-run's judgement of programs and of maps. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "maps.h"
#include "program.h"
#include "suites.h"

static char directory[] = "/tmp/tutti-run-XXXXXX", error[PATH_MAX + 512], path[PATH_MAX];

static const char *make_file(const char *name, const char *text, mode_t mode)
{
  static char file[PATH_MAX];
  snprintf(file, sizeof(file), "%s/%s", directory, name);
  FILE *out = fopen(file, "w");
  ck_assert_ptr_nonnull(out);
  fputs(text, out);
  fclose(out);
  ck_assert_int_eq(chmod(file, mode), 0);
  return file;
}

static void set_up(void)
{
  ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void tear_down(void)
{
  char command[PATH_MAX + 16];
  snprintf(command, sizeof(command), "rm -rf %s", directory);
  ck_assert_int_eq(system(command), 0);
}

START_TEST(programs_are_found_as_a_shell_would)
{
  char search[PATH_MAX];
  snprintf(search, sizeof(search), "/nonexistent::%s:/bin", directory);
  const char *script = make_file("tool", "#!/bin/sh\n", 0755);
  ck_assert_int_eq(run_program_find("tool", search, path, sizeof(path), error, sizeof(error)), 0);
  ck_assert_str_eq(path, script);
  ck_assert_int_eq(run_program_find(script, "", path, sizeof(path), error, sizeof(error)), 0);
  ck_assert_int_eq(run_program_find("no-such-tool", search, path, sizeof(path), error, sizeof(error)), RUN_NOT_FOUND);
  ck_assert_ptr_nonnull(strstr(error, "no-such-tool"));
  ck_assert_int_eq(run_program_find("/no/such", search, path, sizeof(path), error, sizeof(error)), RUN_NOT_FOUND);
  ck_assert_int_eq(run_program_find(directory, search, path, sizeof(path), error, sizeof(error)), RUN_CANNOT);
  const char *plain = make_file("plain", "text", 0644);
  ck_assert_int_eq(run_program_find(plain, search, path, sizeof(path), error, sizeof(error)), RUN_CANNOT);
  ck_assert_ptr_nonnull(strstr(error, "not executable"));
  ck_assert_int_eq(run_program_find("plain", search, path, sizeof(path), error, sizeof(error)), RUN_CANNOT);
}
END_TEST

START_TEST(what_cannot_be_preloaded_is_refused)
{
  char source[PATH_MAX], program[PATH_MAX], command[3 * PATH_MAX + 64];
  ck_assert_msg(run_program_preloads("/bin/sh", error, sizeof(error)), "%s", error);
  ck_assert(run_program_preloads(make_file("good", "#!/bin/sh\nexit 0\n", 0755), error, sizeof(error)));
  ck_assert(!run_program_preloads(make_file("lost", "#! /no/such/shell -x\n", 0755), error, sizeof(error)));
  ck_assert_ptr_nonnull(strstr(error, "/no/such/shell"));
  snprintf(source, sizeof(source), "%s", make_file("main.c", "int main(void) { return 0; }\n", 0644));
  snprintf(program, sizeof(program), "%s/static", directory);
  snprintf(command, sizeof(command), "cc -static -o %s %s 2>/dev/null", program, source);
  ck_assert_int_eq(system(command), 0);
  ck_assert(!run_program_preloads(program, error, sizeof(error)));
  ck_assert_ptr_nonnull(strstr(error, "statically"));
  /* A script is as good as its interpreter. */
  char line[PATH_MAX + 8];
  snprintf(line, sizeof(line), "#!%s\n", program);
  ck_assert(!run_program_preloads(make_file("by-static", line, 0755), error, sizeof(error)));
  ck_assert_ptr_nonnull(strstr(error, "statically"));
}
END_TEST

START_TEST(setuid_is_refused)
{
  char copy[PATH_MAX + 32], command[3 * PATH_MAX];
  snprintf(copy, sizeof(copy), "%s/copy", directory);
  snprintf(command, sizeof(command), "cp /bin/true %s", copy);
  ck_assert_int_eq(system(command), 0);
  ck_assert(run_program_preloads(copy, error, sizeof(error)));
  /* Only root can give a file to another user; for root a setuid root program raises nothing. */
  if (geteuid() != 0) return;
  ck_assert_int_eq(chown(copy, 65534, 65534), 0);
  ck_assert_int_eq(chmod(copy, 04755), 0);
  ck_assert(!run_program_preloads(copy, error, sizeof(error)));
  ck_assert_ptr_nonnull(strstr(error, "setuid"));
}
END_TEST

static struct run_maps scan(const char *text)
{
  struct run_maps maps;
  FILE *file = fmemopen((void *)text, strlen(text), "r");
  run_maps_scan(file, "/opt/tutti/compat/libnccl.so.2", &maps);
  fclose(file);
  return maps;
}

START_TEST(maps_tell_which_nccl)
{
#define LIBC "7f00-7f01 r-xp 0 08:01 1    /lib/x86_64-linux-gnu/libc.so.6\n"
#define OURS "7f02-7f03 r-xp 0 08:01 2    /opt/tutti/compat/libnccl.so.2\n"
  struct run_maps maps = scan("5500-5501 r-xp 0 08:01 3    /usr/bin/x\n7ffc-7ffd rw-p 0 0 0    [stack]\n");
  ck_assert(maps.readable && !maps.loaded && !maps.ours && !maps.other[0]);
  maps = scan(LIBC OURS);
  ck_assert(maps.loaded && maps.ours && !maps.other[0]);
  maps = scan(LIBC OURS "7f04-7f05 r-xp 0 08:01 4    /venv/nvidia/nccl/lib/libnccl.so.2\n");
  ck_assert(maps.ours);
  ck_assert_str_eq(maps.other, "/venv/nvidia/nccl/lib/libnccl.so.2");
  maps = scan(LIBC "7f04-7f05 r-xp 0 08:01 4    /usr/lib/libnccl.so.2.21.5 (deleted)\n");
  ck_assert(!maps.ours);
  ck_assert_str_eq(maps.other, "/usr/lib/libnccl.so.2.21.5");
  /* Plugins are not NCCL. */
  maps = scan(LIBC OURS "7f04-7f05 r-xp 0 08:01 4    /usr/lib/libnccl-net.so\n");
  ck_assert(maps.ours && !maps.other[0]);
}
END_TEST

Suite *suite_run(void)
{
  Suite *suite = suite_create("run");
  TCase *tests = tcase_create("run");
  tcase_add_checked_fixture(tests, set_up, tear_down);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, programs_are_found_as_a_shell_would);
  tcase_add_test(tests, what_cannot_be_preloaded_is_refused);
  tcase_add_test(tests, setuid_is_refused);
  tcase_add_test(tests, maps_tell_which_nccl);
  suite_add_tcase(suite, tests);
  return suite;
}
