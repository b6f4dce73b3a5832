/* The choice: candidates are all pairs of algorithm and protocol that exist and that the user allows; the cheapest by
 * the cost model wins, the first of equals. See tuning.h. */
#include "tuning/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "program/emit.h"
#include "tuning/cost.h"
#include "tuning/cost_gpu.h"
#include "tuning/env.h"

/* A further channel pays for itself only if each has this much to do: its messages are then larger than a page. */
#define CHANNEL_BYTES ((size_t)64 << 10)
/* Chunks of chains on the host are not cut below a page. */
#define SMALLEST_CHUNK 4096

struct tt_tuning {
  struct tt_tuning_input input;
  struct tt_env_list algorithms, protocols;
};

static bool is_collnet(int algorithm)
{
  return algorithm == TT_ALGO_COLLNET_DIRECT || algorithm == TT_ALGO_COLLNET_CHAIN;
}

static bool is_nvls(int algorithm)
{
  return algorithm == TT_ALGO_NVLS || algorithm == TT_ALGO_NVLS_TREE;
}

/* Whether NCCL_ALGO says an algorithm's name. */
static bool is_named(const struct tt_tuning *t, int collective, int algorithm)
{
  const struct tt_env_list *env = &t->algorithms;
  return env->set[collective] && !env->inverted[collective] && env->allowed[collective] & 1u << algorithm;
}

/* The same for algorithms that use memory shared by a node. */
static const char *missing_nvls(const struct tt_tuning *t, int collective, int algorithm, int protocol)
{
  const struct tt_tuning_input *input = &t->input;
  bool gpu = input->kind == TT_TUNING_GPU, named = is_named(t, collective, algorithm);
  if (gpu ? !input->multicast : !input->nodes_mapped) return "there is no multicast memory";
  if (!gpu && !named) return "multicast memory is only emulated here; NCCL_ALGO has to name it";
  if (gpu && !named && !input->multicast_wanted) return "neither NCCL_ALGO names it nor is NCCL_NVLS_ENABLE 1";
  if (algorithm == TT_ALGO_NVLS && input->nnodes > 1) return "the ranks are on several nodes, which is for NVLSTree";
  if (algorithm == TT_ALGO_NVLS_TREE && input->nranks != input->nnodes * input->max_ranks_per_node)
    return "not all nodes have the same number of ranks";
  if (algorithm == TT_ALGO_NVLS_TREE && input->max_ranks_per_node < 2) return "no two ranks are on one node";
  return protocol == TT_PROTO_SIMPLE ? NULL : "shared memory needs Simple";
}

/* Ranks whose programs name all others of the communicator, or of their node. Messages name those that they are for. */
static bool has_too_many_peers(const struct tt_tuning_input *input, int collective, int algorithm)
{
  if (input->most_peers == 0 || tt_collective_is_message(collective)) return false;
  /* A node's ranks take twice the room there, and there are some of other nodes. */
  if (algorithm == TT_ALGO_NVLS_TREE) return input->max_ranks_per_node >= input->most_peers / 2;
  bool all = algorithm == TT_ALGO_ONE_SHOT || algorithm == TT_ALGO_TWO_SHOT || algorithm == TT_ALGO_DIRECT ||
             algorithm == TT_ALGO_MAPPED || algorithm == TT_ALGO_NVLS;
  return all && input->nranks - 1 > input->most_peers;
}

/* Why a pair is no candidate, whatever the user wants; NULL if it is one. */
static const char *missing(const struct tt_tuning *t, int collective, int algorithm, int protocol)
{
  const struct tt_tuning_input *input = &t->input;
  bool direct = algorithm == TT_ALGO_ONE_SHOT || algorithm == TT_ALGO_TWO_SHOT || algorithm == TT_ALGO_DIRECT;
  if (!tt_program_supports(collective, algorithm)) return "it has no program for it";
  if (is_collnet(algorithm) && !input->collnet_networks) return "there is no network that reduces";
  if (is_collnet(algorithm) && protocol != TT_PROTO_SIMPLE) return "a network reduces plain data only";
  const char *why = is_nvls(algorithm) ? missing_nvls(t, collective, algorithm, protocol) : NULL;
  if (why) return why;
  if (has_too_many_peers(input, collective, algorithm)) return "a rank has more peers in it than the device can name";
  if (algorithm == TT_ALGO_MAPPED && protocol != TT_PROTO_SIMPLE) return "members' buffers need Simple";
  if (algorithm == TT_ALGO_MAPPED && !input->members_mapped) return "not all ranks use each other's memory";
  if (!(input->protocols & 1u << protocol)) return "the device does not have the protocol";
  if (input->buffer_bytes[protocol] == 0) return "the protocol has no buffers";
  if (protocol == TT_PROTO_LL128 && input->torn_lines)
    return "its lines of 128 bytes stay whole in devices' memory only, which some ranks do not share";
  bool fits = tt_conn_capacity(input->buffer_bytes[protocol] / TT_SLOTS, protocol) >= TT_PAT_PIECES * TT_PIECE_ALIGN;
  if (algorithm == TT_ALGO_PAT && !fits) return "the protocol's buffers are too small for its messages";
  /* Connections of all to all over a network are made only if the user asks for them by name, or if there is no other
   * way. */
  bool only = !tt_program_supports(collective, TT_ALGO_RING);
  bool named = is_named(t, collective, algorithm);
  if (direct && !input->all_mapped && !named && !only) return "not all ranks share memory";
  if (algorithm == TT_ALGO_PAT && input->kind == TT_TUNING_GPU && !named)
    return "GPUs use it only if NCCL_ALGO names it";
  return NULL;
}

