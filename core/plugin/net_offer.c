/* See net_offer.h. Read without trust: the bytes come from another process. */
#include <string.h>
#include "plugin/net_offer.h"

enum { HEADER = 8, NAME = 64, ENTRY = NAME + 2 + 4 };
_Static_assert(HEADER + TT_NET_MAX_CANDIDATES * ENTRY <= TT_NET_OFFER_BYTES, "the offer is too short");
static const uint8_t magic[4] = {'T', 'T', 'N', 1};

void tt_net_offer_write(const struct tt_net_offered *offered, uint8_t bytes[TT_NET_OFFER_BYTES])
{
  memset(bytes, 0, TT_NET_OFFER_BYTES);
  memcpy(bytes, magic, sizeof(magic));
  bytes[4] = (uint8_t)offered->result;
  if (offered->result != ncclSuccess) {
    memcpy(bytes + HEADER, offered->reason, strnlen(offered->reason, TT_NET_OFFER_REASON_BYTES - 1));
    return;
  }
  bytes[5] = (uint8_t)offered->count;
  for (int i = 0; i < offered->count; i++) {
    uint8_t *entry = bytes + HEADER + i * ENTRY;
    memcpy(entry, offered->net[i].name, strnlen(offered->net[i].name, NAME - 1));
    uint32_t version = (uint32_t)offered->net[i].version, ndev = (uint32_t)offered->net[i].ndev;
    for (int b = 0; b < 2; b++) entry[NAME + b] = (uint8_t)(version >> (8 * b));
    for (int b = 0; b < 4; b++) entry[NAME + 2 + b] = (uint8_t)(ndev >> (8 * b));
  }
}

bool tt_net_offer_read(const uint8_t bytes[TT_NET_OFFER_BYTES], struct tt_net_offered *offered)
{
  memset(offered, 0, sizeof(*offered));
  if (memcmp(bytes, magic, sizeof(magic)) != 0 || bytes[4] >= ncclNumResults || bytes[5] > TT_NET_MAX_CANDIDATES)
    return false;
  offered->result = (ncclResult_t)bytes[4];
  if (offered->result != ncclSuccess) {
    memcpy(offered->reason, bytes + HEADER, TT_NET_OFFER_REASON_BYTES - 1);
    return true;
  }
  offered->count = bytes[5];
  for (int i = 0; i < offered->count; i++) {
    const uint8_t *entry = bytes + HEADER + i * ENTRY;
    uint32_t ndev = 0;
    if (entry[0] == 0 || entry[NAME - 1] != 0) return false;
    memcpy(offered->net[i].name, entry, NAME);
    for (int b = 0; b < 4; b++) ndev |= (uint32_t)entry[NAME + 2 + b] << (8 * b);
    if (ndev == 0 || ndev > INT32_MAX) return false;
    offered->net[i].version = entry[NAME] | entry[NAME + 1] << 8;
    offered->net[i].ndev = (int)ndev;
  }
  return true;
}
