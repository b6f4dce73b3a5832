/* Files: what is read, what is refused and with which words, and that what is written is what was read. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "machine.h"
#include "suites.h"

static struct tt_xml *parse(const char *text)
{
  struct tt_xml *xml = NULL;
  ck_assert_msg(tt_xml_parse(text, strlen(text), "f.xml", "system", &xml) == ncclSuccess, "%s", tt_log_thread_error());
  return xml;
}

static char *written(const struct tt_xml *xml)
{
  char *text = NULL;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  ck_assert_int_eq(tt_xml_write(xml, out), ncclSuccess);
  fclose(out);
  return text;
}

START_TEST(what_is_written_is_what_was_read)
{
  const char *text = "<system version=\"1\" name=\"a &amp; b &lt; &quot;c&quot; &#9;\">\n"
                     "  <cpu numaid=\"0\" arch=\"arm64\">\n"
                     "    <pci busid=\"0000:01:00.0\">\n"
                     "      <nobody knows=\"this\">\n"
                     "        <either/>\n"
                     "      </nobody>\n"
                     "      <gpu dev=\"0\" also=\"unknown\"/>\n"
                     "    </pci>\n"
                     "  </cpu>\n"
                     "  <cpu numaid=\"1\"/>\n"
                     "</system>\n";
  struct tt_xml *xml = parse(text);
  char *again = written(xml);
  ck_assert_str_eq(again, text);
  ck_assert_str_eq(tt_xml_get(xml, 0, "name"), "a & b < \"c\" \t");
  ck_assert_str_eq(tt_xml_get(xml, 3, "knows"), "this");
  ck_assert_int_eq(xml->elements[3].line, 4);
  free(again);
  tt_xml_free(xml);
}
END_TEST

START_TEST(generated_machines_survive)
{
  char *(*const machines[])(void) = {machine_hybrid_cube, machine_virtual, machine_arm_board};
  for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
    char *text = machines[i]();
    struct tt_xml *xml = parse(text);
    char *once = written(xml);
    tt_xml_free(xml);
    xml = parse(once);
    char *twice = written(xml);
    ck_assert_str_eq(once, twice);
    tt_xml_free(xml);
    free(text);
    free(once);
    free(twice);
  }
}
END_TEST

/* What NCCL's reader takes and XML has in another way, and the other way round. */
START_TEST(forms)
{
  static const char *const texts[] = {
      "<system version='1'/>", "<?xml version=\"1.0\"?>\n<system version=\"1\"/>",
      "<!-- one -- two > <three -->\n<system\n\tversion=\"1\"><!----><!-- --- --></system>\r\n",
      "<system version=\"1\" a=\"1\" b=\"2\" c=\"3\" d=\"4\" e=\"5\" f=\"6\" g=\"7\" h=\"8\" i=\"9\" j=\"10\" k=\"11\" "
      "l=\"12\" m=\"13\" n=\"14\" o=\"15\" p=\"16\" q=\"<!-- no comment -->\"/>"};
  for (size_t i = 0; i < 3; i++) {
    struct tt_xml *xml = parse(texts[i]);
    ck_assert_int_eq(xml->count, 1);
    ck_assert_str_eq(tt_xml_get(xml, 0, "version"), "1");
    tt_xml_free(xml);
  }
  /* A comment in a value is text, and XML wants its < written as an entity. */
  struct tt_xml *xml;
  ck_assert_int_eq(tt_xml_parse(texts[3], strlen(texts[3]), "f.xml", "system", &xml), ncclInvalidUsage);
}
END_TEST

static const struct refusal {
  const char *text, *words; /* that the message must have */
} refusals[] = {
    {"", "f.xml:1:1: no element found"},
    {"<system version=\"1\">\n<cpu>\n</system>", "f.xml:3:3: mismatched tag within <cpu> of line 2"},
    {"<system version=\"1\">\n", "no element found within <system> of line 1"},
    {"<system/>", "f.xml:1: <system> has no attribute version"},
    {"<system version=\"2\"/>", "f.xml:1: <system> is of version \"2\""},
    {"\n<graphs version=\"1\"/>", "f.xml:2: the outermost element is <graphs>"},
    {"<system version=\"1\">\n\n words </system>", "f.xml:3: the text \"words \" stands between elements"},
    {"<system version=\"1\"/>\nmore", "f.xml:2:1: junk after document element"},
    {"<system version=\"1\" version=\"1\"/>", "duplicate attribute"},
    {"<system version=1/>", "f.xml:1:"},
    {"<!DOCTYPE a [<!ENTITY b \"c\">]><system version=\"1\"/>", "f.xml:1: the file has a DOCTYPE"},
    {"<system version=\"1\"><!-- \n", "f.xml:1:21: unclosed token"},
};