static bool candidate(const struct tt_tuning *t, int collective, int algorithm, int protocol, uint32_t algorithms,
                      uint32_t protocols)
{
  return algorithms & 1u << algorithm && protocols & 1u << protocol && !missing(t, collective, algorithm, protocol);
}

/* Whether NCCL_ALGO's list leaves an algorithm that the collective has, protocols apart. */
static bool has_algorithm(const struct tt_tuning *t, int collective, uint32_t possible)
{
  for (int a = 0; a < TT_NUM_ALGORITHMS; a++)
    for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
      if (candidate(t, collective, a, p, possible & t->algorithms.allowed[collective], UINT32_MAX)) return true;
  return false;
}

/* One thread executes all channels of a rank, so where all memory is mapped a second channel only adds steps; over a
 * network channels spread over the interfaces, of which one is best served by one: all-reduce of 64 KiB between two
 * ranks over loopback took 31 us by net-socket on one channel and 83 to 203 on four, 95 and 345 by net-ofi. */
#define MAPPED_CHANNELS 1
#define NETWORK_CHANNELS 4

static int useful_channels(const struct tt_tuning *t, int collective, int algorithm, int protocol, size_t bytes)
{
  if (t->input.kind == TT_TUNING_GPU) return tt_cost_gpu_channels(&t->input, collective, algorithm, protocol, bytes);
  bool known = t->input.network_paths > 0 && !is_collnet(algorithm); /* networks that reduce have NICs of their own */
  int paths = known ? TT_MIN(t->input.network_paths, NETWORK_CHANNELS) : NETWORK_CHANNELS;
  return (int)TT_MIN(bytes / CHANNEL_BYTES, (size_t)(t->input.all_mapped ? MAPPED_CHANNELS : paths));
}

/* Each channel has an area of the shared memory. */
static int shared_channels(const struct tt_tuning *t)
{
  int wanted = t->input.multicast_channels > 0 ? t->input.multicast_channels : NETWORK_CHANNELS;
  return TT_MIN(TT_MAX(t->input.min_channels, wanted), t->input.max_channels);
}

/* What an algorithm makes of a number of channels. */
static int limit_channels(const struct tt_tuning *t, int algorithm, int count)
{
  /* Each channel runs one of the two trees: both are needed, in equal numbers. */
  if (algorithm == TT_ALGO_TREE) count = TT_MAX(2, count + count % 2);
  if (is_nvls(algorithm)) count = TT_MIN(count, shared_channels(t));
  if (is_collnet(algorithm)) count = TT_MIN(count, t->input.collnet_channels);
  if (count > t->input.max_channels)
    count = algorithm == TT_ALGO_TREE ? TT_MAX(t->input.max_channels & ~1, 1) : t->input.max_channels;
  return count;
}

static int channels(const struct tt_tuning *t, int collective, int algorithm, int protocol, size_t bytes)
{
  int count = TT_MAX(useful_channels(t, collective, algorithm, protocol, bytes), t->input.min_channels);
  return limit_channels(t, algorithm, count);
}

/* NCCL_ALGO does not speak of messages' algorithms: they go through connections, or are Mapped if they can. */
static int as_program(int collective)
{
  return collective == TT_FUNC_SEND_RECV ? TT_FUNC_SEND : collective;
}
static bool is_point_to_point(int collective)
{
  return collective == TT_FUNC_SEND_RECV || collective == TT_FUNC_SEND || collective == TT_FUNC_RECV;
}

