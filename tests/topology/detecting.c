/* See detecting.h. */
#include "detecting.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "machine.h"
#include "topology/fuse.h"

const struct tt_detect_cpu detecting_skylake = {"x86_64", "GenuineIntel", 6, 85};

struct tt_xml *detect(const struct tt_detect_request *request, struct tt_detect_outcome *outcome)
{
  struct tt_xml *xml;
  ck_assert_msg(tt_topology_detect(request, &xml, outcome) == ncclSuccess, "%s", tt_log_thread_error());
  return xml;
}

char *text_of(struct tt_xml *xml)
{
  char *text;
  size_t bytes;
  ck_assert_int_eq(tt_topology_pack(xml, &text, &bytes), ncclSuccess);
  ck_assert_uint_eq(bytes, strlen(text));
  tt_xml_free(xml);
  return text;
}

char *detected(const struct tt_detect_request *request)
{
  return text_of(detect(request, NULL));
}

void has(const char *text, const char *part)
{
  ck_assert_msg(strstr(text, part) != NULL, "%s lacks %s", text, part);
}

void lacks(const char *text, const char *part)
{
  ck_assert_msg(strstr(text, part) == NULL, "%s has %s", text, part);
}

/* One GPU, and what is said of it. */
char *one_gpu(struct sysfs *s, const char *bus, int numa)
{
  struct tt_detect_gpu gpu = {.sm = 90, .pci = bus, .numa = numa};
  struct tt_detect_request request = {
      .sysfs = s->root, .default_file = "", .cpu = &detecting_skylake, .host_hash = 1, .gpus = &gpu, .ngpus = 1};
  return detected(&request);
}

/* Each text can be built: nothing that the model needs is missing. */
void builds(char *text)
{
  tt_topology_free(machine_topology(text, NULL));
}
