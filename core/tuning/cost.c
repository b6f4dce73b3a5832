/* The cost model of the host device; see cost.h.
 *
 * Most constants are estimates: they need to put the algorithms in the right order, and every choice can be overruled.
 * Where each comes from stands beside it. */
#include "tuning/cost.h"

#include "base/check.h"

struct wire {
  uint64_t latency_ns; /* from one executor's post to the other's seeing it */
  uint64_t per_us;     /* bytes of user data in a microsecond */
};

enum { MAPPED, NETWORK, KINDS };
static const struct wire wires[KINDS][TT_NUM_PROTOCOLS] = {
    /* Mapped: some cache-line transfers between cores, about 100 ns each on servers; Simple needs two more than LL, for
     * the counter and its fence. 5000 bytes a microsecond: one core's copy through the shared cache. LL moves twice the
     * bytes, with stores of 8. LL128 as Simple less 1/16 for its flags. */
    [MAPPED] = {[TT_PROTO_LL] = {400, 2000}, [TT_PROTO_LL128] = {500, 4687}, [TT_PROTO_SIMPLE] = {800, 5000}},
    /* Network: the usual round trip of kernel TCP in a machine room is 30 to 50 us; 1250 bytes a microsecond are 10
     * Gbit/s, the least that clusters have. LL halves it. */
    [NETWORK] = {[TT_PROTO_LL] = {20000, 625}, [TT_PROTO_LL128] = {20500, 1171}, [TT_PROTO_SIMPLE] = {21000, 1250}},
};
/* Posting to one more peer in the same step: one line written and one read. */
#define POST_NS 150
/* FIFOs that together exceed a core's second-level cache cost half as much again, since what a receiver reads has left
 * the cache. Measured with tutti-perf (two cores with 1 MiB each, Simple, best of five): all-gather and reduce-scatter
 * of 8 MiB took ring, direct and PAT 6.9, 8.8 and 7.6 ms, and 5.4, 8.6 and 9.0 ms, on four ranks; on two ranks, whose
 * one FIFO of 1 MiB fits, 3.7, 1.4 and 1.4 ms, and 5.5, 3.0 and 5.6 ms. Below 1 MiB direct was the fastest on four
 * ranks too (128 KiB: 421, 72 and 98 us, and 98, 50 and 79 us). */
#define CACHE_BYTES ((uint64_t)1 << 20)
/* Beyond this the model says nothing new and products would not fit 64 bits. */
#define MODEL_BYTES ((uint64_t)1 << 40)

/* ceil(log2 n) */
static uint64_t log2_up(uint64_t n)
{
  uint64_t steps = 0;
  while (((uint64_t)1 << steps) < n) steps++;
  return steps;
}

/* `mapped` and `network` latencies one after the other, then `bytes` at the slower kind in use. */
static uint64_t total(const struct tt_tuning_input *input, int protocol, uint64_t mapped, uint64_t network,
                      uint64_t bytes)
{
  const struct wire *near = &wires[MAPPED][protocol], *far = &wires[NETWORK][protocol];
  uint64_t per_us = input->all_mapped ? near->per_us : far->per_us;
  return mapped * near->latency_ns + network * far->latency_ns + bytes / per_us * 1000 + bytes % per_us * 1000 / per_us;
}

/* Steps in which all ranks take part: the slowest connection counts in each. */
static uint64_t lockstep(const struct tt_tuning_input *input, int protocol, uint64_t steps, uint64_t bytes)
{
  return total(input, protocol, input->all_mapped ? steps : 0, input->all_mapped ? 0 : steps, bytes);
}

/* How many of `hops` go over the network, if `between` of them join nodes. Ranks of one node that share no memory use
 * it for all. */
static uint64_t far_of(const struct tt_tuning_input *input, uint64_t between, uint64_t hops)
{
  if (input->all_mapped) return 0;
  return input->nnodes > 1 ? TT_MIN(between, hops) : hops;
}

/* One piece passes all ranks in a row: most hops stay within a node. */
static uint64_t chain(const struct tt_tuning_input *input, int protocol, uint64_t hops, uint64_t bytes)
{
  uint64_t network = far_of(input, (uint64_t)TT_MAX(input->nnodes, 1) - 1, hops);
  return total(input, protocol, hops - network, network, bytes);
}

static uint64_t tree(const struct tt_tuning_input *input, int protocol, uint64_t n, uint64_t bytes)
{
  uint64_t depth = log2_up(n);
  uint64_t network = far_of(input, log2_up((uint64_t)TT_MAX(input->nnodes, 1)), depth);
  /* Up and down; every rank moves its share twice, plus what an interior rank of one tree sends to a second child. */
  return total(input, protocol, 2 * (depth - network), 2 * network, 2 * bytes + bytes / 4);
}

/* Bytes of a rank that passes them through `fifos` FIFOs of its host at once, with what the caches make of it. */
static uint64_t cached(const struct tt_tuning_input *input, int protocol, uint64_t fifos, uint64_t bytes)
{
  uint64_t touched = TT_MIN(bytes, fifos * (uint64_t)input->buffer_bytes[protocol]);
  return input->all_mapped && touched > CACHE_BYTES ? bytes + bytes / 2 : bytes;
}

