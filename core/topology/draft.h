/* A topology under construction: nodes that may still come and go, and links in the order that searches follow. The
 * parts of the builder, one a file, fill it in; tt_topology_finish makes the topology of it. */
#ifndef TT_TOPOLOGY_DRAFT_H
#define TT_TOPOLOGY_DRAFT_H

#include "topology/topology.h"

/* A machine may have 1024 ranks (TT_JOIN_MOST_LOCAL), a device each, also below one CPU, and bridges and NICs besides.
 */
enum {
  TT_TOPOLOGY_MOST_NODES = 3072, /* paths take room by the square of it */
  TT_TOPOLOGY_MOST_LINKS = 1280, /* of a node */
  TT_TOPOLOGY_MOST_HOSTS = 127   /* names of NETs have a signed byte for them */
};

struct tt_draft_link {
  int to;
  enum tt_link_type type;
  float bandwidth;
};

struct tt_draft_node {
  struct tt_node node;
  struct tt_draft_link *links;
  int nlinks, room;
  int up; /* the node that its PCI uplink leads to; -1: none */
  bool gone;
};

struct tt_draft {
  const struct tt_xml *xml;
  struct tt_draft_node *nodes;
  int count, room;
  int *node_of; /* by element: the node made of it; -1: none */
  uint64_t *hosts;
  int nhosts;
};

/* What `element` is made into. */
ncclResult_t tt_draft_add(struct tt_draft *draft, enum tt_node_type type, int host, uint64_t id, int element,
                          int *node);
/* One direction of a link; a second one of the same type adds to the first. Links stay sorted by bandwidth. */
ncclResult_t tt_draft_connect(struct tt_draft *draft, int from, int to, enum tt_link_type type, float bandwidth);
/* One direction, after all that the node has, whatever its bandwidth. */
ncclResult_t tt_draft_append(struct tt_draft *draft, int from, struct tt_draft_link link);
ncclResult_t tt_draft_connect_both(struct tt_draft *draft, int from, int to, enum tt_link_type type, float bandwidth);
/* The first node of this kind; -1: none. */
int tt_draft_find(const struct tt_draft *draft, enum tt_node_type type, int host, uint64_t id);
/* A bus id as a number: "0000:3b:00.0" is 0x3b000. */
ncclResult_t tt_draft_bus_id(const struct tt_xml *xml, int element, const char *attribute, uint64_t *id);
void tt_draft_free(struct tt_draft *draft);

/* The parts, in the order in which they run. */
ncclResult_t tt_draft_add_cpus(struct tt_draft *draft); /* and all below them, with the next two */
ncclResult_t tt_draft_add_pci(struct tt_draft *draft, int top, int cpu);
ncclResult_t tt_draft_add_nets(struct tt_draft *draft, int element, int nic);
ncclResult_t tt_draft_add_links(struct tt_draft *draft); /* NVLink, C2C, between switches */
ncclResult_t tt_draft_join_switches(struct tt_draft *draft);
ncclResult_t tt_draft_mesh_cpus(struct tt_draft *draft);
void tt_draft_sort(struct tt_draft *draft);
ncclResult_t tt_draft_finish(const struct tt_draft *draft, struct tt_topology *topology);

/* GB/s of what the file only names. */
float tt_speed_nvlink(int sm);
float tt_speed_between_cpus(const struct tt_node *cpu);
float tt_speed_pci(int width, const char *speed);
float tt_speed_host_device(void);

#endif