START_TEST(refused)
{
  const struct refusal *r = &refusals[_i];
  struct tt_xml *xml;
  ck_assert_int_eq(tt_xml_parse(r->text, strlen(r->text), "f.xml", "system", &xml), ncclInvalidUsage);
  ck_assert_ptr_null(xml);
  ck_assert_msg(strstr(tt_log_thread_error(), r->words), "\"%s\" lacks \"%s\"", tt_log_thread_error(), r->words);
}
END_TEST

/* Neither depth nor length nor number reaches the stack or the memory. */
START_TEST(limits)
{
  struct tt_xml *xml;
  const int deep = 100000;
  char *text = malloc((size_t)deep * 8 + 64);
  size_t n = (size_t)sprintf(text, "<system version=\"1\">");
  for (int i = 0; i < deep; i++) n += (size_t)sprintf(text + n, "<pci>");
  ck_assert_int_eq(tt_xml_parse(text, n, "f.xml", "system", &xml), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "lies within more than"));
  n = (size_t)sprintf(text, "<system version=\"1\">");
  for (int i = 0; i < deep; i++) n += (size_t)sprintf(text + n, "<pci/>");
  ck_assert_int_eq(tt_xml_parse(text, n, "f.xml", "system", &xml), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "elements"));
  n = (size_t)sprintf(text, "<system version=\"1\"><cpu");
  for (int i = 0; i <= TT_XML_MOST_ATTRIBUTES; i++) n += (size_t)sprintf(text + n, " a%d=\"\"", i);
  n += (size_t)sprintf(text + n, "/></system>");
  ck_assert_int_eq(tt_xml_parse(text, n, "f.xml", "system", &xml), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "<cpu> has 257 attributes"));
  ck_assert_int_eq(tt_xml_parse(text, (size_t)TT_XML_MOST_BYTES + 1, "f.xml", "system", &xml), ncclInvalidUsage);
  free(text);
}
END_TEST

START_TEST(numbers)
{
  struct tt_xml *xml = parse("<system version=\"1\" a=\"0x10\" b=\"-3\" c=\"7x\" d=\"\" e=\"99999999999\"/>");
  int value;
  ck_assert_int_eq(tt_xml_need_int(xml, 0, "a", 0, 100, &value), ncclSuccess);
  ck_assert_int_eq(value, 16);
  ck_assert_int_eq(tt_xml_int(xml, 0, "b", -5, 5, 1, &value), ncclSuccess);
  ck_assert_int_eq(value, -3);
  ck_assert_int_eq(tt_xml_int(xml, 0, "none", 0, 1, 42, &value), ncclSuccess);
  ck_assert_int_eq(value, 42);
  ck_assert_int_eq(tt_xml_need_int(xml, 0, "none", 0, 1, &value), ncclInvalidUsage);
  ck_assert_int_eq(tt_xml_int(xml, 0, "b", 0, 5, 1, &value), ncclInvalidUsage);
  for (const char *name = "c\0d\0e\0"; *name; name += 2)
    ck_assert_int_eq(tt_xml_need_int(xml, 0, name, 0, INT32_MAX, &value), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "f.xml:1: <system>: e is \"99999999999\"; it must be a number"));
  tt_xml_free(xml);
}
END_TEST

