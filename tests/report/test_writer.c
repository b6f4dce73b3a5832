/* The two forms of a report's text. */
#include "suites.h"

#include <stdlib.h>
#include <string.h>
#include "report/writer.h"

static char *write_some(bool json)
{
  struct tt_writer writer = {.json = json};
  const int late[] = {2, 5};
  tt_writer_open(&writer, NULL, '{');
  tt_writer_number(&writer, "pid", 7);
  tt_writer_open(&writer, "list", '[');
  tt_writer_open(&writer, NULL, '{');
  tt_writer_text(&writer, "name", "a \"b\"\n\\c");
  tt_writer_text(&writer, "none", NULL);
  tt_writer_open(&writer, "inner", '{');
  tt_writer_signed(&writer, "peer", -1);
  tt_writer_flag(&writer, "awaited", true);
  tt_writer_close(&writer, '{');
  tt_writer_close(&writer, '{');
  tt_writer_open(&writer, NULL, '{');
  tt_writer_seconds(&writer, "still", 1002999999);
  tt_writer_mean(&writer, "mean", 29, 10);
  tt_writer_mean(&writer, "of_none", 5, 0);
  tt_writer_list(&writer, "late", late, 2);
  tt_writer_close(&writer, '{');
  tt_writer_close(&writer, '[');
  tt_writer_open(&writer, "empty", '[');
  tt_writer_close(&writer, '[');
  tt_writer_list(&writer, "nobody", late, 0);
  tt_writer_close(&writer, '{');
  ck_assert(!writer.failed);
  ck_assert_uint_eq(writer.used, strlen(writer.text));
  return writer.text;
}

START_TEST(json)
{
  char *text = write_some(true);
  ck_assert_str_eq(
      text, "{\n\"pid\": 7,\n\"list\": [\n{\n\"name\": \"a \\\"b\\\"\\u000a\\\\c\",\n\"none\": null,\n\"inner\": "
            "{\n\"peer\": -1,\n\"awaited\": true}},\n{\n\"still\": 1.002,\n\"mean\": 2.9,\n\"of_none\": "
            "0.0,\n\"late\": [2, 5]}],\n\"empty\": "
            "[],\n\"nobody\": []}\n");
  free(text);
}
END_TEST

START_TEST(lines)
{
  char *text = write_some(false);
  ck_assert_str_eq(text, "pid: 7\nlist:\n- name: a \"b\"\\u000a\\c\n  inner:\n    peer: -1\n    awaited: yes\n- still: "
                         "1.002\n  mean: 2.9\n  of_none: 0.0\n  late: 2, 5\nempty:\nnobody: none\n");
  free(text);
}
END_TEST

Suite *writer_suite(void)
{
  Suite *suite = suite_create("writer");
  TCase *tcase = tcase_create("forms");
  tcase_add_test(tcase, json);
  tcase_add_test(tcase, lines);
  suite_add_tcase(suite, tcase);
  return suite;
}
