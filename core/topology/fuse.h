/* One machine of what its ranks see, and the text in which they tell each other.
 *
 * What ranks detected on one host, or on hosts that share NVLink (cliques, clique.h), becomes one tree: equal devices
 * are one, by bus id, NUMA node, rank, or number and name, and hosts are told apart by host_hash. The result is the
 * same in whichever order it is fused. */
#ifndef TT_TOPOLOGY_FUSE_H
#define TT_TOPOLOGY_FUSE_H

#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"
#include "topology/xml.h"

/* Adds what `other` has to `into`, which may be a tree without elements. Where attributes differ the larger value is
 * taken, as a rank may see less of a device than it is; of gdr the smaller. */
ncclResult_t tt_topology_fuse(struct tt_xml *into, const struct tt_xml *other);

/* Leaves out links that only one of their ends lists, with a warning that names both: drivers that lose links lose them
 * on one side. Once all ranks are fused. *settled is the caller's to free. */
ncclResult_t tt_topology_settle(const struct tt_xml *xml, struct tt_xml **settled);

/* The tree as text, and back. *text is the caller's to free; bytes do not count the zero behind it. Texts differ in
 * size from rank to rank: ranks gather the sizes first, then pieces of the largest, and give each text's own size to
 * tt_topology_unpack, which checks it like any file and names `source` in messages. */
ncclResult_t tt_topology_pack(const struct tt_xml *xml, char **text, size_t *bytes);
ncclResult_t tt_topology_unpack(const char *text, size_t bytes, const char *source, struct tt_xml **xml);

/* Writes what NCCL_TOPO_DUMP_FILE asks for. A failure is a warning and no more. */
void tt_topology_dump(const struct tt_xml *xml, const char *path);

#endif
