/* Network devices: at their card's place on the PCI bus, else at the first CPU. See detect_internal.h. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/text.h"
#include "topology/detect_internal.h"

/* A plugin's name may hold anything. */
static void clean(const char *name, char *text, size_t size)
{
  snprintf(text, size, "%s", name && name[0] ? name : "unknown");
  for (char *c = text; *c; c++)
    if (*c < ' ' || *c > '~') *c = '?';
}

static bool is_net(const struct tt_xml *xml, int element)
{
  const char *net = tt_xml_is(xml, element, "net") ? tt_xml_get(xml, element, "net") : "0";
  return !net || strcmp(net, "0") != 0;
}

static bool contains(const int *elements, int count, int element)
{
  while (count > 0 && elements[count - 1] != element) count--;
  return count > 0;
}

/* The first <net> of this name that is none of those taken: the ports of a card may have one name. -1: none. */
static int find(const struct tt_xml *xml, const char *name, const int *taken, int ntaken)
{
  for (int e = 0; e < xml->count; e++) {
    const char *other = tt_xml_is(xml, e, "net") ? tt_xml_get(xml, e, "name") : NULL;
    if (other && strcmp(other, name) == 0 && !contains(taken, ntaken, e)) return e;
  }
  return -1;
}

/* Where a device's card is: below its <pci>, else below the first <cpu>. */
static ncclResult_t place(struct tt_detection *d, const struct tt_detect_net *net, int *above)
{
  ncclResult_t result;
  char bus[TT_DETECT_BUS], name[64];
  char *directory = net->pci_path ? tt_detect_directory_of_path(net->pci_path) : NULL;
  if (directory && tt_detect_bus(tt_detect_last(directory), bus)) {
    TT_TRY_GOTO(tt_detect_pci(d, bus, directory, -1, above), result, out);
    TT_TRY_GOTO(tt_detect_fill_pci(d, *above, "0x02"), result, out);
  } else if (net->pci_path && tt_detect_bus(tt_detect_last(net->pci_path), bus)) { /* sysfs hides it */
    TT_TRY_GOTO(tt_detect_pci(d, bus, NULL, -1, above), result, out);
    TT_TRY_GOTO(tt_detect_fill_pci(d, *above, "0x02"), result, out);
  } else {
    clean(net->name, name, sizeof(name));
    if (net->pci_path)
      TT_INFO(TT_GRAPH | TT_NET, "network device %s is on no PCI bus: it is put at the first CPU", name);
    TT_TRY_GOTO(tt_detect_first_cpu(d, above), result, out);
  }
out:
  free(directory);
  return result;
}

static ncclResult_t add(struct tt_detection *d, const struct tt_detect_net *net, const char *name, int *element)
{
  int above, nic;
  TT_TRY(place(d, net, &above));
  nic = tt_xml_child(d->xml, d->xml->elements[above].first, "nic");
  if (nic < 0) TT_TRY(tt_xml_add(d->xml, above, "nic", &nic));
  TT_TRY(tt_xml_add(d->xml, nic, "net", element));
  return tt_xml_set(d->xml, *element, "name", name);
}

const char *tt_detect_latency(const struct tt_detect_net *net, char *text, size_t size)
{
  return tt_text_print_float(isfinite(net->latency) && net->latency > 0 ? net->latency : 0, text, size);
}

static ncclResult_t describe(struct tt_detection *d, int element, const struct tt_detect_net *net, const char *name)
{
  struct tt_xml *xml = d->xml;
  char text[48];
  const char *old = tt_xml_get(xml, element, "dev");
  snprintf(text, sizeof(text), "%d", net->dev);
  if (old && strcmp(old, text) != 0)
    TT_INFO(TT_GRAPH | TT_NET, "network device %s is number %s here, not %.16s as in the topology file", name, text,
            old);
  TT_TRY(tt_xml_set(xml, element, "dev", text));
  TT_TRY(tt_detect_default(xml, element, "latency", tt_detect_latency(net, text, sizeof(text))));
  TT_TRY(tt_detect_default_int(xml, element, "speed", net->speed));
  TT_TRY(tt_detect_default_int(xml, element, "port", net->port));
  if (net->rail >= 0) TT_TRY(tt_detect_default_int(xml, element, "rail", net->rail));
  if (net->plane >= 0) TT_TRY(tt_detect_default_int(xml, element, "plane", net->plane));
  snprintf(text, sizeof(text), "0x%" PRIx64, net->guid);
  TT_TRY(tt_detect_default(xml, element, "guid", text));
  if (net->maxconn > 0) TT_TRY(tt_detect_default_int(xml, element, "maxconn", net->maxconn));
  TT_TRY(tt_detect_default_int(xml, element, "gdr", net->gdr));
  TT_TRY(tt_xml_set(xml, element, "net", "1"));
  if (net->collnet) TT_TRY(tt_detect_default(xml, element, "coll", "1"));
  return tt_xml_set(xml, element, "keep", "1");
}

static bool plugin_has(const struct tt_detect_request *r, const char *name)
{
  char other[TT_DETECT_VALUE];
  for (int n = 0; n < r->nnets && name; n++) {
    clean(r->nets[n].name, other, sizeof(other));
    if (strcmp(name, other) == 0) return true;
  }
  return false;
}

/* Whether the file's NETs are to stand for the plugin's devices: host devices do for its GPUs, and some of its NETs are
 * not of this machine. The same for all ranks of a host, also those for which no GPU was left. */
static bool stand_in(const struct tt_detection *d)
{
  const struct tt_detect_request *r = d->request;
  if (!d->named_file || r->nnets == 0) return false;
  for (int g = 0; g < r->ngpus; g++)
    if (r->gpus[g].pci && r->gpus[g].pci[0]) return false;
  for (int e = 0; e < d->xml->count; e++)
    if (is_net(d->xml, e) && tt_xml_get(d->xml, e, "dev") && !plugin_has(r, tt_xml_get(d->xml, e, "name"))) return true;
  return false;
}

ncclResult_t tt_detect_add_nets(struct tt_detection *d)
{
  const struct tt_detect_request *r = d->request;
  struct tt_xml *xml = d->xml;
  char name[TT_DETECT_VALUE];
  d->outcome->nnets = r->nnets;
  d->outcome->nets_stand_in = stand_in(d);
  if (d->outcome->nets_stand_in) {
    int count = xml->count;
    for (int e = 0; e < count; e++) {
      if (!is_net(xml, e) || !tt_xml_get(xml, e, "dev")) continue;
      TT_TRY(tt_xml_set(xml, e, "keep", "1"));
      TT_TRY(tt_detect_fill_pci(d, xml->elements[xml->elements[e].parent].parent, "0x02"));
    }
    return ncclSuccess;
  }
  ncclResult_t result;
  int *taken;
  TT_TRY(TT_CALLOC(&taken, (size_t)r->nnets + 1));
  for (int n = 0; n < r->nnets; n++) {
    clean(r->nets[n].name, name, sizeof(name));
    taken[n] = find(xml, name, taken, n);
    if (taken[n] < 0) TT_TRY_GOTO(add(d, &r->nets[n], name, &taken[n]), result, out);
    TT_TRY_GOTO(describe(d, taken[n], &r->nets[n], name), result, out);
  }
  result = ncclSuccess;
out:
  free(taken);
  return result;
}
