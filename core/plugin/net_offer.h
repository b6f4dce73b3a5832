/* The byte string in which a rank tells the others what networks it has:
 *
 *     0  "TTN" and the format version 1
 *     4  the rank's ncclResult_t
 *     5  number of networks, at most TT_NET_MAX_CANDIDATES; 0 if the result is an error
 *     6  zero, zero
 *     8  networks of 70 bytes: name (64, zero-terminated), ABI version (2), devices (4), little-endian;
 *        or, if the result is an error, its text (zero-terminated) */
#ifndef TT_PLUGIN_NET_OFFER_H
#define TT_PLUGIN_NET_OFFER_H

#include <stdbool.h>
#include <stdint.h>
#include "plugin/net.h"

#define TT_NET_MAX_CANDIDATES 8
#define TT_NET_OFFER_REASON_BYTES (TT_NET_OFFER_BYTES - 8)

struct tt_net_offered {
  ncclResult_t result;
  int count;
  struct {
    char name[64];
    int version;
    int ndev;
  } net[TT_NET_MAX_CANDIDATES];
  char reason[TT_NET_OFFER_REASON_BYTES]; /* if the result is an error */
};

void tt_net_offer_write(const struct tt_net_offered *offered, uint8_t bytes[TT_NET_OFFER_BYTES]);
/* False if the bytes are not of this format version or break its rules. */
bool tt_net_offer_read(const uint8_t bytes[TT_NET_OFFER_BYTES], struct tt_net_offered *offered);

#endif
