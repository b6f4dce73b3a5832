/* See options.h. The flags are nccl-tests'; what cannot be done is refused with a sentence, since a flag that is
 * silently ignored makes measurements that are not what their command line says. */
#include "options.h"

#include <ctype.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
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
    {'x', "-x (--cta_policy)", "communicators are made with the default policy"},
    {'M', "-M (--memory)", "memory is not reported"},
    {'I', "-I (--per_iter_timing)", "iterations are timed together; use --iters 1 with -N for a row an iteration"},
    {'K', "-K (--per_iter_skip)", "it belongs to -I"},
};

struct parser {
  struct perf_options *options;
  char *error;
  size_t size;
};

static bool wrong(struct parser *parser, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(struct parser *parser, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(parser->error, parser->size, format, args);
  va_end(args);
  return false;
}

bool perf_size_parse(const char *text, uint64_t *bytes)
{
  static const char units[] = "KMGT";
  char *end;
  if (!((*text >= '0' && *text <= '9') || *text == '.')) return false;
  double value = strtod(text, &end);
  if (end == text || (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))) return false;
  const char *unit = isalpha((unsigned char)*end) ? strchr(units, toupper((unsigned char)*end)) : NULL;
  if (unit) {
    value = ldexp(value, 10 * (int)(unit - units + 1));
    end++;
    if (*end == 'i' && toupper((unsigned char)end[1]) == 'B') end++;
  }
  if (toupper((unsigned char)*end) == 'B') end++;
  if (*end || !isfinite(value) || value < 0 || value >= 0x1p62 || value != floor(value)) return false;
  *bytes = (uint64_t)value;
  return true;
}

static bool integer(struct parser *parser, const char *flag, const char *text, int min, int max, int *out)
{
  char *end;
  long value = strtol(text, &end, 10);
  if (end == text || *end || value < min || value > max)
    return wrong(parser, "%s %s: must be a whole number from %d to %d", flag, text, min, max);
  *out = (int)value;
  return true;
}

static bool flag_value(struct parser *parser, const char *flag, const char *text, bool *out)
{
  int value = 0;
  if (!integer(parser, flag, text, 0, 1, &value)) return false;
  *out = value;
  return true;
}

static bool size_value(struct parser *parser, const char *flag, const char *text, uint64_t *out)
{
  if (perf_size_parse(text, out)) return true;
  return wrong(parser, "%s %s: is not a size in whole bytes, such as 8, 64K, 1.5M or 1G", flag, text);
}

static bool type_value(struct parser *parser, const char *text)
{
  struct perf_options *o = parser->options;
  o->all_types = !strcasecmp(text, "all");
  if (o->all_types || (o->type = perf_type_find(text))) return true;
  return wrong(parser,
               "-d %s: no such type; there are int8 uint8 int32 uint32 int64 uint64 half float double "
               "bfloat16 f8e4m3 f8e5m2 and all (--device chooses between host and cuda)",
               text);
}

static bool op_value(struct parser *parser, const char *text)
{
  struct perf_options *o = parser->options;
  o->all_ops = !strcasecmp(text, "all");
  if (o->all_ops || (o->op = perf_op_find(text))) return true;
  return wrong(parser, "-o %s: no such operation; there are sum prod min max avg and all", text);
}

static bool refused_value(struct parser *parser, int flag, const char *text)
{
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
    if (refused[i].flag == flag && strcmp(text, "0"))
      return wrong(parser, "%s %s: not supported: %s", refused[i].name, text, refused[i].why);
  return true;
}

static bool step_factor_value(struct parser *parser, const char *text)
{
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !(value > 1) || value > 1e9)
    return wrong(parser, "-f %s: the factor between sizes must be greater than 1", text);
  parser->options->step_factor = value;
  return true;
}

static bool root_value(struct parser *parser, const char *text)
{
  parser->options->all_roots = !strcasecmp(text, "all");
  return parser->options->all_roots || integer(parser, "-r", text, 0, 1 << 24, &parser->options->root);
}

/* "32,64K,2M". */
static bool sizes_value(struct parser *parser, const char *text)
{
  struct perf_options *o = parser->options;
  char piece[32];
  o->size_count = 0;
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    if (o->size_count == PERF_MOST_SIZES) return wrong(parser, "--sizes: at most %d", PERF_MOST_SIZES);
    snprintf(piece, sizeof(piece), "%.*s", (int)length, at);
    if (length >= sizeof(piece) || !perf_size_parse(piece, &o->sizes[o->size_count++]))
      return wrong(parser, "--sizes %s: must be sizes with commas between them, such as 32,64K,2M", text);
    at += length;
    if (!*at) return true;
  }
}

