/* The cost model of GPUs; see cost_gpu.h.
 *
 * Time = launch + what is done once + steps * (step + peer * peers written to in a step)
 *        + bytes / (bandwidth of the channels in use).
 *
 * The figures are of four H100 and of two H200 that NVLink joins through a switch, in graphs; `prototype` means
 * hand-written kernels there (docs/performance.md), `guess` that nothing was measured and that the figure is bad enough
 * not to win over a measured one; `published` what NCCL's authors and users say of its kernels on eight H100. To tune
 * for a machine change these tables, and nothing else. */
#include "tuning/cost_gpu.h"

#include "base/check.h"
#include "program/emit.h"

/* An empty kernel in a graph: measured. */
#define LAUNCH_NS 970

struct wire {
  uint32_t step_ns; /* from a kernel's having data to its peer's having it, with what the executor does around it */
  uint32_t peer_ns; /* for each peer that is written to in a step */
  uint32_t per_us;  /* bytes of user data that a GPU sends in a microsecond, with enough channels */
  uint32_t channel_per_us; /* with one */
  uint32_t channel_bytes;  /* a further channel pays for itself if each then sends so much to a peer */
  uint32_t channels;       /* at most */
};

/* What a work in Simple takes beside its steps: two H200 took 14 us for one step, and 16 for two. */
#define SIMPLE_NS 7000

/* Simple: in a ring, which receives, reduces and sends, 16, 32 and 64 blocks reach 247, 308 and 347 bytes a nanosecond
 * (measured); LL and LL128: guesses from the blocks that were needed. */
#define SIMPLE_CHANNEL 15500
#define LL_CHANNEL 8000
#define LL128_CHANNEL 16000

/* NVLS. NCCL's model has 25 us for an operation in a machine (src/graph/tuning.cc, hwLatencies), and an efficiency of
 * 0.85 on Hopper (nvlsEfficiency there) of what 18 links of 20.6 GB/s carry (src/graph/topo.h). Sixteen channels
 * (src/include/nvls.h for Hopper) were seen to reduce 275 bytes a nanosecond on eight H100 (nccl-tests issues 212 and
 * 290), for each of which 9/8 leave a GPU. Where there is little to do its chunks have 64 KiB (src/enqueue.cc). */
#define NVLS_NS 25000
#define NVLS_PER_US 315180
#define NVLS_CHANNEL 19300
#define NVLS_CHANNEL_BYTES 65536

/* What LL and LL128 take where a work is an exchange (kernels/cuda/exchange.cuh), as of one-shot, two-shot, direct and
 * point to point: 1.1 us less than in the steps of a program, which most of the figures below are from. On two GPUs 8
 * bytes took 2.6 us then, of all-reduce and of a send. */
#define EXCHANGE_NS 1100

