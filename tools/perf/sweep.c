/* See sweep.h. */
#include "sweep.h"

#include <math.h>

void perf_sweep_begin(struct perf_sweep *sweep, const struct perf_options *options, int ranks, bool fp8)
{
  *sweep = (struct perf_sweep){.options = options,
                               .ranks = ranks,
                               .fp8 = fp8,
                               .root = options->all_roots ? 0 : options->root,
                               .bytes = options->min_bytes};
}

static bool settle(struct perf_sweep *sweep)
{
  const struct perf_options *o = sweep->options;
  sweep->type = o->all_types ? perf_type_at(sweep->type_index) : o->type;
  sweep->op = !o->collective->reduces ? NULL : o->all_ops ? perf_op_at(sweep->op_index) : o->op;
  return true;
}

/* The size after `bytes`, or false. A factor rounds down to whole bytes, but always moves on. */
static bool step_size(const struct perf_options *o, uint64_t *bytes)
{
  double next = o->step_factor ? floor((double)*bytes * o->step_factor) : (double)*bytes + (double)o->step_bytes;
  if (next <= (double)*bytes) next = (double)*bytes + 1;
  if (next > (double)o->max_bytes) return false;
  *bytes = (uint64_t)next;
  return true;
}

/* Moves to the next size, or false, and to the first one. */
static bool next_size(struct perf_sweep *sweep)
{
  const struct perf_options *o = sweep->options;
  bool more = o->size_count ? ++sweep->size_index < o->size_count : step_size(o, &sweep->bytes);
  if (!more) {
    sweep->size_index = 0;
    sweep->bytes = o->min_bytes;
  }
  if (o->size_count) sweep->bytes = o->sizes[sweep->size_index];
  return more;
}

/* The next in order, whether or not there is such a measurement. */
static bool advance(struct perf_sweep *sweep)
{
  const struct perf_options *o = sweep->options;
  if (!sweep->started) {
    sweep->started = true;
    return settle(sweep);
  }
  if (o->cycles == 0 || ++sweep->cycle < o->cycles) {
    /* Endless cycles repeat the whole sweep of sizes; a number of cycles repeats each row. */
    if (o->cycles == 0) (void)next_size(sweep);
    return settle(sweep);
  }
  sweep->cycle = 0;
  if (next_size(sweep)) return settle(sweep);
  if (o->collective->rooted && o->all_roots && ++sweep->root < sweep->ranks) return settle(sweep);
  if (o->all_roots) sweep->root = 0;
  if (o->collective->reduces && o->all_ops && perf_op_at(++sweep->op_index)) return settle(sweep);
  sweep->op_index = 0;
  return o->all_types && perf_type_at(++sweep->type_index) && settle(sweep);
}

/* "all" means all that there is; what was asked for by name is tried, and the library says no. */
static bool is_there(const struct perf_sweep *sweep)
{
  return sweep->fp8 || !sweep->options->all_types || !perf_type_is_fp8(sweep->type);
}

bool perf_sweep_next(struct perf_sweep *sweep)
{
  do {
    if (!advance(sweep)) return false;
  } while (!is_there(sweep));
  return true;
}

size_t perf_sweep_count(const struct perf_options *options, int ranks, bool fp8)
{
  struct perf_sweep sweep;
  size_t count = 0;
  if (options->cycles == 0) return 0;
  perf_sweep_begin(&sweep, options, ranks, fp8);
  while (perf_sweep_next(&sweep)) count++;
  return count;
}