/* What the collective has, for error messages: "algorithms Ring, Tree and protocols LL, Simple". */
static void describe(const struct tt_tuning *t, int collective, char *text, size_t size)
{
  size_t at = (size_t)snprintf(text, size, "algorithms");
  for (int kind = 0; kind < 2; kind++) {
    const char *separator = " ";
    if (kind == 1) at += (size_t)snprintf(text + at, size - at, " and protocols");
    for (int i = 0; i < (kind ? TT_NUM_PROTOCOLS : TT_NUM_ALGORITHMS); i++) {
      bool found = false;
      for (int j = 0; j < (kind ? TT_NUM_ALGORITHMS : TT_NUM_PROTOCOLS); j++)
        found |= !missing(t, collective, kind ? j : i, kind ? i : j);
      const char *name = kind ? tt_env_protocols.names[i] : tt_env_algorithms.names[i];
      if (!found) continue;
      at += (size_t)snprintf(text + at, size - at, "%s%s", separator, name ? name : tt_algorithm_name(i));
      separator = ", ";
    }
  }
}

/* Why a protocol that the user names is none here, if one is there by itself; "" if there is nothing to say. */
static void explain_protocol(const struct tt_tuning *t, int collective, char *text, size_t size)
{
  const struct tt_env_list *env = &t->protocols;
  text[0] = '\0';
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (!(env->allowed[collective] & 1u << p)) continue;
    const char *why =
        missing(t, as_program(collective), is_point_to_point(collective) ? TT_ALGO_POINT_TO_POINT : TT_ALGO_RING, p);
    if (why) snprintf(text, size, "; %s: %s", tt_protocol_name(p), why);
  }
}

static ncclResult_t nothing_left(const struct tt_tuning *t, int collective)
{
  char has[256], why[160];
  const struct tt_env_list *p = &t->protocols;
  describe(t, as_program(collective), has, sizeof(has));
  if (!p->value)
    return TT_FAIL(ncclInternalError, "%s has no usable algorithm and protocol: it has %s",
                   tt_collective_name(collective), has);
  explain_protocol(t, collective, why, sizeof(why));
  return TT_FAIL(ncclInvalidUsage, "%s is \"%s\"%s%s%s, which leaves nothing for %s here: it has %s%s", p->variable,
                 p->value, t->algorithms.value ? " and NCCL_ALGO is \"" : "",
                 t->algorithms.value ? t->algorithms.value : "", t->algorithms.value ? "\"" : "",
                 tt_collective_name(collective), has, why);
}

static ncclResult_t check_input(const struct tt_tuning_input *input)
{
  if (input->nranks >= 1 && input->min_channels >= 1 && input->max_channels >= input->min_channels) return ncclSuccess;
  return TT_FAIL(ncclInternalError, "tuning for %d ranks and %d to %d channels makes no sense", input->nranks,
                 input->min_channels, input->max_channels);
}

static void announce_fallback(const struct tt_tuning *t, int collective)
{
  TT_INFO(TT_INIT | TT_TUNING, "Tuning: NCCL_ALGO=%s has nothing that %s has here; its algorithm is chosen freely",
          t->algorithms.value, tt_collective_name(collective));
  for (int a = 0; a < TT_NUM_ALGORITHMS; a++) {
    const char *why = is_named(t, collective, a) ? missing(t, collective, a, TT_PROTO_SIMPLE) : NULL;
    if (why)
      TT_INFO(TT_INIT | TT_TUNING, "Tuning: %s does not use %s: %s", tt_collective_name(collective),
              tt_algorithm_name(a), why);
  }
}

/* Says once what the variables do and cannot do. */
static void announce(const struct tt_tuning *t)
{
  for (int c = 0; c <= TT_FUNC_ALL_REDUCE; c++)
    if (t->algorithms.set[c] && !has_algorithm(t, c, UINT32_MAX)) announce_fallback(t, c);
  for (int a = 0; a < TT_NUM_ALGORITHMS; a++)
    for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
      const char *why = missing(t, TT_FUNC_ALL_REDUCE, a, p);
      if (why)
        TT_TRACE(TT_TUNING, "Tuning: AllReduce does not use %s with %s: %s", tt_algorithm_name(a), tt_protocol_name(p),
                 why);
    }
}

ncclResult_t tt_tuning_create(const struct tt_tuning_input *input, struct tt_tuning **out)
{
  struct tt_tuning *t;
  *out = NULL;
  TT_TRY(check_input(input));
  TT_TRY(TT_CALLOC(&t, 1));
  t->input = *input;
  ncclResult_t result =
      tt_env_parse("NCCL_ALGO", tt_param_string(TT_PARAM_NCCL_ALGO), &tt_env_algorithms, &t->algorithms);
  if (result == ncclSuccess)
    result = tt_env_parse("NCCL_PROTO", tt_param_string(TT_PARAM_NCCL_PROTO), &tt_env_protocols, &t->protocols);
  if (result != ncclSuccess) {
    free(t);
    return result;
  }
  announce(t);
  *out = t;
  return ncclSuccess;
}

