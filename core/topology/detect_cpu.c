/* NUMA nodes and what processors they have. See detect_internal.h. */
#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include "base/check.h"
#include "base/text.h"
#include "topology/detect_internal.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* What files call family and model: the extended parts are shifted by 4 and added, whatever the family. */
static void ask(struct tt_detection *d)
{
  unsigned a, b = 0, c = 0, e = 0;
  d->cpu.arch = "x86_64";
  if (!__get_cpuid(0, &a, &b, &c, &e)) return;
  memcpy(d->cpu_words, &b, 4);
  memcpy(d->cpu_words + 4, &e, 4);
  memcpy(d->cpu_words + 8, &c, 4);
  d->cpu_words[12] = 0;
  for (char *at = d->cpu_words; *at; at++)
    if (*at < ' ' || *at > '~') *at = '?';
  if (!__get_cpuid(1, &a, &b, &c, &e)) return;
  d->cpu.vendor = d->cpu_words;
  d->cpu.model = (int)((a >> 4 & 0xf) + (a >> 16 & 0xf) * 16);
  d->cpu.family = (int)((a >> 8 & 0xf) + (a >> 20 & 0xff) * 16);
}
#else
static void ask(struct tt_detection *d)
{
  struct utsname name;
  uname(&name);
  snprintf(d->cpu_words, sizeof(d->cpu_words), "%.31s",
           strncmp(name.machine, "aarch64", 7) == 0 ? "arm64"
           : strncmp(name.machine, "ppc64", 5) == 0 ? "ppc64"
                                                    : name.machine);
  d->cpu.arch = d->cpu_words;
}
#endif

void tt_detect_processor(struct tt_detection *d)
{
  if (d->request->cpu)
    d->cpu = *d->request->cpu;
  else
    ask(d);
}

/* The number of a <cpu>; -1 if it has none that is one. */
static int numa_of(const struct tt_xml *xml, int element)
{
  int64_t number;
  const char *text = tt_xml_get(xml, element, "numaid");
  return text && tt_text_int(text, &number) && number >= 0 && number <= 1 << 20 ? (int)number : -1;
}

ncclResult_t tt_detect_cpu_element(struct tt_detection *d, int numa, int *element)
{
  struct tt_xml *xml = d->xml;
  if (numa < 0 && d->nnodes == 1) numa = d->lowest_node; /* of one node, there is no doubt which it is */
  int before = -1;
  for (int e = tt_xml_child(xml, xml->elements[0].first, "cpu"); e >= 0;
       e = tt_xml_child(xml, xml->elements[e].next, "cpu")) {
    int other = numa_of(xml, e);
    *element = e;
    if (other == numa) return ncclSuccess;
    if (other > numa && before < 0) before = e;
  }
  TT_TRY(tt_xml_insert(xml, 0, before, "cpu", element));
  char hash[32];
  snprintf(hash, sizeof(hash), "0x%llx", (unsigned long long)d->request->host_hash);
  TT_TRY(tt_xml_set(xml, *element, "host_hash", hash));
  return tt_detect_set_int(xml, *element, "numaid", numa);
}

/* In a file it is the first that stands there, whatever was added, so that all ranks choose the same. */
ncclResult_t tt_detect_first_cpu(struct tt_detection *d, int *element)
{
  for (*element = 1; d->outcome->from_file && *element < d->xml->count; ++*element)
    if (tt_xml_is(d->xml, *element, "cpu")) return ncclSuccess;
  return tt_detect_cpu_element(d, d->lowest_node, element);
}

static ncclResult_t fill_affinity(struct tt_detection *d, int element)
{
  char *directory, map[TT_DETECT_VALUE];
  int numa = numa_of(d->xml, element);
  if (tt_xml_get(d->xml, element, "affinity")) return ncclSuccess;
  if (numa < 0) {
    tt_detect_miss(d, "the NUMA node of some devices");
    return ncclSuccess;
  }
  if (asprintf(&directory, "%s/devices/system/node/node%d", d->sysfs, numa) < 0)
    return TT_FAIL(ncclSystemError, "no memory for a path");
  bool known = tt_detect_read(directory, "cpumap", map, sizeof(map));
  free(directory);
  if (known && strspn(map, "0123456789abcdefABCDEF,") == strlen(map))
    return tt_xml_set(d->xml, element, "affinity", map);
  tt_detect_miss(d, "the processors of NUMA node %d", numa);
  return ncclSuccess;
}

ncclResult_t tt_detect_fill_cpus(struct tt_detection *d)
{
  struct tt_xml *xml = d->xml;
  for (int e = tt_xml_child(xml, xml->elements[0].first, "cpu"); e >= 0;
       e = tt_xml_child(xml, xml->elements[e].next, "cpu")) {
    TT_TRY(fill_affinity(d, e));
    TT_TRY(tt_detect_default(xml, e, "arch", d->cpu.arch));
    if (!d->cpu.vendor || strcmp(tt_xml_get(xml, e, "arch"), d->cpu.arch) != 0) continue;
    TT_TRY(tt_detect_default(xml, e, "vendor", d->cpu.vendor));
    if (strcmp(tt_xml_get(xml, e, "vendor"), d->cpu.vendor) != 0) continue; /* the file is of another machine */
    TT_TRY(tt_detect_default_int(xml, e, "familyid", d->cpu.family));
    TT_TRY(tt_detect_default_int(xml, e, "modelid", d->cpu.model));
  }
  return ncclSuccess;
}

/* Whether a list as "0-3,8" has all processors of a set. */
static bool has_all(const char *list, const cpu_set_t *cpus)
{
  int found = 0;
  while (*list) {
    char *end;
    long first = strtol(list, &end, 10), last = first;
    if (end == list) return false;
    if (*end == '-') last = strtol(end + 1, &end, 10);
    for (long c = TT_MAX(first, 0L); c <= last && c < CPU_SETSIZE; c++) found += CPU_ISSET((size_t)c, cpus) ? 1 : 0;
    if (*end && *end != ',') return false;
    list = *end ? end + 1 : end;
  }
  return found == CPU_COUNT(cpus);
}

int tt_detect_numa_here(const char *sysfs)
{
  char *path, list[TT_DETECT_VALUE];
  cpu_set_t cpus;
  int here = -1;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return -1;
  if (asprintf(&path, "%s/devices/system/node", sysfs ? sysfs : "/sys") < 0) return -1;
  DIR *directory = opendir(path);
  for (struct dirent *entry; directory && here < 0 && (entry = readdir(directory));) {
    int64_t node;
    char *file;
    if (strncmp(entry->d_name, "node", 4) != 0 || !tt_text_int(entry->d_name + 4, &node) || node < 0) continue;
    if (asprintf(&file, "%s/cpulist", entry->d_name) < 0) break;
    if (tt_detect_read(path, file, list, sizeof(list)) && has_all(list, &cpus)) here = (int)node;
    free(file);
  }
  if (directory) closedir(directory);
  free(path);
  return here;
}
