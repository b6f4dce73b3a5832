/* The devices of ranks: GPUs at their place, host devices at their NUMA node or in the place of a GPU of the file. See
 * detect_internal.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/text.h"
#include "topology/detect_internal.h"

static bool is_kept(const struct tt_xml *xml, int element)
{
  const char *keep = tt_xml_get(xml, element, "keep");
  return keep && strcmp(keep, "1") == 0;
}

static ncclResult_t add_nvlink(struct tt_detection *d, int gpu, const struct tt_detect_nvlink *link)
{
  int element;
  char target[TT_DETECT_BUS] = "fffffff:ffff:ff", class[TT_DETECT_VALUE] = "0x068000"; /* NCCL's word for hidden */
  bool known = link->target && tt_detect_bus(link->target, target);
  char *directory = known && !link->tclass ? tt_detect_directory(d, target) : NULL;
  if (link->tclass)
    snprintf(class, sizeof(class), "%.31s", link->tclass);
  else if (directory && !tt_detect_read(directory, "class", class, sizeof(class)))
    strcpy(class, "0x068000");
  free(directory);
  TT_TRY(tt_xml_add(d->xml, gpu, "nvlink", &element));
  TT_TRY(tt_xml_set(d->xml, element, "target", target));
  TT_TRY(tt_detect_set_int(d->xml, element, "count", link->count));
  return tt_xml_set(d->xml, element, "tclass", class);
}

/* What the file says of links counts, so that a virtual machine can be told what it does not see. */
static ncclResult_t add_links(struct tt_detection *d, int element, const struct tt_detect_gpu *gpu)
{
  int first = d->xml->elements[element].first, c2c;
  if (tt_xml_child(d->xml, first, "nvlink") < 0)
    for (int l = 0; l < gpu->nnvlinks; l++)
      if (gpu->nvlinks[l].count > 0) TT_TRY(add_nvlink(d, element, &gpu->nvlinks[l]));
  if (tt_xml_child(d->xml, first, "c2c") >= 0 || gpu->c2c_links <= 0 || gpu->c2c_megabytes <= 0) return ncclSuccess;
  TT_TRY(tt_xml_add(d->xml, element, "c2c", &c2c));
  TT_TRY(tt_detect_set_int(d->xml, c2c, "bw", gpu->c2c_megabytes));
  return tt_detect_set_int(d->xml, c2c, "count", gpu->c2c_links);
}

/* What the driver knows of a GPU's PCI link is truer than sysfs, which knows what the link could be at best. */
static ncclResult_t hint_pci(struct tt_xml *xml, int element, const struct tt_detect_gpu *gpu)
{
  static const char *const speeds[] = {
      "", "2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"};
  const struct {
    const char *name;
    unsigned value;
  } ids[] = {{"vendor", gpu->vendor},
             {"device", gpu->device},
             {"subsystem_vendor", gpu->subsystem_vendor},
             {"subsystem_device", gpu->subsystem_device}};
  for (size_t i = 0; i < TT_COUNT(ids); i++) {
    char text[16];
    snprintf(text, sizeof(text), "0x%x", ids[i].value);
    if (ids[i].value) TT_TRY(tt_detect_default(xml, element, ids[i].name, text));
  }
  if (gpu->generation > 0 && gpu->generation < (int)TT_COUNT(speeds))
    TT_TRY(tt_detect_default(xml, element, "link_speed", speeds[gpu->generation]));
  return gpu->width > 0 && gpu->width <= 1024 ? tt_detect_default_int(xml, element, "link_width", gpu->width)
                                              : ncclSuccess;
}

static ncclResult_t describe(struct tt_detection *d, int element, const struct tt_detect_gpu *gpu)
{
  TT_TRY(tt_detect_default_int(d->xml, element, "dev", gpu->dev));
  TT_TRY(tt_detect_default_int(d->xml, element, "sm", gpu->sm));
  TT_TRY(tt_detect_set_int(d->xml, element, "rank", gpu->rank));
  TT_TRY(tt_detect_default_int(d->xml, element, "gdr", gpu->gdr));
  return tt_xml_set(d->xml, element, "keep", "1");
}

/* The first <gpu> of a <pci> that no rank has taken yet; -1: none. */
static int free_gpu(const struct tt_xml *xml, int pci)
{
  int e = tt_xml_child(xml, xml->elements[pci].first, "gpu");
  while (e >= 0 && is_kept(xml, e)) e = tt_xml_child(xml, xml->elements[e].next, "gpu");
  return e;
}