static const struct wire wires[TT_NUM_ALGORITHMS][TT_NUM_PROTOCOLS] = {
    /* One-shot. LL: measured, 4.0 us for 32 B, 5.3 for 32 KiB on 16 channels; one of 512 B moves in a single turn of
     * its threads. LL128: measured, 4.4 us for 32 KiB; on two GPUs 6.0 for 256 KiB, 10.8 for 1 MiB, 18 for 2 MiB.
     * Simple: on two GPUs 18 us for 1 MiB, 28 for 2 MiB, 86 for 8 MiB, since what it sends and what it receives take
     * turns. */
    [TT_ALGO_ONE_SHOT] = {[TT_PROTO_LL] = {2800 - EXCHANGE_NS, 100, 85000, LL_CHANNEL, 512, 32},
                          [TT_PROTO_LL128] = {3100 - EXCHANGE_NS, 50, 130000, LL128_CHANNEL, 1024, 32},
                          [TT_PROTO_SIMPLE] = {4000, 700, 109000, SIMPLE_CHANNEL, 32768, 32}},
    /* Two-shot. LL128: measured, 7.4 us for 128 KiB, 8.3 for 512 KiB, 16.6 for 2 MiB; on two GPUs, in one loop, 12
     * for 2 MiB, 20.6 for 4 MiB, 36 for 8 MiB. LL: measured to be 0.5 us faster up to 128 KiB. Simple: measured, 22.5
     * us for 128 B, 64 for 8 MiB, 671 for 128 MiB; on two GPUs 16, 45 and 423. */
    [TT_ALGO_TWO_SHOT] = {[TT_PROTO_LL] = {2300 - EXCHANGE_NS / 2, 50, 190000, LL_CHANNEL, 512, 64},
                          [TT_PROTO_LL128] = {2500 - EXCHANGE_NS / 2, 50, 280000, LL128_CHANNEL, 1024, 64},
                          [TT_PROTO_SIMPLE] = {5000, 700, 300000, SIMPLE_CHANNEL, 32768, 64}},
    /* Ring. Simple: measured, 38 us for 128 B, 173 for 32 MiB, 602 for 128 MiB, 2321 for 512 MiB; on two GPUs 16, 124,
     * 422 and 1576. LL: 17.7 us for 32 B, LL128: 19 for 32 B, 20 for 512 KiB, 75 for 8 MiB. */
    [TT_ALGO_RING] = {[TT_PROTO_LL] = {2750, 0, 100000, LL_CHANNEL, 2048, 32},
                      [TT_PROTO_LL128] = {3000, 0, 230000, LL128_CHANNEL, 2048, 64},
                      [TT_PROTO_SIMPLE] = {5000, 0, 350000, SIMPLE_CHANNEL, 32768, 64}},
    /* Tree: LL and LL128 measured, 13 and 15 us for 32 B, 27 and 17 for 128 KiB; Simple as ring. */
    [TT_ALGO_TREE] = {[TT_PROTO_LL] = {3000, 0, 60000, LL_CHANNEL, 2048, 16},
                      [TT_PROTO_LL128] = {3500, 0, 160000, LL128_CHANNEL, 4096, 32},
                      [TT_PROTO_SIMPLE] = {5000, 0, 250000, SIMPLE_CHANNEL, 32768, 64}},
    /* Direct, measured on two GPUs. All-gather in LL: 4.0 us for 32 KiB; in LL128 4.2 for 128 KiB, 5.0 for 512 KiB, 8.2
     * for 2 MiB, 12.5 for 4 MiB, 21 for 8 MiB, 40 for 16 MiB; broadcast 16 for 4 MiB, 30 for 8 MiB; all-gather in
     * Simple 13.9 for 32 KiB, 19.6 for 2 MiB, 31 for 8 MiB, 74 for 32 MiB, 224 for 128 MiB. */
    [TT_ALGO_DIRECT] = {[TT_PROTO_LL] = {2800 - EXCHANGE_NS, 100, 115000, LL_CHANNEL, 512, 32},
                        [TT_PROTO_LL128] = {3000 - EXCHANGE_NS, 50, 270000, LL128_CHANNEL, 1024, 64},
                        [TT_PROTO_SIMPLE] = {5000, 700, 315000, SIMPLE_CHANNEL, 32768, 64}},
    /* Mapped, two steps for the messages around the data: prototypes of all-reduce, 8.2 us for 128 KiB, 16.8 for 2 MiB,
     * 44 for 8 MiB, 163 for 32 MiB, 2497 for 512 MiB; a block reads 25 bytes a nanosecond. On two GPUs all-gather
     * took 7.4 us for 128 KiB, 10.4 for 2 MiB, 21 for 8 MiB, 226 for 128 MiB. */
    [TT_ALGO_MAPPED] = {[TT_PROTO_SIMPLE] = {3000, 50, 320000, 20000, 4096, 64}},
    /* PAT, which only NCCL_ALGO chooses here: as direct. */
    [TT_ALGO_PAT] = {[TT_PROTO_LL] = {1900, 100, 100000, LL_CHANNEL, 2048, 16},
                     [TT_PROTO_LL128] = {2200, 100, 230000, LL128_CHANNEL, 4096, 32},
                     [TT_PROTO_SIMPLE] = {4000, 700, 290000, SIMPLE_CHANNEL, 32768, 32}},
    /* NVLS: published, all of it; see above. NVLSTree has the same inside a machine, and a tree's steps between them:
     * NCCL counts 4 us for one over NVLink in Simple (src/graph/tuning.cc, hwLatencies). */
    [TT_ALGO_NVLS] = {[TT_PROTO_SIMPLE] = {NVLS_NS, 0, NVLS_PER_US, NVLS_CHANNEL, NVLS_CHANNEL_BYTES, 32}},
    [TT_ALGO_NVLS_TREE] = {[TT_PROTO_SIMPLE] = {4000, 0, NVLS_PER_US, NVLS_CHANNEL, NVLS_CHANNEL_BYTES, 32}},
    /* Point to point, one send and one receive on two GPUs. In Simple 13.6 us for 8 B, 18.7 for 512 KiB, 24 for 2 MiB,
     * 50 for 8 MiB, 403 for 128 MiB. LL: guess, as direct, since small messages of a group are one short work too; in
     * the general kernel they took 7.2 for 8 B. LL128: 5.2 for 256 KiB, 9.0 for 1 MiB, 13 for 2 MiB, 20 for 4 MiB. */
    [TT_ALGO_POINT_TO_POINT] = {[TT_PROTO_LL] = {2800 - EXCHANGE_NS, 0, 100000, LL_CHANNEL, 2048, 16},
                                [TT_PROTO_LL128] = {3000 - EXCHANGE_NS, 0, 280000, LL128_CHANNEL, 8192, 32},
                                [TT_PROTO_SIMPLE] = {6000, 0, 350000, SIMPLE_CHANNEL, 65536, 32}},
};
/* Ranks that reach each other over a network only: guesses, of a 100 Gbit/s network with a proxy at each end, on top of
 * the way through the host's memory. */