/* Which of a few words `text` is. */
static bool word_value(struct parser *parser, const char *flag, const char *text, const char *const *words, int *out)
{
  char allowed[96] = "";
  for (*out = 0; words[*out]; ++*out) {
    if (!strcasecmp(text, words[*out])) return true;
    size_t used = strlen(allowed);
    snprintf(allowed + used, sizeof(allowed) - used, " %s", words[*out]);
  }
  return wrong(parser, "%s %s: must be one of%s", flag, text, allowed);
}

static bool form_value(struct parser *parser, const char *text)
{
  static const char *const words[] = {"out", "in", "both", NULL};
  int form = 0;
  if (!word_value(parser, "--form", text, words, &form)) return false;
  parser->options->out_of_place = form != 1;
  parser->options->in_place = form != 0;
  return true;
}

static bool device_value(struct parser *parser, const char *flag, const char *text)
{
  static const char *const devices[] = {"auto", "host", "cuda", NULL};
  static const char *const memories[] = {"plain", "nccl", "registered", "window", NULL};
  bool memory = !strcmp(flag, "--alloc");
  int which = 0;
  if (!word_value(parser, flag, text, memory ? memories : devices, &which)) return false;
  if (memory)
    parser->options->memory = (enum perf_memory)which;
  else
    parser->options->device = (enum perf_device_choice)which;
  return true;
}

/* "p2p,ll". */
static bool settings_value(struct parser *parser, const char *text)
{
  char piece[16], known[64] = "";
  parser->options->settings = 0;
  parser->options->settings_given = true;
  for (int s = 0; perf_setting_at(s); s++) {
    size_t used = strlen(known);
    snprintf(known + used, sizeof(known) - used, " %s", perf_setting_at(s)->name);
  }
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    int s = 0;
    snprintf(piece, sizeof(piece), "%.*s", (int)length, at);
    while (perf_setting_at(s) && strcasecmp(piece, perf_setting_at(s)->name)) s++;
    if (!perf_setting_at(s)) return wrong(parser, "--settings %s: must be some of%s, with commas", text, known);
    parser->options->settings |= 1u << s;
    at += length;
    if (!*at) return true;
  }
}

/* Flags that `pairs` has; others would be ignored, so they are refused. */
static bool pairs_flags(struct parser *parser, const bool *given)
{
  static const int allowed[] = {'t', 'e', 'w',    'G',       'J',        'T',       'c',
                                'R', 'p', OPT_NP, OPT_ITERS, OPT_DEVICE, OPT_ALLOC, OPT_SETTINGS};
  bool fits[OPT_END] = {false};
  for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++) fits[allowed[i]] = true;
  for (const struct option *flag = long_options; flag->name; flag++)
    if (flag->val < OPT_END && given[flag->val] && !fits[flag->val])
      return wrong(parser, "--%s: pairs has no such flag; see --help", flag->name);
  struct perf_options *o = parser->options;
  int ranks = (o->processes ? o->processes : 1) * o->threads;
  if (ranks < 2) return wrong(parser, "pairs: there is one rank; start more, with -n or -t");
  if (o->max_bytes < PERF_PAIR_LATENCY_BYTES)
    return wrong(parser, "-e: pairs needs at least %d", PERF_PAIR_LATENCY_BYTES);
  return true;
}

/* nccl-tests' -R: 1 registers buffers of ncclMemAlloc, 2 makes windows of them. */
static bool register_value(struct parser *parser, const char *text)
{
  static const enum perf_memory memories[] = {PERF_MEMORY_PLAIN, PERF_MEMORY_REGISTERED, PERF_MEMORY_WINDOW};
  int which = 0;
  if (!integer(parser, "-R", text, 0, 2, &which)) return false;
  parser->options->memory = memories[which];
  return true;
}

/* How iterations follow each other, and beside what. */
static bool iteration_flag(struct parser *parser, int c, const char *arg)
{
  struct perf_options *o = parser->options;
  if (c == OPT_ROTATE) return integer(parser, "--rotate", arg, 1, 4096, &o->rotate);
  if (c == OPT_DEPENDENT) return flag_value(parser, "--dependent", arg, &o->dependent);
  return flag_value(parser, "--load", arg, &o->load);
}