int tt_tuning_shared_channels(const struct tt_tuning *t)
{
  for (int c = 0; c <= TT_FUNC_ALL_REDUCE; c++)
    for (int a = 0; a < TT_NUM_ALGORITHMS; a++)
      if (is_nvls(a) && candidate(t, c, a, TT_PROTO_SIMPLE, t->algorithms.allowed[c], t->protocols.allowed[c]))
        return shared_channels(t);
  return 0;
}

void tt_tuning_destroy(struct tt_tuning *tuning)
{
  free(tuning);
}

static void explain(const struct tt_tuning *t, int collective, int candidates, bool fell_back, struct tt_choice *choice)
{
  size_t size = sizeof(choice->reason), at = 0;
  char *text = choice->reason;
  if (fell_back)
    at = (size_t)snprintf(text, size, "NCCL_ALGO=%.24s has nothing for %s; ", t->algorithms.value,
                          tt_collective_name(collective));
  at += (size_t)snprintf(text + at, size - at, candidates == 1 ? "the only candidate" : "the fastest of %d candidates",
                         candidates);
  if (t->algorithms.set[collective] && !fell_back && !is_point_to_point(collective))
    at += (size_t)snprintf(text + at, size - at, ", NCCL_ALGO=%.24s", t->algorithms.value);
  if (t->protocols.set[collective])
    at += (size_t)snprintf(text + at, size - at, ", NCCL_PROTO=%.24s", t->protocols.value);
  if (choice->algorithm == TT_ALGO_TREE && choice->nchannels == 1)
    snprintf(text + at, size - at, "; one channel, so one tree");
}

static uint64_t cost_of(const struct tt_tuning *t, int collective, int algorithm, int protocol, size_t bytes,
                        int nchannels)
{
  return t->input.kind == TT_TUNING_GPU ? tt_cost_gpu_ns(&t->input, collective, algorithm, protocol, bytes, nchannels)
                                        : tt_cost_ns(&t->input, collective, algorithm, protocol, bytes);
}

static bool is_without(int algorithm, uint32_t without)
{
  if (algorithm == TT_ALGO_MAPPED) return !(without & TT_WITH_MAPPED);
  return (without & TT_WITHOUT_COLLNET && is_collnet(algorithm)) || (without & TT_WITHOUT_NVLS && is_nvls(algorithm));
}

/* Which algorithms are left, as bits. */
static uint32_t left(const struct tt_tuning *t, int collective, uint32_t without, bool *fell_back)
{
  uint32_t possible = UINT32_MAX;
  for (int a = 0; a < TT_NUM_ALGORITHMS; a++)
    if (is_without(a, without)) possible &= ~(1u << a);
  *fell_back = !is_point_to_point(collective) && !has_algorithm(t, collective, possible);
  bool all = is_point_to_point(collective) || *fell_back;
  return possible & (all ? UINT32_MAX : t->algorithms.allowed[collective]);
}

static void finish(const struct tt_tuning *t, uint64_t ns, struct tt_choice *choice)
{
  bool gpu = t->input.kind == TT_TUNING_GPU;
  choice->microseconds = (float)ns / 1000;
  choice->smallest_chunk = gpu ? tt_cost_gpu_smallest_chunk(choice->protocol) : SMALLEST_CHUNK;
  choice->chunks = gpu ? tt_cost_gpu_chunks(&t->input, choice->algorithm) : TT_SLOTS;
}

static ncclResult_t choose(const struct tt_tuning *t, int collective, size_t bytes, uint32_t without,
                           struct tt_choice *choice)
{
  memset(choice, 0, sizeof(*choice));
  if (collective < 0 || collective >= TT_NUM_FUNCS)
    return TT_FAIL(ncclInternalError, "collective number %d does not exist", collective);
  int program = as_program(collective), candidates = 0;
  bool fell_back;
  uint32_t algorithms = left(t, collective, without, &fell_back);
  uint64_t best = UINT64_MAX;
  for (int a = 0; a < TT_NUM_ALGORITHMS; a++)
    for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
      if (!candidate(t, program, a, p, algorithms, t->protocols.allowed[collective])) continue;
      int nchannels = channels(t, collective, a, p, bytes);
      uint64_t cost = cost_of(t, collective, a, p, bytes, nchannels);
      if (cost == UINT64_MAX) continue;
      candidates++;
      if (cost >= best) continue;
      best = cost;
      choice->algorithm = a;
      choice->protocol = p;
      choice->nchannels = nchannels;
    }
  if (candidates == 0) return nothing_left(t, collective);
  finish(t, best, choice);
  explain(t, collective, candidates, fell_back, choice);
  return ncclSuccess;
}