START_TEST(built_and_kept_in_a_file)
{
  struct tt_xml *xml, *read;
  int cpu, gpu;
  char path[] = "/tmp/tutti-xml-XXXXXX";
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  close(fd);
  ck_assert_int_eq(tt_xml_create("made", &xml), ncclSuccess);
  ck_assert_int_eq(tt_xml_add(xml, -1, "system", &cpu), ncclSuccess);
  ck_assert_int_eq(tt_xml_set(xml, 0, "version", "0"), ncclSuccess);
  ck_assert_int_eq(tt_xml_set(xml, 0, "version", "1"), ncclSuccess);
  ck_assert_int_eq(tt_xml_add(xml, 0, "cpu", &cpu), ncclSuccess);
  ck_assert_int_eq(tt_xml_add(xml, cpu, "gpu", &gpu), ncclSuccess);
  ck_assert_int_eq(tt_xml_add(xml, 0, "cpu", &cpu), ncclSuccess);
  ck_assert_int_eq(tt_xml_add(xml, gpu, "nvlink", &cpu), ncclSuccess); /* into what was ended */
  ck_assert_int_eq(tt_xml_write_file(xml, path), ncclSuccess);
  ck_assert_int_eq(tt_xml_read(path, "system", &read), ncclSuccess);
  char *a = written(xml), *b = written(read);
  ck_assert_str_eq(a, b);
  ck_assert_str_eq(a, "<system version=\"1\">\n  <cpu>\n    <gpu>\n      <nvlink/>\n    </gpu>\n  </cpu>\n"
                      "  <cpu/>\n</system>\n");
  free(a);
  free(b);
  tt_xml_free(xml);
  tt_xml_free(read);
  unlink(path);
  ck_assert_int_eq(tt_xml_read(path, "system", &read), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "No such file"));
  ck_assert_int_eq(tt_xml_read("/", "system", &read), ncclInvalidUsage);
}
END_TEST

/* Nobody ever writes to the pipe, and the device has no end. */
START_TEST(only_regular_files_are_read)
{
  char folder[] = "/tmp/tutti-xml-XXXXXX", pipe[64];
  struct tt_xml *read;
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(pipe, sizeof(pipe), "%s/pipe", folder);
  ck_assert_int_eq(mkfifo(pipe, 0600), 0);
  const char *const paths[] = {pipe, "/dev/zero", "/"};
  for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
    ck_assert_int_eq(tt_xml_read(paths[i], "system", &read), ncclInvalidUsage);
    ck_assert_ptr_null(read);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), paths[i]));
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "it is no regular file"));
  }
  unlink(pipe);
  ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

/* A file that cannot be written as a whole stays what it was, and nothing is left beside it. */
START_TEST(whole_or_not_at_all)
{
  char folder[] = "/tmp/tutti-xml-XXXXXX", path[64], line[64] = "";
  struct tt_xml *xml = parse("<system version=\"1\"/>");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(path, sizeof(path), "%s/a.xml", folder);
  ck_assert_int_eq(tt_xml_write_file(xml, path), ncclSuccess);
  for (int i = 0; i < 400; i++) {
    int element;
    ck_assert_int_eq(tt_xml_add(xml, 0, "cpu", &element), ncclSuccess);
  }
  struct rlimit limit, before;
  getrlimit(RLIMIT_FSIZE, &before);
  limit = before;
  limit.rlim_cur = 1024;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &limit);
  ncclResult_t result = tt_xml_write_file(xml, path);
  setrlimit(RLIMIT_FSIZE, &before);
  ck_assert_int_eq(result, ncclSystemError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), path));
  FILE *file = fopen(path, "re");
  ck_assert_ptr_nonnull(file);
  ck_assert_ptr_nonnull(fgets(line, sizeof(line), file));
  fclose(file);
  ck_assert_str_eq(line, "<system version=\"1\"/>\n");
  ck_assert_int_eq(tt_xml_write_file(xml, "/dev/full"), ncclSystemError);
  tt_xml_free(xml);
  unlink(path);
  ck_assert_int_eq(rmdir(folder), 0); /* nothing else is in it */
}
END_TEST

Suite *suite_xml(void)
{
  Suite *suite = suite_create("xml");
  TCase *tests = tcase_create("xml");
  tcase_add_test(tests, what_is_written_is_what_was_read);
  tcase_add_test(tests, generated_machines_survive);
  tcase_add_test(tests, forms);
  tcase_add_loop_test(tests, refused, 0, sizeof(refusals) / sizeof(refusals[0]));
  tcase_add_test(tests, limits);
  tcase_add_test(tests, numbers);
  tcase_add_test(tests, built_and_kept_in_a_file);
  tcase_add_test(tests, only_regular_files_are_read);
  tcase_add_test(tests, whole_or_not_at_all);
  suite_add_tcase(suite, tests);
  return suite;
}
