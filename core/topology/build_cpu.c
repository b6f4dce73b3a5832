/* From elements to nodes: hosts, CPUs, and what lies below them. See draft.h. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/draft.h"

static bool begins(const char *text, const char *word)
{
  return strncmp(text, word, strlen(word)) == 0;
}

/* CPUs of hosts that share NVLink come in one file; host_hash tells them apart. */
static ncclResult_t host_of(struct tt_draft *draft, int element, int *out)
{
  const char *text = tt_xml_get(draft->xml, element, "host_hash");
  uint64_t hash = text ? strtoull(text, NULL, 16) : 0;
  int host = 0;
  while (host < draft->nhosts && draft->hosts[host] != hash) host++;
  if (host == TT_TOPOLOGY_MOST_HOSTS) {
    char where[512];
    return TT_FAIL(ncclInvalidUsage, "%s is of another host than %d before it; a file has no more, leave some out",
                   tt_xml_where(draft->xml, element, where, sizeof(where)), TT_TOPOLOGY_MOST_HOSTS);
  }
  if (host == draft->nhosts) draft->hosts[draft->nhosts++] = hash;
  *out = host;
  return ncclSuccess;
}

/* "ffff,00000000": bits of processors, 32 a group, the highest group first. Processors that a cpu_set_t has no room for
 * are left out. */
static ncclResult_t read_affinity(const struct tt_xml *xml, int element, const char *text, cpu_set_t *cpus)
{
  char where[512];
  int bit = 0;
  for (size_t i = strlen(text); i-- > 0;) {
    char c = (char)tolower((unsigned char)text[i]);
    if (c == ',') {
      bit = (bit + 31) / 32 * 32;
      continue;
    }
    if (!isxdigit((unsigned char)c))
      return TT_FAIL(ncclInvalidUsage, "%s: affinity is \"%.64s\"; it must be a mask like ffffffff,00000000",
                     tt_xml_where(xml, element, where, sizeof(where)), text);
    unsigned digit = (unsigned)(isdigit((unsigned char)c) ? c - '0' : c - 'a' + 10);
    for (int b = 0; b < 4; b++, bit++)
      if (digit >> b & 1 && bit < CPU_SETSIZE) CPU_SET((size_t)bit, cpus);
  }
  return ncclSuccess;
}

static enum tt_cpu_model model_of(enum tt_cpu_vendor vendor, int family, int model)
{
  if (vendor == TT_VENDOR_ZHAOXIN) return family == 7 && model == 0x5b ? TT_MODEL_ZHAOXIN_YONGFENG : TT_MODEL_OTHER;
  if (family != 6) return TT_MODEL_INTEL_BROADWELL;
  return model >= 0xcf   ? TT_MODEL_INTEL_EMERALD_RAPIDS
         : model >= 0x8f ? TT_MODEL_INTEL_SAPPHIRE_RAPIDS
         : model >= 0x55 ? TT_MODEL_INTEL_SKYLAKE
                         : TT_MODEL_INTEL_BROADWELL;
}

static ncclResult_t read_cpu(const struct tt_xml *xml, int element, struct tt_node *node)
{
  const char *arch, *vendor, *affinity = tt_xml_get(xml, element, "affinity");
  if (affinity) TT_TRY(read_affinity(xml, element, affinity, &node->cpu.cpus));
  TT_TRY(tt_xml_need(xml, element, "arch", &arch));
  node->cpu.arch = begins(arch, "x86_64")  ? TT_ARCH_X86
                   : begins(arch, "arm64") ? TT_ARCH_ARM
                   : begins(arch, "ppc64") ? TT_ARCH_POWER
                                           : TT_ARCH_OTHER;
  if (node->cpu.arch != TT_ARCH_X86) return ncclSuccess;
  TT_TRY(tt_xml_need(xml, element, "vendor", &vendor));
  node->cpu.vendor = begins(vendor, "GenuineIntel")                                     ? TT_VENDOR_INTEL
                     : begins(vendor, "AuthenticAMD")                                   ? TT_VENDOR_AMD
                     : begins(vendor, "CentaurHauls") || begins(vendor, "  Shanghai  ") ? TT_VENDOR_ZHAOXIN
                                                                                        : TT_VENDOR_OTHER;
  if (node->cpu.vendor != TT_VENDOR_INTEL && node->cpu.vendor != TT_VENDOR_ZHAOXIN) return ncclSuccess;
  int family, model;
  TT_TRY(tt_xml_need_int(xml, element, "familyid", 0, 1 << 20, &family));
  TT_TRY(tt_xml_need_int(xml, element, "modelid", 0, 1 << 20, &model));
  node->cpu.model = model_of(node->cpu.vendor, family, model);
  return ncclSuccess;
}

