/* Files that others broke, in broken/ of the published machines: each is refused with its line, or read, as listed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "machine.h"
#include "suites.h"

static const struct file {
  const char *name, *words; /* of the message; NULL: it is read */
} files[] = {
    {"attr-double-space", NULL},
    {"attr-newline", NULL}, /* NCCL refuses it */
    {"comment-ok", NULL},
    {"comment-unterminated", ":1:1: unclosed token"},
    {"crlf", NULL},
    {"duplicate-busid", ":11: <gpu dev=\"1\"> is on the same bus id as the GPU of line 4"}, /* NCCL reads it, and
                                                                                                loses a GPU's links */
    {"empty", ":1:1: no element found"},
    {"long-value", NULL}, /* NCCL refuses it */
    {"mismatched-close", ":31:5: mismatched tag within <cpu> of line 2"},
    {"missing-arch", ":2: <cpu numaid=\"0\"> has no attribute arch"},
    {"missing-busid", ":3: <pci> has no attribute busid"},
    {"missing-class", ":3: <pci busid=\"0000:1a:00.0\"> has no attribute class"},
    {"missing-close", "no element found within <system> of line 1"},
    {"missing-count", ":5: <nvlink target=\"0000:1c:00.0\"> has no attribute count"},
    {"missing-familyid", ":2: <cpu numaid=\"0\"> has no attribute familyid"},
    {"missing-link-speed", ":3: <pci busid=\"0000:1a:00.0\"> has no attribute link_speed"},
    {"missing-link-width", ":3: <pci busid=\"0000:1a:00.0\"> has no attribute link_width"},
    {"missing-numaid", ":2: <cpu> has no attribute numaid"},
    {"missing-sm", ":4: <gpu dev=\"0\"> has no attribute sm"},
    {"missing-tclass", ":5: <nvlink target=\"0000:1c:00.0\"> has no attribute tclass"},
    {"missing-vendor", ":2: <cpu numaid=\"0\"> has no attribute vendor"},
    {"no-version", ":1: <system> has no attribute version"},
    {"nvlink-count0", ":5: <nvlink target=\"0000:1c:00.0\">: count is \"0\""},
    {"nvlink-one-direction", ":4: DEV 0000:1a:00.0 has a link of type NVL to DEV 0000:1c:00.0 (line 11)"},
    {"nvlink-self-target", ":11: DEV 0000:1c:00.0 has a link of type NVL to DEV 0000:1a:00.0 (line 4)"},
    {"nvlink-unknown-target", ":11: DEV 0000:1c:00.0 has a link of type NVL to DEV 0000:1a:00.0 (line 4)"},
    {"only-system", ":1: <system> has no <cpu>"},
    {"seventeen-attrs", NULL}, /* NCCL crashes */
    {"single-quotes", NULL},
    {"tabs-indent", NULL}, /* NCCL refuses it */
    {"text-content", ":8: the text \"hello\" stands between elements"},
    {"trailing-garbage", ":33:1: junk after document element"},
    {"unknown-arch", NULL},
    {"unknown-attr", NULL},
    {"unknown-element", NULL},
    {"unknown-speed", NULL},
    {"unknown-vendor", NULL},
    {"unquoted-int", ":2:46: not well-formed"},
    {"uppercase-busid", NULL},
    {"version2", ":1: <system> is of version \"2\""},
    {"width0", NULL},
    {"xml-prolog", NULL}, /* NCCL refuses it */
};

START_TEST(broken)
{
  const struct file *f = &files[_i];
  const char *directory = getenv("TUTTI_TOPOLOGIES");
  struct tt_topology_rules rules = tt_topology_rules_default();
  struct tt_topology *t = NULL;
  struct tt_xml *xml = NULL;
  char path[4096];
  snprintf(path, sizeof(path), "%s/broken/%s.xml", directory ? directory : TEST_TOPOLOGIES, f->name);
  if (access(path, R_OK) != 0) {
    if (_i == 0) printf("SKIP: no broken files in %s\n", directory ? directory : TEST_TOPOLOGIES);
    return;
  }
  ncclResult_t result = tt_xml_read(path, "system", &xml);
  if (result == ncclSuccess) result = tt_topology_create(xml, &rules, 0, 0, &t);
  if (f->words) {
    ck_assert_int_eq(result, ncclInvalidUsage);
    ck_assert_msg(strstr(tt_log_thread_error(), f->words), "\"%s\" lacks \"%s\"", tt_log_thread_error(), f->words);
  } else {
    ck_assert_msg(result == ncclSuccess, "%s", tt_log_thread_error());
    ck_assert_int_eq(t->count[TT_NODE_GPU], 4);
    ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, 1), "NVL 80");
  }
  tt_topology_free(t);
  tt_xml_free(xml);
}
END_TEST

Suite *suite_broken(void)
{
  Suite *suite = suite_create("broken");
  TCase *tests = tcase_create("broken");
  tcase_add_loop_test(tests, broken, 0, sizeof(files) / sizeof(files[0]));
  suite_add_tcase(suite, tests);
  return suite;
}
