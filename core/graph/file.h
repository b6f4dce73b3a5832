/* Graph files: what a search found, as NCCL's XML (NCCL_GRAPH_FILE reads, NCCL_GRAPH_DUMP_FILE writes).
 *
 * A file says for some kinds of graphs which channels they have; the kinds that it lacks are searched. GPUs are named
 * by their device number, NETs by their number, both with the host in the upper byte where there are several. What NCCL
 * writes is read, and what is written is read by NCCL. See docs/topology.md for what a file made by hand may have. */
#ifndef TT_GRAPH_FILE_H
#define TT_GRAPH_FILE_H

#include <stdio.h>
#include "graph/graph.h"

/* Reads the graphs of a file. Kinds that it lacks, or has without channels, become NULL; so do graphs that cross NICs
 * (crossnic 1) if `cross_nic`, the value of NCCL_CROSS_NIC, is 0. What cannot be a graph of this machine is refused
 * with ncclInvalidUsage and a sentence that names file, line, element, value and remedy; then all are NULL. The graphs
 * are the caller's to free. */
ncclResult_t tt_graph_read(const char *path, const struct tt_topology *topology, int cross_nic,
                           struct tt_graph *graphs[TT_GRAPH_KINDS]);
/* The same from memory; `source` is the name used in messages. */
ncclResult_t tt_graph_parse(const char *text, size_t bytes, const char *source, const struct tt_topology *topology,
                            int cross_nic, struct tt_graph *graphs[TT_GRAPH_KINDS]);

/* Writes all graphs that are not NULL. */
ncclResult_t tt_graph_write(FILE *out, const struct tt_topology *topology,
                            struct tt_graph *const graphs[TT_GRAPH_KINDS]);
ncclResult_t tt_graph_write_file(const char *path, const struct tt_topology *topology,
                                 struct tt_graph *const graphs[TT_GRAPH_KINDS]);

#endif