ncclResult_t tt_tuning_choose(const struct tt_tuning *t, int collective, size_t bytes, struct tt_choice *choice)
{
  return choose(t, collective, bytes, 0, choice);
}

ncclResult_t tt_tuning_choose_without(const struct tt_tuning *t, int collective, size_t bytes, uint32_t without,
                                      struct tt_choice *choice)
{
  return choose(t, collective, bytes, without, choice);
}

void tt_tuning_table(const struct tt_tuning *t, int collective, size_t bytes, uint32_t without,
                     float table[TT_NUM_ALGORITHMS][TT_NUM_PROTOCOLS])
{
  bool fell_back;
  uint32_t algorithms = left(t, collective, without, &fell_back);
  for (int a = 0; a < TT_NUM_ALGORITHMS; a++)
    for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
      table[a][p] = -1;
      if (!candidate(t, collective, a, p, algorithms, t->protocols.allowed[collective])) continue;
      int nchannels = channels(t, collective, a, p, bytes);
      table[a][p] = (float)cost_of(t, collective, a, p, bytes, nchannels) / 1000;
    }
}

const char *tt_tuning_excludes(const struct tt_tuning *t, int collective, int algorithm, int protocol, uint32_t without)
{
  bool fell_back;
  const char *why = missing(t, collective, algorithm, protocol);
  if (why) return why;
  if (is_without(algorithm, without))
    return is_collnet(algorithm) ? "the network does not reduce the type by the operation"
                                 : "multicast memory does not reduce the type by the operation";
  if (!(left(t, collective, without, &fell_back) & 1u << algorithm)) return "NCCL_ALGO excludes it";
  return t->protocols.allowed[collective] & 1u << protocol ? NULL : "NCCL_PROTO excludes it";
}

void tt_tuning_pair(const struct tt_tuning *t, int collective, size_t bytes, int algorithm, int protocol,
                    struct tt_choice *choice)
{
  *choice = (struct tt_choice){.algorithm = algorithm, .protocol = protocol};
  tt_tuning_set_channels(t, collective, bytes, 0, choice);
}

void tt_tuning_set_channels(const struct tt_tuning *t, int collective, size_t bytes, int wanted,
                            struct tt_choice *choice)
{
  int a = choice->algorithm, p = choice->protocol;
  choice->nchannels = wanted > 0
                          ? limit_channels(t, a, TT_MAX(TT_MIN(wanted, t->input.max_channels), t->input.min_channels))
                          : channels(t, collective, a, p, bytes);
  finish(t, cost_of(t, collective, a, p, bytes, choice->nchannels), choice);
}

enum tt_tuning_engines tt_tuning_engines_asked(int cta_policy)
{
  int64_t setting = tt_param_int(TT_PARAM_TUTTI_COPY_ENGINES);
  if (setting >= 0) return setting == 1 ? TT_ENGINES_ALWAYS : TT_ENGINES_NEVER;
  return cta_policy & NCCL_CTA_POLICY_ZERO ? TT_ENGINES_ALWAYS : TT_ENGINES_IF_FASTER;
}

void tt_tuning_use_engines(const struct tt_tuning *t, int collective, size_t bytes, struct tt_choice *choice)
{
  if (t->input.kind != TT_TUNING_GPU || choice->algorithm != TT_ALGO_MAPPED) return;
  if (!tt_cost_gpu_by_engines(&t->input, collective, bytes)) return;
  size_t used = strlen(choice->reason);
  choice->engines = true;
  choice->nchannels = 1;
  snprintf(choice->reason + used, sizeof(choice->reason) - used, ", by copy engines");
}

bool tt_tuning_as_messages(const struct tt_tuning *t, int collective)
{
  bool only = collective == TT_FUNC_ALL_TO_ALL || collective == TT_FUNC_GATHER || collective == TT_FUNC_SCATTER;
  return only && has_too_many_peers(&t->input, collective, TT_ALGO_DIRECT);
}

size_t tt_tuning_chunk(const struct tt_tuning *t, int protocol)
{
  return tt_conn_capacity(t->input.buffer_bytes[protocol] / TT_SLOTS, protocol);
}
