/* What a relay and its users say to each other by the bootstrap: one request, which the relay answers on the desk, or
 * with a refusal if it cannot reach that. */
#ifndef TT_TRANSPORT_RELAY_WIRE_H
#define TT_TRANSPORT_RELAY_WIRE_H

#include <stdbool.h>
#include "transport/relay_internal.h"

ncclResult_t tt_relay_send_request(struct tt_bootstrap *bootstrap, int relay, const struct tt_relay_request *request);
/* May be lost; the user's deadline ends its wait then. Never blocks. */
void tt_relay_send_refusal(struct tt_bootstrap *bootstrap, int user, uint64_t block, const char *why);

#define TT_RELAY_MESSAGE_MAX 512
/* Return the bytes written. */
size_t tt_relay_pack_request(const struct tt_relay_request *request, unsigned char data[TT_RELAY_MESSAGE_MAX]);
size_t tt_relay_pack_refusal(uint64_t block, const char *why, unsigned char data[TT_RELAY_MESSAGE_MAX]);
/* False for bytes that are something else. */
bool tt_relay_parse_request(const void *data, size_t bytes, struct tt_relay_request *request);
bool tt_relay_parse_refusal(const void *data, size_t bytes, uint64_t *block, char why[TT_DESK_TEXT]);

#endif