#define NETWORK_STEP_NS 20000
#define NETWORK_PER_US 10000
/* GPUs that meet in the host's memory: estimates, of a PCIe link of the fourth or fifth generation and a poll across
 * it. LL moves twice the bytes. More channels than these only share the link. */
#define HOST_PER_US 20000
#define HOST_CHANNEL 5000
#define HOST_CHANNELS 8
static const uint32_t host_step_ns[TT_NUM_PROTOCOLS] = {
    [TT_PROTO_LL] = 3500, [TT_PROTO_LL128] = 3500, [TT_PROTO_SIMPLE] = 8000};
/* A step costs as much as these bytes take on one channel: below, it is better not to cut. Lines of LL and LL128 go on
 * one by one, so their chunks fill slots: all-gather of 2 MiB in LL128 took 20 us in chunks of 8 KiB. Simple: a guess.
 */
static const uint32_t smallest_chunk[TT_NUM_PROTOCOLS] = {
    [TT_PROTO_LL] = 1 << 20, [TT_PROTO_LL128] = 1 << 20, [TT_PROTO_SIMPLE] = 32768};
/* From slots straight to where the data belong only the copies in and out of them overlap. On two GPUs in Simple, four
 * chunks a channel for eight: sends of 8 MiB 43 us for 50, all-gather of 32 MiB 70 for 74, reduce of 16 MiB 57 for 62,
 * reduce-scatter of 128 MiB 235 for 246 and of 32 MiB 87.5 for 86.4. */
#define ONE_HOP_CHUNKS 4
/* LL and LL128: what a work costs that is no single batch of steps, shared by these, and what it moves then at most.
 * Two-shot in LL128 on 64 channels took 16.6 us for 2 MiB, in one loop, and 60 for 8 MiB, in three; all on two GPUs in
 * slots of 16 KiB: two-shot 82 us for 16 MiB, reduce-scatter in a ring 64, and where sends and receives have half of
 * the threads each all-gather 90, broadcast 68 for 8 MiB. */
