/* See options.h. The flags are nccl-tests'; what cannot be done is refused with a sentence, since a flag that is
 * silently ignored makes measurements that are not what their command line says. */
#include "options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "join.h"
#include "options_values.h"
#include "pairs.h"

enum {
  OPT_NP = 256,
  OPT_ITERS,
  OPT_RANK,
  OPT_NRANKS,
  OPT_ROOT_ADDR,
  OPT_JOIN_TIMEOUT,
  OPT_DEVICE,
  OPT_SIZES,
  OPT_FORM,
  OPT_ALLOC,
  OPT_REPEATS,
  OPT_ROTATE,
  OPT_DEPENDENT,
  OPT_LOAD,
  OPT_STATS,
  OPT_SETTINGS,
  OPT_END
};

static const struct option long_options[] = {
    {"nthreads", 1, NULL, 't'},
    {"ngpus", 1, NULL, 'g'},
    {"minbytes", 1, NULL, 'b'},
    {"maxbytes", 1, NULL, 'e'},
    {"stepbytes", 1, NULL, 'i'},
    {"stepfactor", 1, NULL, 'f'},
    {"iters", 1, NULL, OPT_ITERS},
    {"np", 1, NULL, OPT_NP},
    {"agg_iters", 1, NULL, 'm'},
    {"warmup_iters", 1, NULL, 'w'},
    {"run_cycles", 1, NULL, 'N'},
    {"parallel_init", 1, NULL, 'p'},
    {"check", 1, NULL, 'c'},
    {"op", 1, NULL, 'o'},
    {"datatype", 1, NULL, 'd'},
    {"root", 1, NULL, 'r'},
    {"blocking", 1, NULL, 'z'},
    {"stream_null", 1, NULL, 'y'},
    {"timeout", 1, NULL, 'T'},
    {"cudagraph", 1, NULL, 'G'},
    {"graph", 1, NULL, 'G'},
    {"report_cputime", 1, NULL, 'C'},
    {"report_timestamps", 1, NULL, 'S'},
    {"output_file", 1, NULL, 'J'},
    {"json", 1, NULL, 'J'},
    {"average", 1, NULL, 'a'},
    {"local_register", 1, NULL, 'R'},
    {"cta_policy", 1, NULL, 'x'},
    {"device_implementation", 1, NULL, 'D'},
    {"device_cta_count", 1, NULL, 'V'},
    {"memory", 1, NULL, 'M'},
    {"unalign", 1, NULL, 'u'},
    {"per_iter_timing", 1, NULL, 'I'},
    {"per_iter_skip", 1, NULL, 'K'},
    {"rank", 1, NULL, OPT_RANK},
    {"nranks", 1, NULL, OPT_NRANKS},
    {"root-addr", 1, NULL, OPT_ROOT_ADDR},
    {"join-timeout", 1, NULL, OPT_JOIN_TIMEOUT},
    {"device", 1, NULL, OPT_DEVICE},
    {"sizes", 1, NULL, OPT_SIZES},
    {"form", 1, NULL, OPT_FORM},
    {"alloc", 1, NULL, OPT_ALLOC},
    {"repeats", 1, NULL, OPT_REPEATS},
    {"rotate", 1, NULL, OPT_ROTATE},
    {"dependent", 1, NULL, OPT_DEPENDENT},
    {"load", 1, NULL, OPT_LOAD},
    {"stats", 0, NULL, OPT_STATS},
    {"settings", 1, NULL, OPT_SETTINGS},
    {"help", 0, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Flags of nccl-tests whose value 0 (the default there) is accepted and whose other values need what is not here. */
static const struct {
  int flag;
  const char *name, *why;
} refused[] = {
    {'D', "-D (--device_implementation)", "the library has no calls for kernels of its users"},
    {'V', "-V (--device_cta_count)", "it belongs to -D"},
    {'M', "-M (--memory)", "memory is not reported"},
    {'I', "-I (--per_iter_timing)", "iterations are timed together; use --iters 1 with -N for a row an iteration"},
    {'K', "-K (--per_iter_skip)", "it belongs to -I"},
};

static bool refused_value(struct perf_parser *parser, int flag, const char *text)
{
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
    if (refused[i].flag == flag && strcmp(text, "0"))
      return perf_parser_wrong(parser, "%s %s: not supported: %s", refused[i].name, text, refused[i].why);
  return true;
}

/* Flags that `pairs` has; others would be ignored, so they are refused. */
static bool pairs_flags(struct perf_parser *parser, const bool *given)
{
  static const int allowed[] = {'t', 'e', 'w',    'G',       'J',        'T',       'c',
                                'R', 'p', OPT_NP, OPT_ITERS, OPT_DEVICE, OPT_ALLOC, OPT_SETTINGS};
  bool fits[OPT_END] = {false};
  for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++) fits[allowed[i]] = true;
  for (const struct option *flag = long_options; flag->name; flag++)
    if (flag->val < OPT_END && given[flag->val] && !fits[flag->val])
      return perf_parser_wrong(parser, "--%s: pairs has no such flag; see --help", flag->name);
  struct perf_options *o = parser->options;
  int ranks = (o->processes ? o->processes : 1) * o->threads;
  if (ranks < 2) return perf_parser_wrong(parser, "pairs: there is one rank; start more, with -n or -t");
  if (o->max_bytes < PERF_PAIR_LATENCY_BYTES)
    return perf_parser_wrong(parser, "-e: pairs needs at least %d", PERF_PAIR_LATENCY_BYTES);
  return true;
}

/* How iterations follow each other, and beside what. */
static bool iteration_flag(struct perf_parser *parser, int c, const char *arg)
{
  struct perf_options *o = parser->options;
  if (c == OPT_ROTATE) return perf_value_integer(parser, "--rotate", arg, 1, 4096, &o->rotate);
  if (c == OPT_DEPENDENT) return perf_value_flag(parser, "--dependent", arg, &o->dependent);
  return perf_value_flag(parser, "--load", arg, &o->load);
}

/* Flags of the sweep and of what is run. */
static bool sweep_flag(struct perf_parser *parser, int c, const char *arg)
{
  struct perf_options *o = parser->options;
  switch (c) {
  case 'b':
    return perf_value_size(parser, "-b", arg, &o->min_bytes);
  case 'e':
    return perf_value_size(parser, "-e", arg, &o->max_bytes);
  case 'i':
    return perf_value_size(parser, "-i", arg, &o->step_bytes);
  case 'f':
    return perf_value_step_factor(parser, arg);
  case OPT_ITERS:
    return perf_value_integer(parser, o->nccl_tests_name ? "-n" : "--iters", arg, 1, 1 << 30, &o->iterations);
  case 'w':
    return perf_value_integer(parser, "-w", arg, 0, 1 << 30, &o->warmup);
  case 'm':
    return perf_value_integer(parser, "-m", arg, 1, 1 << 20, &o->aggregated);
  case 'N':
    return perf_value_integer(parser, "-N", arg, 0, 1 << 30, &o->cycles);
  case OPT_REPEATS:
    return perf_value_integer(parser, "--repeats", arg, 1, 1000, &o->repeats);
  case 'G':
    return perf_value_integer(parser, "-G", arg, 0, 1 << 20, &o->graph);
  case OPT_SIZES:
    return perf_value_sizes(parser, arg);
  case OPT_FORM:
    return perf_value_form(parser, arg);
  case 'c':
    return perf_value_integer(parser, "-c", arg, 0, 1 << 20, &o->check);
  case 'd':
    return perf_value_type(parser, arg);
  case 'o':
    return perf_value_op(parser, arg);
  case 'r':
    return perf_value_root(parser, arg);
  case OPT_ROTATE:
  case OPT_DEPENDENT:
  case OPT_LOAD:
    return iteration_flag(parser, c, arg);
  case 'u': {
    int elements = 0;
    if (!perf_value_integer(parser, "-u", arg, 0, 1 << 20, &elements)) return false;
    o->unalign = (size_t)elements;
    return true;
  }
  default:
    return refused_value(parser, c, arg);
  }
}

static bool root_address_flag(struct perf_parser *parser, const char *arg)
{
  char host[PERF_JOIN_HOST];
  const char *port;
  if (!perf_join_split(arg, host, sizeof(host), &port))
    return perf_parser_wrong(parser, "--root-addr %s: " PERF_JOIN_NO_ADDRESS, arg);
  parser->options->root_address = arg;
  return true;
}

static bool run_flag(struct perf_parser *parser, int c, const char *arg)
{
  struct perf_options *o = parser->options;
  int average = 0;
  switch (c) {
  case OPT_NP:
    return perf_value_integer(parser, o->nccl_tests_name ? "--np" : "-n", arg, 1, 4096, &o->processes);
  case 't':
    return perf_value_integer(parser, "-t", arg, 1, 4096, &o->threads);
  case 'g':
    return perf_value_integer(parser, "-g", arg, 1, 4096, &o->comms);
  case 'p':
    return perf_value_flag(parser, "-p", arg, &o->parallel_init);
  case 'C':
    return perf_value_flag(parser, "-C", arg, &o->cpu_time);
  case 'S':
    return perf_value_flag(parser, "-S", arg, &o->timestamps);
  case 'y':
    return perf_value_integer(parser, "-y", arg, 0, 1, &o->stream_null);
  case OPT_DEVICE:
    return perf_value_device(parser, "--device", arg);
  case OPT_ALLOC:
    return perf_value_device(parser, "--alloc", arg);
  case 'R':
    return perf_value_register(parser, arg);
  case 'z':
    return perf_value_integer(parser, "-z", arg, 0, 3, &o->blocking);
  case 'x':
    return perf_value_integer(parser, "-x", arg, NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_ZERO, &o->cta_policy);
  case 'T':
    return perf_value_integer(parser, "-T", arg, 0, 1 << 24, &o->timeout);
  case OPT_STATS:
    o->stats = true;
    return true;
  case OPT_SETTINGS:
    return perf_value_settings(parser, arg);
  case 'J':
    o->json = arg;
    return true;
  case 'a':
    if (!perf_value_integer(parser, "-a", arg, 0, 3, &average)) return false;
    o->average = (enum perf_average)average;
    return true;
  case OPT_RANK:
    return perf_value_integer(parser, "--rank", arg, 0, 1 << 24, &o->rank);
  case OPT_NRANKS:
    return perf_value_integer(parser, "--nranks", arg, 1, 1 << 24, &o->ranks_started);
  case OPT_ROOT_ADDR:
    return root_address_flag(parser, arg);
  case OPT_JOIN_TIMEOUT:
    return perf_value_integer(parser, "--join-timeout", arg, 1, 86400, &o->join_timeout);
  default:
    return sweep_flag(parser, c, arg);
  }
}

/* What each device cannot do; the same is asked again when AUTO has become one of them. */
bool perf_options_fit(const struct perf_options *o, bool streams, char *error, size_t size)
{
  const char *said = NULL;
  if (!streams && o->graph)
    said = "-G: not supported: CUDA graphs need a GPU, and the ranks here run on the host device";
  else if (!streams && o->memory != PERF_MEMORY_PLAIN)
    said = "--alloc nccl, registered or window (-R): not supported: the ranks here run on the host device, "
           "for which all memory is alike; it is for GPUs";
  if (said) snprintf(error, size, "%s", said);
  return !said;
}

uint64_t perf_options_stride(uint64_t bytes)
{
  return (bytes + 511) / 512 * 512;
}

uint64_t perf_options_room(const struct perf_options *o)
{
  return o->rotate ? (uint64_t)o->rotate * perf_options_stride(o->max_bytes) : o->max_bytes;
}

/* What belongs to graphs and lists of sizes. */
static bool consistent_more(struct perf_parser *parser, bool sweep_given)
{
  struct perf_options *o = parser->options;
  if (o->graph && (o->blocking == 1 || o->blocking == 3))
    return perf_parser_wrong(parser, "-G with -z %d: the iterations of a graph run without the host", o->blocking);
  if (o->graph && o->stream_null == 1)
    return perf_parser_wrong(parser, "-G with -y 1: the NULL stream cannot be captured");
  if (o->dependent && o->rotate)
    return perf_parser_wrong(
        parser, "--dependent with --rotate: an iteration sends what the one before received, in one place");
  if (o->device == PERF_DEVICE_HOST && !perf_options_fit(o, false, parser->error, parser->size)) return false;
  if (!o->out_of_place && !o->collective->in_place)
    return perf_parser_wrong(parser, "--form in: %s has no in-place form", o->collective->name);
  if (!o->size_count) return true;
  if (sweep_given) return perf_parser_wrong(parser, "--sizes with -b, -e, -i or -f: give a list or a sweep");
  o->min_bytes = o->max_bytes = o->sizes[0];
  for (int i = 1; i < o->size_count; i++)
    if (o->sizes[i] > o->max_bytes) o->max_bytes = o->sizes[i];
  return true;
}

/* What no single flag shows to be wrong. */
static bool consistent(struct perf_parser *parser, bool op_given, bool root_given, bool sweep_given)
{
  struct perf_options *o = parser->options;
  if (!o->collective) return perf_parser_wrong(parser, "no collective named; see --help");
  if (!consistent_more(parser, sweep_given)) return false;
  if (o->size_count == 0 && o->min_bytes > o->max_bytes)
    return perf_parser_wrong(parser, "the smallest size (-b %llu) is larger than the largest (-e %llu)",
                             (unsigned long long)o->min_bytes, (unsigned long long)o->max_bytes);
  if (o->size_count == 0 && o->min_bytes < o->max_bytes && !o->step_factor && !o->step_bytes)
    return perf_parser_wrong(parser, "-i 0: a sweep needs a step (-i) or a factor (-f)");
  if (o->step_factor && o->min_bytes == 0 && o->max_bytes > 0)
    return perf_parser_wrong(parser, "-b 0 with -f: a factor leads nowhere from 0; use -i, or start with -b 1");
  /* nccl-tests takes these for every collective, and scripts pass them. */
  if (op_given && !o->collective->reduces && !o->nccl_tests_name)
    return perf_parser_wrong(parser, "-o: %s has no reduction operation", o->collective->name);
  if (root_given && !o->collective->rooted && !o->nccl_tests_name)
    return perf_parser_wrong(parser, "-r: %s has no root", o->collective->name);
  if ((o->rank >= 0) != (o->ranks_started > 0))
    return perf_parser_wrong(parser, "--rank and --nranks belong together: %s is missing",
                             o->rank >= 0 ? "--nranks" : "--rank");
  if (o->rank >= 0 && o->rank >= o->ranks_started)
    return perf_parser_wrong(parser, "--rank %d: must be below --nranks %d", o->rank, o->ranks_started);
  if (o->rank >= 0 && o->processes)
    return perf_parser_wrong(parser, "%s starts local processes and --rank joins others: give one of them",
                             o->nccl_tests_name ? "--np" : "-n");
  return true;
}

static void defaults(struct perf_options *o, const char *argv0)
{
  const char *slash = strrchr(argv0, '/');
  *o = (struct perf_options){.program = slash ? slash + 1 : argv0,
                             .min_bytes = 32 << 20,
                             .max_bytes = 32 << 20,
                             .step_bytes = 1 << 20,
                             .threads = 1,
                             .comms = 1,
                             .iterations = 20,
                             .warmup = 1,
                             .aggregated = 1,
                             .cycles = 1,
                             .repeats = 1,
                             .settings = (1u << PERF_SETTINGS) - 1,
                             .out_of_place = true,
                             .in_place = true,
                             .stream_null = -1,
                             .cta_policy = -1,
                             .check = 1,
                             .average = PERF_MAX,
                             .rank = -1,
                             .join_timeout = 60};
  o->type = perf_type_find("float");
  o->op = perf_op_find("sum");
  o->collective = strstr(o->program, "_perf") ? perf_collective_find(o->program) : NULL;
  o->nccl_tests_name = o->collective != NULL;
}

/* `-e` without `-b`, or the reverse, leaves the other at its default, as in nccl-tests. */
enum perf_parse perf_options_parse(struct perf_options *o, int argc, char **argv, char *error, size_t size)
{
  struct perf_parser parser = {o, error, size};
  bool given[OPT_END] = {false};
  defaults(o, argv[0]);
  optind = 0; /* glibc: start anew, also where a test parses many lines */
  opterr = 0;
  int c;
  while ((c = getopt_long(argc, argv, ":t:g:b:e:i:f:n:m:w:N:p:I:K:c:o:d:r:z:y:T:hG:C:a:R:x:D:V:J:S:M:u:", long_options,
                          NULL)) != -1) {
    const char *last = argv[optind - 1];
    if (c == 'h') return PERF_PARSE_HELP;
    if (c == '?') return perf_parser_wrong(&parser, "%s: unknown flag; see --help", last), PERF_PARSE_WRONG;
    if (c == ':') return perf_parser_wrong(&parser, "%s: needs a value; see --help", last), PERF_PARSE_WRONG;
    if (c == 'n') c = o->nccl_tests_name ? OPT_ITERS : OPT_NP;
    given[c] = true;
    if (!run_flag(&parser, c, optarg)) return PERF_PARSE_WRONG;
  }
  for (; optind < argc; optind++) {
    const char *name = argv[optind];
    if (o->collective)
      return perf_parser_wrong(&parser, "%s: one collective a run, and it is %s", name,
                               o->of_pairs ? "pairs" : o->collective->name),
             PERF_PARSE_WRONG;
    if (!strcmp(name, "pairs")) {
      o->of_pairs = true;
      o->collective = perf_collective_find("sendrecv");
      continue;
    }
    if (!(o->collective = perf_collective_find(name)))
      return perf_parser_wrong(
                 &parser,
                 "%s: no such collective; there are all_reduce all_gather reduce_scatter broadcast reduce "
                 "gather scatter alltoall sendrecv, and pairs",
                 name),
             PERF_PARSE_WRONG;
  }
  if (given[OPT_SETTINGS] && !o->of_pairs)
    return perf_parser_wrong(&parser, "--settings: belongs to pairs"), PERF_PARSE_WRONG;
  if (o->of_pairs && !pairs_flags(&parser, given)) return PERF_PARSE_WRONG;
  if (o->of_pairs) o->min_bytes = o->max_bytes;
  bool sweep_given = given['b'] || given['e'] || given['i'] || given['f'];
  return consistent(&parser, given['o'], given['r'], sweep_given) ? PERF_PARSE_RUN : PERF_PARSE_WRONG;
}
