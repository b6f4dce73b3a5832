/* The machine as a graph: nodes, links with their bandwidth, and the best path between any two nodes.
 *
 * Built from a topology file (xml.h) by the rules of NCCL 2.30, so that both find the same machine in the same file.
 * All bandwidths are GB/s (10^9 bytes). A topology is not changed once it is made, so any thread may read it; what a
 * search uses up of the links it keeps in an array of its own, indexed like `links`. */
#ifndef TT_TOPOLOGY_TOPOLOGY_H
#define TT_TOPOLOGY_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"
#include "topology/rules.h"
#include "topology/xml.h"

enum tt_node_type {
  TT_NODE_GPU, /* a rank on a device; hangs off a DEV */
  TT_NODE_PCI, /* a bridge or switch */
  TT_NODE_NVS, /* all NVSwitches, as one */
  TT_NODE_CPU, /* a NUMA node */
  TT_NODE_NIC, /* a network card */
  TT_NODE_NET, /* what a net plugin calls a device: a port of a card */
  TT_NODE_DEV, /* a physical GPU */
  TT_NODE_TYPES
};

enum tt_link_type {
  TT_LINK_LOC = 0,
  TT_LINK_NVL = 1,
  TT_LINK_C2C = 3, /* a chip-to-chip link between GPU and CPU */
  TT_LINK_PCI = 4,
  TT_LINK_SYS = 9,
  TT_LINK_NET = 10
};

/* From near to far; NCCL's numbers. */
enum tt_path_type {
  TT_PATH_LOC = 0,  /* the node itself */
  TT_PATH_NVL = 1,  /* NVLink only */
  TT_PATH_NVB = 2,  /* NVLink through another GPU */
  TT_PATH_C2C = 3,  /* a chip-to-chip link */
  TT_PATH_PIX = 4,  /* one PCI bridge at most */
  TT_PATH_PXB = 5,  /* several PCI bridges, no CPU */
  TT_PATH_P2C = 6,  /* C2C to the CPU, and PCI from there */
  TT_PATH_PXN = 7,  /* NVLink to another GPU, and PCI from there to a NIC */
  TT_PATH_PHB = 8,  /* through a CPU */
  TT_PATH_SYS = 9,  /* between CPUs */
  TT_PATH_NET = 10, /* over the network */
  TT_PATH_DIS = 11, /* none */
  TT_PATH_TYPES
};

#define TT_LOCAL_BANDWIDTH 5000.0f /* of what is no bottleneck */

/* In the id of a GPU and DEV: it is of the host device, on no bus; below it is the rank. */
#define TT_HOST_DEVICE ((uint64_t)1 << 62)

enum tt_cpu_arch { TT_ARCH_OTHER, TT_ARCH_X86, TT_ARCH_POWER, TT_ARCH_ARM };
enum tt_cpu_vendor { TT_VENDOR_OTHER, TT_VENDOR_INTEL, TT_VENDOR_AMD, TT_VENDOR_ZHAOXIN };
/* x86 models that differ in what the link between sockets carries. */
enum tt_cpu_model {
  TT_MODEL_OTHER,
  TT_MODEL_INTEL_BROADWELL, /* and older */
  TT_MODEL_INTEL_SKYLAKE,
  TT_MODEL_INTEL_SAPPHIRE_RAPIDS,
  TT_MODEL_INTEL_EMERALD_RAPIDS, /* and newer */
  TT_MODEL_ZHAOXIN_YONGFENG
};

struct tt_node {
  enum tt_node_type type;
  int index; /* among the nodes of its type */
  int host;  /* of the hosts in the file, in the order of their appearance */
  uint64_t
      id;   /* GPU, DEV, PCI, NIC: the bus id as a number, or TT_HOST_DEVICE; CPU: the NUMA node (~0: none); NET: dev */
  int line; /* of the file */
  int first_link, nlinks; /* its links, out of the topology's; best first, a PCI device's uplink last */
  union {
    struct {
      int rank, dev, sm;
      int device; /* GPU: the index of its DEV */
      bool gdr;
    } gpu; /* GPU and DEV; a DEV has the rank -1 */
    struct {
      uint64_t device; /* vendor, device, subsystem vendor and device, 16 bits each */
    } pci;
    struct {
      enum tt_cpu_arch arch;
      enum tt_cpu_vendor vendor;
      enum tt_cpu_model model;
      cpu_set_t cpus; /* empty: unknown */
    } cpu;
    struct {
      int dev, port, maxconn, rail, plane; /* -1: no rail, no plane */
      uint64_t asic;                       /* equal for ports of one card */
      float bandwidth, latency;            /* GB/s, microseconds */
      bool gdr, collnet;
      int local_gpu; /* index of the GPU that has this as its nearest; -1: none */
      int same_as;   /* index of the first NET of this host with this dev; its own, mostly */
    } net;
  };
};

struct tt_link {
  int from, to; /* nodes */
  int reverse;  /* the link from `to` to `from` */
  enum tt_link_type type;
  float bandwidth;
};