#define LOOPS_NS 4000
#define LOOPS_PER_US 250000
#define LOOPS_RING_PER_US 145000
#define LOOPS_APART_PER_US 110000
/* Simple, in a ring without a reduction to all: sends and receives of a chunk take turns. From all-gather of 32 MiB on
 * two GPUs, in eight chunks: 109 us, where direct took 74. What four chunks take was not measured. */
#define TURN_NS 2500
#define TURNS 8
/* Mapped where data is only moved: GPUs that all write to all move 346 bytes in a nanosecond (measured), and copy
 * engines 6 % more, as was seen of large sizes. They need a second launch, and each copy has to begin: estimate. What
 * goes on to others comes in pieces (kernels/cuda/engines.c). */
#define WRITE_PER_US 346000
#define ENGINE_PER_US 367000
#define ENGINE_COPY_NS 800
#define ENGINE_PIECE ((uint64_t)4 << 20)
/* Messages in place, each way at once: on two GPUs 32 blocks took 32 us for 8 MiB, 56 for 16, 104 for 32 and 200 for
 * 64, and copy engines 63, 106 and 191 for the last three, which begin that much later. */
#define SEND_PER_US 352000
#define SEND_ENGINE_PER_US 392000
#define SEND_ENGINE_NS 10000
/* Messages are not in place up to this size. Two GPUs took 20 us for it in LL128, 13 for half of it, and for all-gather
 * in place, with as much to the other GPU, 21: an estimate of what a message would take. */
#define SEND_COPIED ((uint64_t)4 << 20)
/* What a broadcast's root copies to its own output before others read that: engines took 120 us for 32 MiB on two GPUs,
 * and the model said 100. */
#define OWN_PER_US 1600000
/* Direct reduce-scatter also reads what it adds to: on two GPUs in Simple 50 us for 16 MiB, 87 for 32, 307 for 128; in
 * LL128 23 for 8 MiB, 42 for 16. */
#define SCATTER_PER_US 230000
/* Beyond this the model says nothing new and products would not fit 64 bits. */
#define MODEL_BYTES ((uint64_t)1 << 40)

/* What an operation does. Of one rank alone nothing need be left: no steps, no peers. */
struct shape {
  uint64_t steps, peers; /* peers: written to in each step */
  uint64_t sent;         /* bytes that leave a GPU */
  uint64_t message;      /* that all channels together send to one peer in one step */
};

static uint64_t log2_up(uint64_t n)
{
  uint64_t steps = 0;
  while (((uint64_t)1 << steps) < n) steps++;
  return steps;
}

/* The whole buffer of one rank passes from rank to rank, or from one rank to all. */
static bool is_whole(int collective)
{
  return collective == TT_FUNC_BROADCAST || collective == TT_FUNC_REDUCE;
}

