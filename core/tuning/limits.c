/* See limits.h. */
#include "tuning/limits.h"

#include "base/check.h"
#include "base/param.h"

struct bound {
  int value;
  const char *by;
};

/* The one of two variables that asks for more, if `least`, else for less; {0} if neither says anything. */
static struct bound stricter(enum tt_param_id today, enum tt_param_id older, bool least)
{
  const int a = (int)tt_param_int(today), b = (int)tt_param_int(older);
  const struct bound by_today = {a, tt_param_describe(today)->name}, by_older = {b, tt_param_describe(older)->name};
  if (a <= 0 && b <= 0) return (struct bound){0};
  if (a <= 0 || b <= 0) return a > 0 ? by_today : by_older;
  const struct bound chosen = (a > b) == least || a == b ? by_today : by_older;
  if (a != b)
    TT_INFO(TT_ENV, "%s is %d and %s is %d: both hold, so that there are %d channels at %s", by_today.by, a,
            by_older.by, b, chosen.value, least ? "least" : "most");
  return chosen;
}

static struct bound or_config(struct bound bound, int value, const char *member)
{
  return bound.value > 0 ? bound : (struct bound){value, member};
}

ncclResult_t tt_tuning_limits(int min_ctas, int max_ctas, int possible, struct tt_channel_limits *limits)
{
  const struct bound least =
      or_config(stricter(TT_PARAM_NCCL_MIN_CTAS, TT_PARAM_NCCL_MIN_NCHANNELS, true), min_ctas, "config member minCTAs");
  const struct bound most = or_config(stricter(TT_PARAM_NCCL_MAX_CTAS, TT_PARAM_NCCL_MAX_NCHANNELS, false), max_ctas,
                                      "config member maxCTAs");
  *limits = (struct tt_channel_limits){.least = TT_MIN(least.value, possible),
                                       .most = TT_MIN(most.value, possible),
                                       .least_by = least.by,
                                       .most_by = most.by};
  if (limits->least > limits->most)
    return TT_FAIL(ncclInvalidUsage, "at least %d channels (%s) and at most %d (%s) are asked for", limits->least,
                   limits->least_by, limits->most, limits->most_by);
  return ncclSuccess;
}