struct tt_path {
  float bandwidth;
  int8_t type; /* enum tt_path_type */
  int16_t hops;
  int first; /* step; -1: none */
};
/* A path is a list of steps: `for (int s = path->first; s >= 0; s = steps[s].next)` walks its links in order. */
struct tt_step {
  int link, next;
};

struct tt_topology {
  struct tt_node *nodes;
  struct tt_link *links;
  struct tt_path *paths; /* [to * nnodes + from] */
  struct tt_step *steps;
  int nnodes, nlinks, nsteps, step_room;
  int first[TT_NODE_TYPES], count[TT_NODE_TYPES]; /* the nodes of a type are nodes[first[type]] and on */
  int nhosts;
  int nranks;                           /* of the file, before any was trimmed */
  bool inter;                           /* some ranks are reached over the network only */
  float max_bandwidth, total_bandwidth; /* best path of a GPU, and sum of its links; upper limits for a search */
  struct tt_topology_rules rules;       /* with a copy of its own of the peers' status */
};

/* The machine of a file as `rank` sees it: with the GPUs that it reaches without a network. `nranks` is the number of
 * ranks of the communicator; 0: those of the file. */
ncclResult_t tt_topology_create(const struct tt_xml *xml, const struct tt_topology_rules *rules, int rank, int nranks,
                                struct tt_topology **topology);
void tt_topology_free(struct tt_topology *topology);

static inline int tt_topology_node(const struct tt_topology *t, enum tt_node_type type, int index)
{
  return t->first[type] + index;
}
/* There is a path to each CPU, DEV, GPU, NET and NVS from all nodes; else its type is DIS. A file may name a NET twice,
 * as files of containers do; then all paths lead to and from the first, and none to the second. */
static inline struct tt_path *tt_topology_path(const struct tt_topology *t, int from, int to)
{
  return &t->paths[(int64_t)to * t->nnodes + from];
}
static inline struct tt_path *tt_topology_path_between(const struct tt_topology *t, enum tt_node_type from_type,
                                                       int from, enum tt_node_type to_type, int to)
{
  return tt_topology_path(t, t->first[from_type] + from, t->first[to_type] + to);
}

/* Index of the first node of a type with this id (and host), of the GPU with this rank; -1: none. */
int tt_topology_find(const struct tt_topology *t, enum tt_node_type type, int host, uint64_t id);
int tt_topology_gpu_of_rank(const struct tt_topology *t, int rank);

/* The nodes of `to_type` with the best path from a node: highest bandwidth, then lowest type. Writes the indices of all
 * equal ones (room for count[to_type]) and returns how many. */
int tt_topology_nearest(const struct tt_topology *t, enum tt_node_type type, int index, enum tt_node_type to_type,
                        int *found);
/* The CPU with the fewest hops to a GPU; -1: none. */
int tt_topology_cpu_of_gpu(const struct tt_topology *t, int gpu);
/* The NET that a GPU uses on a channel, so that GPUs that share NETs spread over them; -1: none. */
int tt_topology_net_of_gpu(const struct tt_topology *t, int gpu, int channel);
/* The processors near a GPU, as the file says; empty: unknown. */
void tt_topology_affinity(const struct tt_topology *t, int gpu, cpu_set_t *cpus);

/* Whether two GPUs may use each other's memory directly: if their path is of this type or a nearer one, and the driver
 * does not refuse it. checks.h has the reasons, here and below. */
enum tt_path_type tt_topology_peer_level(const struct tt_topology *t);
bool tt_topology_peer_access(const struct tt_topology *t, int from, int to);
/* Whether both GPUs are better off with the network than with their path: with the best path of each to a NET that
 * avoids CPUs, whose bandwidth tt_topology_best_to_net says. */
float tt_topology_best_to_net(const struct tt_topology *t, int gpu);
bool tt_topology_net_is_better(const struct tt_topology *t, int from, int to);
/* Whether a NET reads (`read`) or writes a GPU's memory directly: if both can, and the path is of the level's type
 * or a nearer one. With PXN it is the memory of the GPU before the NIC, the owner of the buffer. */
enum tt_path_type tt_topology_gpu_direct_level(const struct tt_topology *t);
int tt_topology_owner_of_buffer(const struct tt_topology *t, int gpu, int net);
bool tt_topology_gpu_direct(const struct tt_topology *t, int gpu, int net, bool read);

/* Words for what there is, as NCCL writes them: "GPU", "NVL", ... */
const char *tt_topology_name_node(enum tt_node_type type);
const char *tt_topology_name_link(enum tt_link_type type);
const char *tt_topology_name_path(enum tt_path_type type);
/* "GPU 3", "CPU 1", "PCI 0000:3b:00.0", "NET 0", ...; the host in front where there are several. Returns `text`. */
const char *tt_topology_label(const struct tt_topology *t, int node, char *text, size_t size);

#endif