static struct shape shape_of(const struct tt_tuning_input *input, int collective, int algorithm, size_t bytes)
{
  uint64_t n = (uint64_t)input->nranks, others = n - 1, b = TT_MIN((uint64_t)bytes, MODEL_BYTES), block = b / n;
  uint64_t local = (uint64_t)TT_MAX(input->max_ranks_per_node, 1);
  switch (algorithm) {
  case TT_ALGO_ONE_SHOT:
    return (struct shape){1, others, others * b, b};
  case TT_ALGO_TWO_SHOT:
    return (struct shape){2, others, 2 * others * block, block};
  case TT_ALGO_RING:
    if (collective == TT_FUNC_ALL_REDUCE) return (struct shape){2 * others, 1, 2 * others * block, block};
    if (!is_whole(collective)) return (struct shape){others, 1, others * block, block};
    return (struct shape){others, 1, b, b};
  case TT_ALGO_TREE: /* an interior rank of one tree sends to two children */
    return (struct shape){2 * log2_up(n), 1, 2 * b + b / 4, b};
  case TT_ALGO_DIRECT:
    if (is_whole(collective)) return (struct shape){1, others, others * b, b};
    return (struct shape){1, others, others * block, block};
  case TT_ALGO_MAPPED: /* of broadcast and reduce all ranks but the root do a part */
    if (tt_collective_is_message(collective)) return (struct shape){2, 1, b, b};
    if (collective == TT_FUNC_ALL_REDUCE) return (struct shape){2, others, 2 * others * block, block};
    if (is_whole(collective)) return (struct shape){2, others, b, b / TT_MAX(others, 1)};
    return (struct shape){2, others, others * block, block};
  case TT_ALGO_PAT:
    return (struct shape){log2_up(n), 1, others * block, block};
  case TT_ALGO_NVLS: /* the switch reads every copy and writes the results to it; gathers do one of the two */
    return (struct shape){1, 0, collective == TT_FUNC_ALL_REDUCE ? b + block : b, b};
  case TT_ALGO_NVLS_TREE: /* between machines as the tree */
    return (struct shape){2 * log2_up((uint64_t)input->nnodes), 1, input->all_mapped ? b + b / local : 2 * b + b / 4,
                          b};
  default: /* point to point */
    return (struct shape){1, 1, b, b};
  }
}

/* What an operation takes beside its steps. */
static uint64_t once_ns(int algorithm, int protocol)
{
  if (algorithm == TT_ALGO_NVLS_TREE) return NVLS_NS;
  return protocol == TT_PROTO_SIMPLE && algorithm != TT_ALGO_MAPPED && algorithm != TT_ALGO_NVLS ? SIMPLE_NS : 0;
}

/* The receives and sends with every peer may be in one group, and all their channels must run at once; so the pairs
 * share what the device has, whatever a group holds, since both ends must come to the same number. */
static int pair_channels(const struct tt_tuning_input *input, int most)
{
  return TT_MAX(TT_MIN(most, 32 / TT_MAX(input->nranks - 1, 1)), 1);
}

/* A channel over a network costs both ends memory, and their proxies' threads time. */
#define NETWORK_CHANNELS 4

int tt_cost_gpu_channels(const struct tt_tuning_input *input, int collective, int algorithm, int protocol, size_t bytes)
{
  const struct wire *wire = &wires[algorithm][protocol];
  int most = (int)TT_MAX(wire->channels, 1);
  if (input->through_host) most = TT_MIN(most, HOST_CHANNELS);
  if (tt_collective_is_message(collective)) most = pair_channels(input, most);
  if (input->device_channels > 0) most = TT_MIN(most, input->device_channels);
  if (input->network && algorithm != TT_ALGO_POINT_TO_POINT)
    most = TT_MIN(most, TT_MAX(NETWORK_CHANNELS, input->min_channels));
  uint64_t message = shape_of(input, collective, algorithm, bytes).message, each = TT_MAX(wire->channel_bytes, 1);
  return (int)TT_MIN(TT_MAX((message + each - 1) / each, 1), (uint64_t)most);
}

/* What a GPU's way to the host's memory, at so many bytes in a microsecond, makes of a protocol's figures: nothing of
 * it is faster than it was. */
static void slow_down(int protocol, uint64_t most, uint64_t *step, uint64_t *per_us)
{
  *step = TT_MAX(*step, host_step_ns[protocol]);
  *per_us = TT_MIN(*per_us, protocol == TT_PROTO_LL ? most / 2 : most);
}

/* Loops in which the channels move a step's message to a peer, slot by slot. Simple overlaps them. */
static uint64_t loops_of(const struct tt_tuning_input *input, int protocol, uint64_t message, int nchannels)
{
  size_t buffer = input->buffer_bytes[protocol];
  if (protocol == TT_PROTO_SIMPLE || buffer == 0) return 1;
  uint64_t slots = tt_conn_capacity(buffer / TT_SLOTS, protocol) * (uint64_t)nchannels;
  return (message + slots - 1) / slots;
}

