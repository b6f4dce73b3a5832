/* Who may use whose memory, with the reason: GPUs each other's, ranks that of the host, NETs that of GPUs. topology.h
 * has the answers in short. All take indices of GPUs and NETs, and look at paths as they are used. Any thread. */
#ifndef TT_TOPOLOGY_CHECKS_H
#define TT_TOPOLOGY_CHECKS_H

#include "topology/topology.h"

/* ---- GPUs and GPUs ---- */

enum tt_peer_reason {
  TT_PEER_REASON_YES,
  TT_PEER_REASON_FAR,   /* their path is beyond the level */
  TT_PEER_REASON_DRIVER /* the driver does not let one read and write the other's memory */
};

struct tt_peer_check {
  enum tt_peer_reason reason;
  int relay;      /* the GPU through which their NVLink path leads; -1: none */
  bool reads;     /* data is read by the GPU that gets it, else it is written by the one that has it */
  int from, to;   /* of TT_PEER_REASON_DRIVER: the GPUs that it means, one of which may be the relay */
  uint8_t status; /* likewise: TT_PEER_NO_* */
};

void tt_topology_check_peers(const struct tt_topology *t, int from, int to, struct tt_peer_check *check);
/* The GPU through which the path of two others leads; -1: none. */
int tt_topology_relay(const struct tt_topology *t, int from, int to);

/* ---- Ranks and memory of the host ---- */

enum tt_shared_reason {
  TT_SHARED_YES,
  TT_SHARED_OFF,     /* NCCL_SHM_DISABLE */
  TT_SHARED_HOSTS,   /* they are on different ones */
  TT_SHARED_NETWORK, /* the network is better, unless they may use each other's memory */
};
/* As far as the machine goes: whether two processes really can map each other's memory only they find out. */
enum tt_shared_reason tt_topology_check_shared(const struct tt_topology *t, int from, int to);

/* ---- NETs and GPUs ---- */

enum tt_gpu_direct_mode {
  TT_GPU_DIRECT_OFF,
  TT_GPU_DIRECT_ON,
  TT_GPU_DIRECT_PCI /* the NIC must be given addresses on the PCI bus, where the GPU also has a C2C link */
};
enum tt_gpu_direct_reason {
  TT_GPU_DIRECT_YES,
  TT_GPU_DIRECT_NET,   /* the NET cannot */
  TT_GPU_DIRECT_GPU,   /* the GPU cannot */
  TT_GPU_DIRECT_READS, /* it is not read well, or not to be read: NCCL_NET_GDR_READ */
  TT_GPU_DIRECT_FAR    /* the path is beyond the level */
};

struct tt_gpu_direct_check {
  enum tt_gpu_direct_mode mode;
  enum tt_gpu_direct_reason reason;
  int owner; /* the GPU whose memory it is: with PXN that before the NIC */
  enum tt_path_type distance, level;
};

void tt_topology_check_gpu_direct(const struct tt_topology *t, int gpu, int net, bool read,
                                  struct tt_gpu_direct_check *check);
/* The same as a line of the log (NET, GRAPH) in NCCL's shape: enabled or disabled, with both distances. */
void tt_topology_log_gpu_direct(const struct tt_topology *t, int gpu, int net, bool read);

/* What must happen before a GPU may read what a NET has put into its memory. */
enum tt_flush {
  TT_FLUSH_NONE,
  TT_FLUSH_ALWAYS, /* the net plugin's iflush */
  TT_FLUSH_C2C     /* the same, since data comes by PCI and the news of it by C2C */
};
/* `forced`: the net plugin asks for it. */
enum tt_flush tt_topology_flush(const struct tt_topology *t, int gpu, int net, bool forced);

#endif
