/* Libraries that a copy or an unpacking left half done, and files that are none: an error, not the end of the process.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "helper.h"
#include "plugin/library.h"

static char folder[] = "/tmp/tutti-plugin-XXXXXX", path[64];

static void make_folder(void)
{
  start(NULL);
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/libcut.so", folder);
}

static void remove_folder(void)
{
  unlink(path);
  ck_assert_int_eq(rmdir(folder), 0);
}

/* A copy of a plugin, and its length. */
static off_t copy_plugin(void)
{
  char command[512];
  struct stat status;
  snprintf(command, sizeof command, "cp %s %s", STUB("stub12"), path);
  ck_assert_int_eq(system(command), 0);
  ck_assert_int_eq(stat(path, &status), 0);
  return status.st_size;
}

static enum tt_plugin_found try(char reason[TT_PLUGIN_REASON_BYTES])
{
  void *handle;
  enum tt_plugin_found found = tt_plugin_open(path, &handle, reason);
  if (found == TT_PLUGIN_OPEN) ck_assert_int_eq(dlclose(handle), 0);
  return found;
}

START_TEST(test_every_length)
{
  char reason[TT_PLUGIN_REASON_BYTES];
  int cut = 0;
  bool loads = true;
  off_t bytes = copy_plugin();
  ck_assert_int_eq(try(reason), TT_PLUGIN_OPEN);
  /* The headers, byte by byte, and the rest in steps that meet pages at all their offsets. */
  for (off_t length = bytes - 1; length >= 0; length -= length > 1100 ? 61 : 1) {
    ck_assert_int_eq(truncate(path, length), 0);
    enum tt_plugin_found found = try(reason);
    ck_assert_int_ne(found, TT_PLUGIN_MISSING);
    ck_assert_msg(loads || found == TT_PLUGIN_BROKEN, "%lld bytes load, more do not", (long long)length);
    loads = found == TT_PLUGIN_OPEN; /* without the table of sections, which nobody needs */
    if (strstr(reason, "libcut.so is cut short: ") && strstr(reason, " bytes; install it again"))
      cut++;
    else
      ck_assert_msg(loads || strstr(reason, "is not a shared library"), "%lld bytes: %s", (long long)length, reason);
  }
  ck_assert(!loads);
  ck_assert_int_gt(cut, 100);
}
END_TEST

/* Numbers whose sum is beyond all numbers. */
START_TEST(test_headers_that_promise_all)
{
  char reason[TT_PLUGIN_REASON_BYTES];
  unsigned char most[8];
  memset(most, 0xff, sizeof most);
  copy_plugin();
  int fd = open(path, O_RDWR | O_CLOEXEC);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(pwrite(fd, most, sizeof most, 32), sizeof most); /* e_phoff */
  close(fd);
  ck_assert_int_eq(try(reason), TT_PLUGIN_BROKEN);
  ck_assert_ptr_nonnull(strstr(reason, "is cut short"));
}
END_TEST

START_TEST(test_no_regular_file)
{
  char reason[TT_PLUGIN_REASON_BYTES];
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  ck_assert_int_eq(try(reason), TT_PLUGIN_BROKEN); /* and no wait for who writes into it */
  ck_assert_ptr_nonnull(strstr(reason, "libcut.so is not a shared library: it is no regular file"));
  ck_assert_int_eq(unlink(path), 0);
  ck_assert_int_eq(mkdir(path, 0700), 0);
  ck_assert_int_eq(try(reason), TT_PLUGIN_BROKEN);
  ck_assert_ptr_nonnull(strstr(reason, "it is no regular file"));
  ck_assert_int_eq(rmdir(path), 0);
  ck_assert_int_eq(try(reason), TT_PLUGIN_MISSING);
}
END_TEST

void add_whole_tests(Suite *suite)
{
  TCase *tcase = tcase_create("whole");
  tcase_set_timeout(tcase, 120);
  tcase_add_checked_fixture(tcase, make_folder, remove_folder);
  tcase_add_test(tcase, test_every_length);
  tcase_add_test(tcase, test_headers_that_promise_all);
  tcase_add_test(tcase, test_no_regular_file);
  suite_add_tcase(suite, tcase);
}