/* Nanoseconds; bytes in a microsecond. */
static uint64_t divide(uint64_t bytes, uint64_t per_us)
{
  return bytes / per_us * 1000 + bytes % per_us * 1000 / per_us;
}

/* Mapped: what the root does before the others begin. */
static uint64_t own_ns(int collective, int algorithm, uint64_t bytes)
{
  return algorithm == TT_ALGO_MAPPED && collective == TT_FUNC_BROADCAST ? divide(bytes, OWN_PER_US) : 0;
}

/* What a GPU's processors move of it, with enough channels. Of broadcast and scatter they read. */
static uint64_t rate_of(int collective, int algorithm, const struct wire *wire)
{
  if (algorithm == TT_ALGO_DIRECT && collective == TT_FUNC_REDUCE_SCATTER) return TT_MIN(wire->per_us, SCATTER_PER_US);
  if (algorithm == TT_ALGO_MAPPED && tt_collective_is_message(collective)) return SEND_PER_US;
  bool writes = collective == TT_FUNC_ALL_GATHER || collective == TT_FUNC_ALL_TO_ALL || collective == TT_FUNC_GATHER;
  return algorithm == TT_ALGO_MAPPED && writes ? WRITE_PER_US : wire->per_us;
}

/* Simple: what a step takes longer since its data is cut. */
static uint64_t cuts_ns(int collective, int algorithm, const struct shape *shape, int nchannels)
{
  if (algorithm != TT_ALGO_RING || collective == TT_FUNC_ALL_REDUCE || is_whole(collective)) return 0;
  uint64_t chunks = shape->message / ((uint64_t)nchannels * smallest_chunk[TT_PROTO_SIMPLE]);
  return chunks > 1 ? (TT_MIN(chunks, TURNS) - 1) * TURN_NS * (shape->steps + 1) / TT_MAX(shape->steps, 1) : 0;
}

/* Of LL and LL128, in more than one loop. */
static uint64_t loops_per_us(int collective, int algorithm)
{
  if (algorithm == TT_ALGO_DIRECT || algorithm == TT_ALGO_POINT_TO_POINT) return LOOPS_APART_PER_US;
  return algorithm == TT_ALGO_RING && collective != TT_FUNC_ALL_REDUCE ? LOOPS_RING_PER_US : LOOPS_PER_US;
}

static uint64_t kernel_ns(const struct tt_tuning_input *input, int collective, int algorithm, int protocol,
                          size_t bytes, int nchannels)
{
  const struct wire *wire = &wires[algorithm][protocol];
  const struct shape shape = shape_of(input, collective, algorithm, bytes);
  uint64_t step = wire->step_ns + shape.peers * wire->peer_ns, per_us = rate_of(collective, algorithm, wire);
  if (loops_of(input, protocol, shape.message, nchannels) > 1) {
    per_us = TT_MIN(per_us, loops_per_us(collective, algorithm));
    step += LOOPS_NS / TT_MAX(shape.steps, 1);
  }
  per_us = TT_MAX(TT_MIN(per_us, (uint64_t)nchannels * wire->channel_per_us), 1);
  if (input->through_host || !input->all_mapped)
    slow_down(protocol, TT_MIN(HOST_PER_US, (uint64_t)nchannels * HOST_CHANNEL), &step, &per_us);
  if (!input->all_mapped) slow_down(protocol, NETWORK_PER_US, &step, &per_us);
  if (!input->all_mapped) step += NETWORK_STEP_NS;
  if (protocol == TT_PROTO_SIMPLE) step += cuts_ns(collective, algorithm, &shape, nchannels);
  return LAUNCH_NS + once_ns(algorithm, protocol) + own_ns(collective, algorithm, shape.sent) + shape.steps * step +
         divide(shape.sent, per_us);
}

