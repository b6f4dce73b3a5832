/* Whether two ranks may use the memory of the host that they share, and the words for why they do not. */
#ifndef TT_TRANSPORT_NEAR_H
#define TT_TRANSPORT_NEAR_H

#include <stdbool.h>
#include <stddef.h>
#include "transport/transport.h"

/* Depends only on exchanged data and agreed parameters; not on what devices can do. */
bool tt_near_can_share(const struct tt_transport_env *env, int from, int to, char *reason, size_t size);
/* Why two ranks that are on two hosts, as far as they could prove, do not share memory. */
void tt_near_explain(const struct tt_transport_env *env, int from, int to, char *reason, size_t size);
/* Whether the other end of a connection is in this process, and its pointers are this rank's too. */
bool tt_near_same_process(const struct tt_transport_env *env, const struct tt_connector *connector);

#endif