/* Flags of the sweep and of what is run. */
static bool sweep_flag(struct parser *parser, int c, const char *arg)
{
  struct perf_options *o = parser->options;
  switch (c) {
  case 'b':
    return size_value(parser, "-b", arg, &o->min_bytes);
  case 'e':
    return size_value(parser, "-e", arg, &o->max_bytes);
  case 'i':
    return size_value(parser, "-i", arg, &o->step_bytes);
  case 'f':
    return step_factor_value(parser, arg);
  case OPT_ITERS:
    return integer(parser, o->nccl_tests_name ? "-n" : "--iters", arg, 1, 1 << 30, &o->iterations);
  case 'w':
    return integer(parser, "-w", arg, 0, 1 << 30, &o->warmup);
  case 'm':
    return integer(parser, "-m", arg, 1, 1 << 20, &o->aggregated);
  case 'N':
    return integer(parser, "-N", arg, 0, 1 << 30, &o->cycles);
  case OPT_REPEATS:
    return integer(parser, "--repeats", arg, 1, 1000, &o->repeats);
  case 'G':
    return integer(parser, "-G", arg, 0, 1 << 20, &o->graph);
  case OPT_SIZES:
    return sizes_value(parser, arg);
  case OPT_FORM:
    return form_value(parser, arg);
  case 'c':
    return integer(parser, "-c", arg, 0, 1 << 20, &o->check);
  case 'd':
    return type_value(parser, arg);
  case 'o':
    return op_value(parser, arg);
  case 'r':
    return root_value(parser, arg);
  case OPT_ROTATE:
  case OPT_DEPENDENT:
  case OPT_LOAD:
    return iteration_flag(parser, c, arg);
  case 'u': {
    int elements = 0;
    if (!integer(parser, "-u", arg, 0, 1 << 20, &elements)) return false;
    o->unalign = (size_t)elements;
    return true;
  }
  default:
    return refused_value(parser, c, arg);
  }
}