/* A card that is on no PCI bus, like the virtual ones of containers, hangs off its CPU with all it has. */
static ncclResult_t add_virtual_nic(struct tt_draft *draft, int element, int cpu)
{
  const struct tt_node *above = &draft->nodes[cpu].node;
  int nic = tt_draft_find(draft, TT_NODE_NIC, above->host, above->id << 56);
  if (nic < 0) {
    TT_TRY(tt_draft_add(draft, TT_NODE_NIC, above->host, above->id << 56, element, &nic));
    TT_TRY(tt_draft_connect_both(draft, cpu, nic, TT_LINK_PCI, TT_LOCAL_BANDWIDTH));
    draft->nodes[nic].up = cpu;
  }
  return tt_draft_add_nets(draft, element, nic);
}

/* A rank of the host device: its memory is that of its NUMA node, so it is on no bus. */
static ncclResult_t add_host_device(struct tt_draft *draft, int element, int cpu)
{
  const struct tt_xml *xml = draft->xml;
  const int above = draft->nodes[cpu].node.host;
  int rank, dev, sm, gdr, device, gpu;
  TT_TRY(tt_xml_need_int(xml, element, "rank", 0, INT32_MAX, &rank));
  TT_TRY(tt_xml_need_int(xml, element, "dev", 0, INT32_MAX, &dev));
  TT_TRY(tt_xml_int(xml, element, "sm", 0, 10000, 0, &sm));
  TT_TRY(tt_xml_int(xml, element, "gdr", 0, 1, 0, &gdr));
  const uint64_t id = TT_HOST_DEVICE | (uint64_t)rank;
  TT_TRY(tt_draft_add(draft, TT_NODE_DEV, above, id, element, &device));
  TT_TRY(tt_draft_add(draft, TT_NODE_GPU, above, id, element, &gpu));
  draft->nodes[gpu].node.gpu = (typeof(draft->nodes->node.gpu)){.rank = rank, .dev = dev, .sm = sm, .gdr = gdr};
  draft->nodes[device].node.gpu = draft->nodes[gpu].node.gpu;
  draft->nodes[device].node.gpu.rank = -1;
  TT_TRY(tt_draft_connect_both(draft, device, gpu, TT_LINK_LOC, TT_LOCAL_BANDWIDTH));
  TT_TRY(tt_draft_connect_both(draft, device, cpu, TT_LINK_PCI, tt_speed_host_device()));
  draft->nodes[device].up = cpu;
  return ncclSuccess;
}

static ncclResult_t add_cpu(struct tt_draft *draft, int element)
{
  const struct tt_xml *xml = draft->xml;
  int numa, cpu, host;
  TT_TRY(host_of(draft, element, &host));
  TT_TRY(tt_xml_need_int(xml, element, "numaid", -1, 1 << 20, &numa));
  TT_TRY(tt_draft_add(draft, TT_NODE_CPU, host, numa < 0 ? ~(uint64_t)0 : (uint64_t)numa, element, &cpu));
  draft->node_of[element] = cpu;
  TT_TRY(read_cpu(xml, element, &draft->nodes[cpu].node));
  for (int e = xml->elements[element].first; e >= 0; e = xml->elements[e].next) {
    if (tt_xml_is(xml, e, "pci")) TT_TRY(tt_draft_add_pci(draft, e, cpu));
    if (tt_xml_is(xml, e, "nic")) TT_TRY(add_virtual_nic(draft, e, cpu));
    int host = 0;
    if (tt_xml_is(xml, e, "gpu")) TT_TRY(tt_xml_int(xml, e, "host", 0, 1, 0, &host));
    if (host) TT_TRY(add_host_device(draft, e, cpu));
  }
  return ncclSuccess;
}

ncclResult_t tt_draft_add_cpus(struct tt_draft *draft)
{
  const struct tt_xml *xml = draft->xml;
  int ncpus = 0;
  for (int e = tt_xml_child(xml, xml->elements[0].first, "cpu"); e >= 0;
       e = tt_xml_child(xml, xml->elements[e].next, "cpu"))
    ncpus++;
  if (ncpus == 0)
    return TT_FAIL(ncclInvalidUsage,
                   "%s:%d: <system> has no <cpu>; add the machine's NUMA nodes, and devices below them", xml->source,
                   xml->elements[0].line);
  TT_TRY(TT_CALLOC(&draft->hosts, (size_t)ncpus));
  for (int e = tt_xml_child(xml, xml->elements[0].first, "cpu"); e >= 0;
       e = tt_xml_child(xml, xml->elements[e].next, "cpu"))
    TT_TRY(add_cpu(draft, e));
  return ncclSuccess;
}
