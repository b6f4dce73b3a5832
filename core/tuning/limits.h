/* How many channels users want at least and at most, by the variables of old and of today and by a communicator's
 * configuration.
 *
 * NCCL_MIN_CTAS and NCCL_MAX_CTAS, and the older NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS, take the place of the
 * configuration's minCTAs and maxCTAs. Where both names of a bound are set both hold, as in NCCL: the larger of two
 * that say how few there may be, the smaller of two that say how many. A variable that is 0 or less says nothing. */
#ifndef TT_TUNING_LIMITS_H
#define TT_TUNING_LIMITS_H

#include "nccl.h"

struct tt_channel_limits {
  int least, most;                /* 1 <= least <= most */
  const char *least_by, *most_by; /* what said so, for messages; static */
};

/* Of a communicator whose configuration has these members, with at most `possible` channels. ncclInvalidUsage naming
 * both sides if nothing is left between the two bounds. */
ncclResult_t tt_tuning_limits(int min_ctas, int max_ctas, int possible, struct tt_channel_limits *limits);

#endif
