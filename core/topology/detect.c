/* Detection from beginning to end. See detect.h. */
#include "topology/detect.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "topology/detect_internal.h"

/* A tree to begin with: the user's file, the system's, or nothing. */
static ncclResult_t begin(struct tt_detection *d)
{
  const struct tt_detect_request *r = d->request;
  const char *standard = r->default_file ? r->default_file : TT_DETECT_DEFAULT_FILE;
  int system;
  if (r->file && access(r->file, F_OK) == 0) {
    TT_TRY(tt_xml_read(r->file, "system", &d->xml));
    TT_INFO(TT_GRAPH | TT_INIT, "topology: NCCL_TOPO_FILE %s", r->file);
    d->named_file = true;
  } else if (r->file) {
    TT_WARN("the topology file %s is not there; the machine is detected without it. Set NCCL_TOPO_FILE to a file that "
            "is, or unset it",
            r->file);
  } else if (access(standard, R_OK) == 0 && tt_xml_read(standard, "system", &d->xml) != ncclSuccess) {
    TT_WARN("the system's topology file %s is left out; the machine is detected without it", standard);
  }
  if (d->xml) {
    d->outcome->from_file = true;
    return ncclSuccess;
  }
  TT_TRY(tt_xml_create("the detected machine", &d->xml));
  TT_TRY(tt_xml_add(d->xml, -1, "system", &system));
  return tt_xml_set(d->xml, system, "version", "1");
}

/* A file is written on one machine and read on others. */
static ncclResult_t set_host(struct tt_detection *d)
{
  char hash[32];
  snprintf(hash, sizeof(hash), "0x%llx", (unsigned long long)d->request->host_hash);
  for (int e = tt_xml_child(d->xml, d->xml->elements[0].first, "cpu"); e >= 0;
       e = tt_xml_child(d->xml, d->xml->elements[e].next, "cpu"))
    TT_TRY(tt_xml_set(d->xml, e, "host_hash", hash));
  return ncclSuccess;
}

/* Reading this makes the driver of Broadcom's switches look again. */
static void refresh_switches(const struct tt_detection *d)
{
  char text[64];
  tt_detect_read(d->sysfs, "kernel/pci_switch_link/refresh_switch_toplogy", text, sizeof(text));
}

static void report(const struct tt_detection *d)
{
  const struct tt_detect_outcome *o = d->outcome;
  if (o->gpus_stand_in > 0)
    TT_INFO(TT_GRAPH | TT_INIT, "topology: host devices stand in for the GPUs of %s", d->request->file);
  if (o->nets_stand_in)
    TT_INFO(TT_GRAPH | TT_INIT,
            "topology: the NETs of %s stand in for the network's %d devices: NET n is served by device n modulo %d",
            d->request->file, o->nnets, o->nnets);
  if (d->missing[0])
    TT_INFO(TT_GRAPH | TT_INIT, "topology: %s does not tell %s; what is not known is assumed", d->sysfs, d->missing);
}

ncclResult_t tt_topology_detect(const struct tt_detect_request *request, struct tt_xml **xml,
                                struct tt_detect_outcome *outcome)
{
  ncclResult_t result;
  struct tt_detect_outcome unused;
  struct tt_detection d = {
      .request = request, .outcome = outcome ? outcome : &unused, .sysfs = request->sysfs ? request->sysfs : "/sys"};
  *d.outcome = (struct tt_detect_outcome){0};
  *xml = NULL;
  tt_detect_processor(&d);
  tt_detect_count_nodes(&d);
  if (d.nnodes == 0) tt_detect_miss(&d, "NUMA nodes");
  refresh_switches(&d);
  TT_TRY_GOTO(begin(&d), result, out);
  TT_TRY_GOTO(set_host(&d), result, out);
  TT_TRY_GOTO(tt_detect_add_gpus(&d), result, out);
  TT_TRY_GOTO(tt_detect_add_nets(&d), result, out);
  struct tt_xml *trimmed;
  TT_TRY_GOTO(tt_detect_trim(d.xml, &trimmed), result, out);
  tt_xml_free(d.xml);
  d.xml = trimmed;
  TT_TRY_GOTO(tt_detect_fill_cpus(&d), result, out);
  report(&d);
out:
  if (result == ncclSuccess)
    *xml = d.xml;
  else
    tt_xml_free(d.xml);
  return result;
}
