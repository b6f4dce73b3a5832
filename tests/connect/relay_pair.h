/* For tests of sending through another rank: rank 0 sends to rank 2 through rank 1, whose user does nothing meanwhile.
 * A counting plugin that claims several devices looks on. Only where the socket plugin is built. */
#ifndef TT_TESTS_CONNECT_RELAY_PAIR_H
#define TT_TESTS_CONNECT_RELAY_PAIR_H

#include "tests/fakes/net/counting.h"
#include "world.h"

#define CHANNELS 3
#define PATIENCE_MS 60000

extern counting_read_fn *counting_read;
extern counting_hold_fn *counting_hold;
extern counting_refuse_fn *counting_refuse;
extern struct counting seen;
extern int conn_index; /* 1: with slots of a pool */

void use_counting(void);
/* The same with so many slots of a pool. */
void use_pool(const char *slots);

/* In bodies: sets the rank's routes, then a barrier. */
bool use_routes(struct rank *rank);
/* Sends to, and receives from, those ranks; -1: none. */
ncclResult_t connect_channels(struct rank *rank, int to, int from, int channels);
/* Ranks 0 and 2 on all channels. */
bool connect_pair(struct rank *rank);
struct tt_connector *end_of(struct rank *rank, int channel);
bool pass_on(struct rank *rank, int count);
/* A thread, of a rank. */
void *abort_soon(void *rank);

#endif