static ncclResult_t add_real(struct tt_detection *d, const struct tt_detect_gpu *gpu)
{
  ncclResult_t result;
  char bus[TT_DETECT_BUS];
  int pci, element;
  if (!tt_detect_bus(gpu->pci, bus))
    return TT_FAIL(ncclInternalError,
                   "the device backend says that device %d is on PCI bus id \"%.64s\", which is none", gpu->dev,
                   gpu->pci);
  char *directory = tt_detect_directory(d, bus);
  TT_TRY_GOTO(tt_detect_pci(d, bus, directory, gpu->numa, &pci), result, out);
  TT_TRY_GOTO(hint_pci(d->xml, pci, gpu), result, out);
  TT_TRY_GOTO(tt_detect_fill_pci(d, pci, "0x030000"), result, out);
  element = free_gpu(d->xml, pci);
  if (element < 0) TT_TRY_GOTO(tt_xml_add(d->xml, pci, "gpu", &element), result, out);
  TT_TRY_GOTO(describe(d, element, gpu), result, out);
  TT_TRY_GOTO(add_links(d, element, gpu), result, out);
out:
  free(directory);
  return result;
}

/* A place for a GPU in a file: a <gpu>, or a <pci> that could have one. */
static bool is_place(const struct tt_xml *xml, int element)
{
  if (tt_xml_is(xml, element, "gpu")) return xml->elements[element].parent >= 0;
  const char *class = tt_xml_is(xml, element, "pci") ? tt_xml_get(xml, element, "class") : NULL;
  return class && strncmp(class, "0x03", 4) == 0 && tt_xml_child(xml, xml->elements[element].first, "gpu") < 0;
}

/* Its dev; places that have none come last. */
static int64_t dev_of(const struct tt_xml *xml, int element)
{
  int64_t dev;
  const char *text = tt_xml_is(xml, element, "gpu") ? tt_xml_get(xml, element, "dev") : NULL;
  return text && tt_text_int(text, &dev) ? dev : INT64_MAX;
}

struct place {
  int64_t dev;
  int element;
};

static int compare_places(const void *a, const void *b)
{
  const struct place *x = a, *y = b;
  return x->dev != y->dev ? (x->dev > y->dev) - (x->dev < y->dev) : x->element - y->element;
}

/* The places of a file, by dev and then as the file has them. */
static ncclResult_t list_places(const struct tt_xml *xml, struct place **places, int *count)
{
  TT_TRY(TT_CALLOC(places, (size_t)xml->count + 1));
  *count = 0;
  for (int e = 0; e < xml->count; e++)
    if (is_place(xml, e)) (*places)[(*count)++] = (struct place){.dev = dev_of(xml, e), .element = e};
  qsort(*places, (size_t)*count, sizeof(**places), compare_places);
  return ncclSuccess;
}

static ncclResult_t stand_in(struct tt_detection *d, int place, const struct tt_detect_gpu *gpu)
{
  if (tt_xml_is(d->xml, place, "pci")) TT_TRY(tt_xml_add(d->xml, place, "gpu", &place));
  d->outcome->gpus_stand_in++;
  TT_TRY(describe(d, place, gpu));
  return tt_detect_fill_pci(d, d->xml->elements[place].parent, "0x030000");
}

static ncclResult_t add_host(struct tt_detection *d, const struct tt_detect_gpu *gpu)
{
  int cpu, element;
  if (gpu->numa >= 0)
    TT_TRY(tt_detect_cpu_element(d, gpu->numa, &cpu));
  else
    TT_TRY(tt_detect_first_cpu(d, &cpu));
  TT_TRY(tt_xml_add(d->xml, cpu, "gpu", &element));
  TT_TRY(describe(d, element, gpu));
  return tt_xml_set(d->xml, element, "host", "1");
}

ncclResult_t tt_detect_add_gpus(struct tt_detection *d)
{
  const struct tt_detect_request *r = d->request;
  ncclResult_t result = ncclSuccess;
  struct place *places;
  int nplaces;
  TT_TRY(list_places(d->xml, &places, &nplaces));
  if (!d->named_file) nplaces = 0;
  for (int g = 0; g < r->ngpus && result == ncclSuccess; g++) {
    const struct tt_detect_gpu *gpu = &r->gpus[g];
    if (gpu->pci && gpu->pci[0])
      result = add_real(d, gpu);
    else if (gpu->dev >= 0 && gpu->dev < nplaces)
      result = stand_in(d, places[gpu->dev].element, gpu);
    else
      result = add_host(d, gpu);
  }
  free(places);
  return result;
}
