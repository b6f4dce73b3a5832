/* What --here adds: this machine in place of a file. */
#ifndef TOPO_HERE_H
#define TOPO_HERE_H

#include "topology/detect.h"
#include "topology/topology.h"

/* Detects the machine of a sysfs ("/sys", or a copy of one). Each GPU is a rank; without any, each NUMA node has one on
 * the host device. Says on standard error what is assumed. */
ncclResult_t topo_detect(const char *sysfs, struct tt_xml **xml);
/* Adds what a device backend knows to the GPUs that sysfs lists: sm, links, ids. Says on standard error what came of
 * it, and what the backend warns of. Of a copy of sysfs only if TUTTI_DEVICE names the backend. */
void topo_ask_devices(const char *sysfs, struct tt_detect_gpu *gpus, int ngpus);
/* What its driver says of each two of them; nothing for a file. */
void topo_peer_status(struct tt_topology_rules *rules);
/* Types of the paths between GPUs and NETs as a table, as the machine has them, and the processors near each GPU. */
ncclResult_t topo_matrix(const struct tt_xml *xml);
/* What slows a machine down and can be changed: ACS, an IOMMU, links below their best. */
void topo_warn(const char *sysfs, const struct tt_xml *xml);

#endif
