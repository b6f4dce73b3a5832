/* Whether the ranks of each machine may share memory with a multicast address, which NVSwitches reduce in (NVLS): what
 * each rank knows of its own device, exchanged, and the verdict, which is the same on all ranks. */
#ifndef TT_PLAN_MULTICAST_H
#define TT_PLAN_MULTICAST_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"
#include "transport/peer_info.h"

struct ncclComm;

/* NCCL_NVLS_ENABLE. */
enum { TT_MULTICAST_NEVER = 0, TT_MULTICAST_WANTED = 1, TT_MULTICAST_AUTO = 2 };

/* What a rank says of its device. Plain bytes. */
struct tt_multicast_card {
  char why[192];       /* why it cannot be in a team; "": it can */
  uint8_t reduces[16]; /* tt_device_multicast.reduces */
  uint8_t fabric;      /* a team may span hosts */
  uint8_t reserved[7];
};

struct tt_multicast {
  bool possible;
  bool wanted;         /* NCCL_NVLS_ENABLE is 1 */
  bool spans;          /* a machine has several hosts */
  uint8_t reduces[16]; /* of all ranks' devices */
  char why[320];       /* why it is not possible, with the rank that it is for */
};

/* From all ranks' cards. machine[r]: which ranks are one machine; host[r]: which are on one host. ncclInvalidUsage if
 * `enable` is TT_MULTICAST_WANTED and a device of enough cannot do it. */
ncclResult_t tt_multicast_decide(const struct tt_multicast_card *cards, const struct tt_peer_info *peers,
                                 const int32_t *machine, int nranks, int enable, struct tt_multicast *out);
/* Takes part of all ranks: sets comm->multicast, and says in the log what came of it. Of a device without memory of its
 * own nothing is asked. machine[r] as above. */
ncclResult_t tt_multicast_agree(struct ncclComm *comm, const int32_t *machine);

/* Whether a read of all copies combines values of the type by the operation. */
bool tt_multicast_reduces(const struct tt_multicast *multicast, int datatype, int op);

#endif
