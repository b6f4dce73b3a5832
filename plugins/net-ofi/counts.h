/* How many messages, or buffers for them, each tag of a comm has had: both sides count alike, so a number names the
 * same message on both. A hash table that grows, since tags are any numbers and none may be forgotten. */
#ifndef TT_NET_OFI_COUNTS_H
#define TT_NET_OFI_COUNTS_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"

struct tt_ofi_count {
  int32_t tag;
  bool used;
  bool large;        /* receiver: the tag's last message was written, so the next one's place is told ahead */
  uint32_t told;     /* receiver: places that the peer knows, and has not filled */
  uint32_t met;      /* receiver: small messages with a receive that are not acknowledged */
  uint32_t ahead;    /* sender: small messages that are not acknowledged */
  uint64_t posted;   /* messages or buffers so far */
  uint64_t promised; /* number of the first whose place is told unasked; UINT64_MAX: of none */
  uint64_t refused;  /* sender: number of the last that was promised a place and got none */
};
struct tt_ofi_counts {
  uint32_t size, used; /* size: a power of 2, or 0 */
  uint32_t last;       /* where the last search ended */
  struct tt_ofi_count *entries;
};

/* The tag's entry, made if there is none; it stays in place until another is made. */
ncclResult_t tt_ofi_counts_get(struct tt_ofi_counts *counts, int32_t tag, struct tt_ofi_count **out);
/* NULL: there is none. */
struct tt_ofi_count *tt_ofi_counts_find(const struct tt_ofi_counts *counts, int32_t tag);
void tt_ofi_counts_free(struct tt_ofi_counts *counts);

#endif
