/* What --here adds: this machine in place of a file. */
#ifndef TOPO_HERE_H
#define TOPO_HERE_H

#include "topology/topology.h"

/* Detects the machine of a sysfs ("/sys", or a copy of one). Each GPU is a rank; without any, each NUMA node has one on
 * the host device. Says on standard error what is assumed. */
ncclResult_t topo_detect(const char *sysfs, struct tt_xml **xml);
/* Types of the paths between GPUs and NETs as a table, as the machine has them, and the processors near each GPU. */
ncclResult_t topo_matrix(const struct tt_xml *xml);
/* What slows a machine down and can be changed: ACS, an IOMMU, links below their best. */
void topo_warn(const char *sysfs, const struct tt_xml *xml);

#endif