/* A broadcast's or reduce's root deals with the whole data of one rank after another, which takes it as long as a chain
 * takes from rank to rank: measured as above, on four ranks, ring and direct took 5.1 and 5.6 us for 1 KiB, 14.7 and
 * 13.7 us for 16 KiB, and 7.7 and 7.0 ms for 8 MiB of broadcast, and 7.3 and 7.2 us, 13.9 and 12.5 us, and 12.2
 * and 14.0 ms of reduce. A ring needs fewer connections for it. */
static uint64_t direct(const struct tt_tuning_input *input, int collective, int protocol, uint64_t others, uint64_t b,
                       uint64_t share)
{
  bool whole = collective == TT_FUNC_BROADCAST || collective == TT_FUNC_REDUCE;
  if (whole) return lockstep(input, protocol, others, others * b) + others * POST_NS;
  return lockstep(input, protocol, 1, cached(input, protocol, others, share)) + others * POST_NS;
}

/* Each step posts a message and hands on what came between two strands; many small chunks cost an eighth more. Between
 * nodes all ranks of one use the network at the same time, where a ring crosses it once. */
static uint64_t pat(const struct tt_tuning_input *input, int protocol, uint64_t n, uint64_t share)
{
  uint64_t steps = log2_up(n), bytes = cached(input, protocol, steps, share + share / 8);
  if (!input->all_mapped) bytes *= (uint64_t)TT_MAX(input->max_ranks_per_node, 1);
  return lockstep(input, protocol, steps, bytes) + 2 * steps * POST_NS;
}

/* To the heads and back, and to the network and back; a head exchanges a share of the data with it. */
static uint64_t direct_collnet(const struct tt_tuning_input *input, int protocol, uint64_t b)
{
  uint64_t networks = (uint64_t)TT_MAX(input->collnet_networks, 1);
  return total(input, protocol, 2, 2, b / networks) + 2 * (uint64_t)input->max_ranks_per_node * POST_NS;
}

/* Along the node's ranks and back. Channels have different heads as far as there are networks. */
static uint64_t chain_collnet(const struct tt_tuning_input *input, int protocol, uint64_t b)
{
  uint64_t hops = 2 * ((uint64_t)TT_MAX(input->max_ranks_per_node, 1) - 1);
  uint64_t heads = (uint64_t)TT_MAX(TT_MIN(input->collnet_networks, input->collnet_channels), 1);
  return total(input, protocol, hops, 2, b / heads);
}

/* Multicast memory is emulated: each rank copies all in and out, and reads and writes its share of every copy. */
static uint64_t nvls(const struct tt_tuning_input *input, int protocol, uint64_t b)
{
  uint64_t local = (uint64_t)TT_MAX(input->max_ranks_per_node, 1);
  return 3 * wires[MAPPED][protocol].latency_ns + 2 * (local - 1) * POST_NS +
         4 * b * 1000 / wires[MAPPED][protocol].per_us;
}

static uint64_t nvls_tree(const struct tt_tuning_input *input, int protocol, uint64_t b)
{
  uint64_t depth = log2_up((uint64_t)TT_MAX(input->nnodes, 1));
  return nvls(input, protocol, b) + total(input, protocol, 0, 2 * depth, 2 * b);
}

uint64_t tt_cost_ns(const struct tt_tuning_input *input, int collective, int algorithm, int protocol, size_t bytes)
{
  uint64_t n = (uint64_t)input->nranks, others = n - 1, b = TT_MIN((uint64_t)bytes, MODEL_BYTES),
           share = b / n * others;
  if (n == 1) return total(input, protocol, 0, 0, b);
  switch (algorithm) {
  case TT_ALGO_RING:
    if (collective == TT_FUNC_ALL_REDUCE) return lockstep(input, protocol, 2 * others, 2 * share);
    if (collective == TT_FUNC_ALL_GATHER || collective == TT_FUNC_REDUCE_SCATTER)
      return lockstep(input, protocol, others, share) + 2 * others * POST_NS;
    return chain(input, protocol, others, b);
  case TT_ALGO_TREE:
    return tree(input, protocol, n, b);
  case TT_ALGO_ONE_SHOT:
    return lockstep(input, protocol, 1, others * b) + others * POST_NS;
  case TT_ALGO_TWO_SHOT:
    return lockstep(input, protocol, 2, 2 * share) + 2 * others * POST_NS;
  case TT_ALGO_DIRECT:
    return direct(input, collective, protocol, others, b, share);
  case TT_ALGO_MAPPED: /* two exchanges of messages without data, and the data once */
    return lockstep(input, protocol, 2, collective == TT_FUNC_ALL_REDUCE ? 2 * share : share) + 4 * others * POST_NS;
  case TT_ALGO_PAT:
    return pat(input, protocol, n, share);
  case TT_ALGO_COLLNET_DIRECT:
    return direct_collnet(input, protocol, b);
  case TT_ALGO_COLLNET_CHAIN:
    return chain_collnet(input, protocol, b);
  case TT_ALGO_NVLS:
    return nvls(input, protocol, b);
  case TT_ALGO_NVLS_TREE:
    return nvls_tree(input, protocol, b);
  default: /* point to point */
    return lockstep(input, protocol, 1, b);
  }
}

void tt_cost_link(bool mapped, int protocol, uint64_t *latency_ns, uint64_t *per_us)
{
  const struct wire *wire = &wires[mapped ? MAPPED : NETWORK][protocol];
  *latency_ns = wire->latency_ns;
  *per_us = wire->per_us;
}