/* Mapped, by copy engines: two kernels for the messages, and the copies. */
static uint64_t engines_ns(const struct tt_tuning_input *input, int collective, size_t bytes)
{
  const struct wire *wire = &wires[TT_ALGO_MAPPED][TT_PROTO_SIMPLE];
  const struct shape shape = shape_of(input, collective, TT_ALGO_MAPPED, bytes);
  uint64_t others = (uint64_t)input->nranks - 1, copies = others + 1, sent = shape.sent;
  bool message = tt_collective_is_message(collective);
  if (collective == TT_FUNC_SCATTER || collective == TT_FUNC_GATHER || message) copies = 1;
  if (is_whole(collective)) { /* the last piece still goes to the others when it has come */
    copies = others;
    sent += (others - 1) * TT_MIN(shape.message, ENGINE_PIECE);
  }
  return 2 * LAUNCH_NS + own_ns(collective, TT_ALGO_MAPPED, shape.sent) +
         shape.steps * (wire->step_ns + shape.peers * wire->peer_ns) +
         copies * (message ? SEND_ENGINE_NS : ENGINE_COPY_NS) +
         divide(sent, message ? SEND_ENGINE_PER_US : ENGINE_PER_US);
}

/* Copies out of a peer's memory hung where both ranks were of one process: in a graph of many of them a copy stood in a
 * queue of the peer's GPU, behind a kernel that waited for it. It did not with CUDA_DEVICE_MAX_CONNECTIONS=32, nor
 * between processes, which share no queues; copies into a peer's memory never did. */
static bool can_engines(const struct tt_tuning_input *input, int collective)
{
  bool reads = collective == TT_FUNC_BROADCAST || collective == TT_FUNC_SCATTER;
  return input->engines != TT_ENGINES_NEVER && !tt_collective_reduces(collective) && !(reads && input->one_process);
}

static bool engines_win(const struct tt_tuning_input *input, int collective, size_t bytes)
{
  const int algorithm = TT_ALGO_MAPPED, protocol = TT_PROTO_SIMPLE;
  if (!can_engines(input, collective)) return false;
  int nchannels = tt_cost_gpu_channels(input, collective, algorithm, protocol, bytes);
  return engines_ns(input, collective, bytes) < kernel_ns(input, collective, algorithm, protocol, bytes, nchannels);
}

bool tt_cost_gpu_by_engines(const struct tt_tuning_input *input, int collective, size_t bytes)
{
  if (input->engines == TT_ENGINES_ALWAYS) return can_engines(input, collective);
  return engines_win(input, collective, bytes);
}

/* Who wants engines always would not have Mapped lose to an algorithm that they cannot do. */
uint64_t tt_cost_gpu_ns(const struct tt_tuning_input *input, int collective, int algorithm, int protocol, size_t bytes,
                        int nchannels)
{
  if (algorithm == TT_ALGO_MAPPED && tt_collective_is_message(collective) && bytes <= SEND_COPIED) return UINT64_MAX;
  if (algorithm == TT_ALGO_MAPPED && engines_win(input, collective, bytes)) return engines_ns(input, collective, bytes);
  return kernel_ns(input, collective, algorithm, protocol, bytes, nchannels);
}

size_t tt_cost_gpu_smallest_chunk(int protocol)
{
  return smallest_chunk[protocol];
}

int tt_cost_gpu_chunks(const struct tt_tuning_input *input, int algorithm)
{
  bool mapped = input->all_mapped && !input->through_host;
  bool apart = algorithm == TT_ALGO_DIRECT || algorithm == TT_ALGO_POINT_TO_POINT;
  return mapped && (apart || (algorithm == TT_ALGO_RING && input->nranks == 2)) ? ONE_HOP_CHUNKS : TT_SLOTS;
}

void tt_cost_gpu_link(int protocol, uint64_t *latency_ns, uint64_t *per_us)
{
  const struct wire *wire = &wires[TT_ALGO_RING][protocol];
  *latency_ns = wire->step_ns;
  *per_us = wire->channel_per_us;
}
