/* Names that a topology file has and the model has no use for. */
#ifndef TOPO_NAMES_H
#define TOPO_NAMES_H

#include "topology/topology.h"

/* What the file calls a NET; NULL: nothing. It may be any text. */
const char *topo_net_name(const struct tt_topology *topology, const struct tt_xml *xml, const struct tt_node *net);

#endif