static bool run_flag(struct parser *parser, int c, const char *arg)
{
  struct perf_options *o = parser->options;
  int average = 0;
  switch (c) {
  case OPT_NP:
    return integer(parser, o->nccl_tests_name ? "--np" : "-n", arg, 1, 4096, &o->processes);
  case 't':
    return integer(parser, "-t", arg, 1, 4096, &o->threads);
  case 'g':
    return integer(parser, "-g", arg, 1, 4096, &o->comms);
  case 'p':
    return flag_value(parser, "-p", arg, &o->parallel_init);
  case 'C':
    return flag_value(parser, "-C", arg, &o->cpu_time);
  case 'S':
    return flag_value(parser, "-S", arg, &o->timestamps);
  case 'y':
    return integer(parser, "-y", arg, 0, 1, &o->stream_null);
  case OPT_DEVICE:
    return device_value(parser, "--device", arg);
  case OPT_ALLOC:
    return device_value(parser, "--alloc", arg);
  case 'R':
    return register_value(parser, arg);
  case 'z':
    return integer(parser, "-z", arg, 0, 3, &o->blocking);
  case 'T':
    return integer(parser, "-T", arg, 0, 1 << 24, &o->timeout);
  case OPT_SETTINGS:
    return settings_value(parser, arg);
  case 'J':
    o->json = arg;
    return true;
  case 'a':
    if (!integer(parser, "-a", arg, 0, 3, &average)) return false;
    o->average = (enum perf_average)average;
    return true;
  case OPT_RANK:
    return integer(parser, "--rank", arg, 0, 1 << 24, &o->rank);
  case OPT_NRANKS:
    return integer(parser, "--nranks", arg, 1, 1 << 24, &o->ranks_started);
  case OPT_ROOT_ADDR:
    o->root_address = arg;
    return true;
  case OPT_JOIN_TIMEOUT:
    return integer(parser, "--join-timeout", arg, 1, 86400, &o->join_timeout);
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
    said = "--alloc nccl, registered or window (-R): not supported: ncclMemAlloc gives a GPU's memory, and the ranks "
           "here run on the host device";
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
static bool consistent_more(struct parser *parser, bool sweep_given)
{
  struct perf_options *o = parser->options;
  if (o->graph && (o->blocking == 1 || o->blocking == 3))
    return wrong(parser, "-G with -z %d: the iterations of a graph run without the host", o->blocking);
  if (o->graph && o->stream_null == 1) return wrong(parser, "-G with -y 1: the NULL stream cannot be captured");
  if (o->dependent && o->rotate)
    return wrong(parser, "--dependent with --rotate: an iteration sends what the one before received, in one place");
  if (o->device == PERF_DEVICE_HOST && !perf_options_fit(o, false, parser->error, parser->size)) return false;
  if (!o->out_of_place && !o->collective->in_place)
    return wrong(parser, "--form in: %s has no in-place form", o->collective->name);
  if (!o->size_count) return true;
  if (sweep_given) return wrong(parser, "--sizes with -b, -e, -i or -f: give a list or a sweep");
  o->min_bytes = o->max_bytes = o->sizes[0];
  for (int i = 1; i < o->size_count; i++)
    if (o->sizes[i] > o->max_bytes) o->max_bytes = o->sizes[i];
  return true;
}

/* What no single flag shows to be wrong. */
static bool consistent(struct parser *parser, bool op_given, bool root_given, bool sweep_given)
{
  struct perf_options *o = parser->options;
  if (!o->collective) return wrong(parser, "no collective named; see --help");
  if (!consistent_more(parser, sweep_given)) return false;
  if (o->size_count == 0 && o->min_bytes > o->max_bytes)
    return wrong(parser, "the smallest size (-b %llu) is larger than the largest (-e %llu)",
                 (unsigned long long)o->min_bytes, (unsigned long long)o->max_bytes);
  if (o->size_count == 0 && o->min_bytes < o->max_bytes && !o->step_factor && !o->step_bytes)
    return wrong(parser, "-i 0: a sweep needs a step (-i) or a factor (-f)");
  if (o->step_factor && o->min_bytes == 0 && o->max_bytes > 0)
    return wrong(parser, "-b 0 with -f: a factor leads nowhere from 0; use -i, or start with -b 1");
  /* nccl-tests takes these for every collective, and scripts pass them. */
  if (op_given && !o->collective->reduces && !o->nccl_tests_name)
    return wrong(parser, "-o: %s has no reduction operation", o->collective->name);
  if (root_given && !o->collective->rooted && !o->nccl_tests_name)
    return wrong(parser, "-r: %s has no root", o->collective->name);
  if ((o->rank >= 0) != (o->ranks_started > 0))
    return wrong(parser, "--rank and --nranks belong together: %s is missing", o->rank >= 0 ? "--nranks" : "--rank");
  if (o->rank >= 0 && o->rank >= o->ranks_started)
    return wrong(parser, "--rank %d: must be below --nranks %d", o->rank, o->ranks_started);
  if (o->rank >= 0 && o->processes)
    return wrong(parser, "%s starts local processes and --rank joins others: give one of them",
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
  struct parser parser = {o, error, size};
  bool given[OPT_END] = {false};
  defaults(o, argv[0]);
  optind = 0; /* glibc: start anew, also where a test parses many lines */
  opterr = 0;
  int c;
  while ((c = getopt_long(argc, argv, ":t:g:b:e:i:f:n:m:w:N:p:I:K:c:o:d:r:z:y:T:hG:C:a:R:x:D:V:J:S:M:u:", long_options,
                          NULL)) != -1) {
    const char *last = argv[optind - 1];
    if (c == 'h') return PERF_PARSE_HELP;
    if (c == '?') return wrong(&parser, "%s: unknown flag; see --help", last), PERF_PARSE_WRONG;
    if (c == ':') return wrong(&parser, "%s: needs a value; see --help", last), PERF_PARSE_WRONG;
    if (c == 'n') c = o->nccl_tests_name ? OPT_ITERS : OPT_NP;
    given[c] = true;
    if (!run_flag(&parser, c, optarg)) return PERF_PARSE_WRONG;
  }
  for (; optind < argc; optind++) {
    const char *name = argv[optind];
    if (o->collective)
      return wrong(&parser, "%s: one collective a run, and it is %s", name,
                   o->of_pairs ? "pairs" : o->collective->name),
             PERF_PARSE_WRONG;
    if (!strcmp(name, "pairs")) {
      o->of_pairs = true;
      o->collective = perf_collective_find("sendrecv");
      continue;
    }
    if (!(o->collective = perf_collective_find(name)))
      return wrong(&parser,
                   "%s: no such collective; there are all_reduce all_gather reduce_scatter broadcast reduce "
                   "gather scatter alltoall sendrecv, and pairs",
                   name),
             PERF_PARSE_WRONG;
  }
  if (given[OPT_SETTINGS] && !o->of_pairs) return wrong(&parser, "--settings: belongs to pairs"), PERF_PARSE_WRONG;
  if (o->of_pairs && !pairs_flags(&parser, given)) return PERF_PARSE_WRONG;
  if (o->of_pairs) o->min_bytes = o->max_bytes;
  bool sweep_given = given['b'] || given['e'] || given['i'] || given['f'];
  return consistent(&parser, given['o'], given['r'], sweep_given) ? PERF_PARSE_RUN : PERF_PARSE_WRONG;
}
