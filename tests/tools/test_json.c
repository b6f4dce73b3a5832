/* The JSON writer, judged by an independent reader (python3, as scripts would). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "json.h"
#include "suites.h"

START_TEST(well_formed)
{
  char path[] = "/tmp/tutti-json-XXXXXX", command[512], error[256];
  struct tool_json json = {0};
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  close(fd);
  tool_json_open(&json, NULL, '{');
  tool_json_string(&json, "text", "quote \" backslash \\ newline \n tab \t bell \a caf\xc3\xa9");
  tool_json_string(&json, "none", NULL);
  tool_json_integer(&json, "large", INT64_MIN);
  tool_json_real(&json, "third", 1.0 / 3);
  tool_json_real(&json, "nan", NAN);
  tool_json_real(&json, "inf", INFINITY);
  tool_json_bool(&json, "yes", true);
  tool_json_open(&json, "empty", '[');
  tool_json_close(&json, '[');
  tool_json_open(&json, "list", '[');
  tool_json_open(&json, NULL, '{');
  tool_json_close(&json, '{');
  for (int i = 0; i < 1000; i++) tool_json_integer(&json, NULL, i);
  tool_json_close(&json, '[');
  tool_json_string(&json, "last", "");
  tool_json_close(&json, '{');
  ck_assert_msg(tool_json_save(&json, path, error, sizeof(error)), "%s", error);
  snprintf(command, sizeof(command),
           "python3 -c 'import json,sys; d = json.load(open(sys.argv[1])); "
           "assert d[\"text\"] == \"quote \\\" backslash \\\\ newline \\n tab \\t bell \\a caf\\u00e9\", d[\"text\"]; "
           "assert d[\"none\"] is None and d[\"nan\"] is None and d[\"inf\"] is None; "
           "assert d[\"large\"] == -2**63 and abs(d[\"third\"] - 1/3) < 1e-8 and d[\"yes\"] is True; "
           "assert d[\"empty\"] == [] and len(d[\"list\"]) == 1001 and d[\"last\"] == \"\"' %s",
           path);
  ck_assert_int_eq(system(command), 0);
  unlink(path);
}
END_TEST

START_TEST(places_that_cannot_be_written_are_named)
{
  struct tool_json json = {0};
  char error[256] = "";
  tool_json_open(&json, NULL, '{');
  tool_json_close(&json, '{');
  ck_assert(!tool_json_save(&json, "/nonexistent/x.json", error, sizeof(error)));
  ck_assert_ptr_nonnull(strstr(error, "/nonexistent/x.json"));
}
END_TEST

/* A device or a link stays what it is, and its errors count. */
START_TEST(only_files_are_replaced)
{
  char directory[] = "/tmp/tutti-json-XXXXXX", file[64], link[64], error[256] = "";
  struct stat full, there;
  struct tool_json json = {0};
  ck_assert_ptr_nonnull(mkdtemp(directory));
  snprintf(file, sizeof(file), "%s/file", directory);
  snprintf(link, sizeof(link), "%s/link", directory);
  ck_assert_int_eq(symlink("file", link), 0);
  tool_json_open(&json, NULL, '{');
  tool_json_close(&json, '{');
  ck_assert_msg(tool_json_save(&json, link, error, sizeof(error)), "%s", error);
  ck_assert_int_eq(lstat(link, &there), 0);
  ck_assert(S_ISLNK(there.st_mode));
  ck_assert_int_eq(stat(file, &there), 0);
  ck_assert_int_eq(there.st_size, 3);
  /* The same device under another name, so that a failing test does no harm. */
  unlink(link);
  ck_assert_int_eq(symlink("/dev/full", link), 0);
  if (stat("/dev/full", &full) == 0 && S_ISCHR(full.st_mode)) {
    tool_json_open(&json, NULL, '{');
    tool_json_close(&json, '{');
    ck_assert(!tool_json_save(&json, link, error, sizeof(error)));
    ck_assert_ptr_nonnull(strstr(error, "No space left"));
  }
  unlink(link);
  unlink(file);
  rmdir(directory);
}
END_TEST

Suite *suite_json(void)
{
  Suite *suite = suite_create("json");
  TCase *tests = tcase_create("json");
  tcase_add_test(tests, well_formed);
  tcase_add_test(tests, only_files_are_replaced);
  tcase_add_test(tests, places_that_cannot_be_written_are_named);
  suite_add_tcase(suite, tests);
  return suite;
}
