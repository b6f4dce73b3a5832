/* The adaptive tuner: for each kind of calls it lets the few choices that the core's model likes best have a turn, goes
 * by what operations then took over the network, and looks again when that changes.
 *
 * A context is one communicator's. Threads: one at a time within a context. What it finds goes to the log. */
#ifndef TT_TUNER_ADAPT_H
#define TT_TUNER_ADAPT_H

#include "table.h"
#include "tutti/tuner.h"

struct tt_adapt;

/* NULL: no memory. */
struct tt_adapt *tt_adapt_open(void);
void tt_adapt_close(struct tt_adapt *adapt);

/* The costs of what the next calls are to use become those that win; they stay as they are where it has no opinion.
 * Returns after how many calls it wants to be asked again; 0: never. */
uint64_t tt_adapt_answer(struct tt_adapt *adapt, const tuttiTunerEpoch_v1_t *question,
                         const struct tt_table_costs *costs);

#endif
