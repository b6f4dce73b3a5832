/* What each rank tells all others when a communicator is made. Exchanged as a serialised byte string. */
#ifndef TT_TRANSPORT_PEER_INFO_H
#define TT_TRANSPORT_PEER_INFO_H

#include <stdint.h>
#include <stddef.h>
#include "nccl.h"
#include "base/hash.h"
#include "base/host.h"
#include "base/uds.h"

struct tt_peer_info {
  int32_t rank;
  int32_t device;
  int32_t pid;
  int32_t node;       /* lowest rank of the ranks proved to share this one's host; set by tt_node_prove */
  int32_t machine;    /* lowest rank of those that reach its device without a network; set by tt_fabric_agree */
  int32_t fabric;     /* likewise; not 0 and equal: the same fabric, which is used across cliques */
  uint64_t host_hash; /* a hint only */
  uint64_t process;   /* equal: same address space */
  struct tt_key key;  /* random; known to the ranks of this communicator only: proves that a client is one of them */
  char host[64];
  char uds[TT_UDS_NAME_BYTES]; /* where this rank's memory is handed out; also the name of its slabs */
  unsigned char device_id[16]; /* of tt_device_properties; all zero: a device without contexts, or without identity */
  char pci[16];
};

#define TT_PEER_INFO_BYTES 256 /* of the serialised form */
void tt_peer_info_pack(const struct tt_peer_info *info, unsigned char bytes[TT_PEER_INFO_BYTES]);
/* ncclRemoteError, naming what is wrong, for bytes that no rank of this version wrote. */
ncclResult_t tt_peer_info_unpack(const unsigned char bytes[TT_PEER_INFO_BYTES], struct tt_peer_info *info);

#endif
