/* See options.h. Each flag belongs to one or more commands; one that the command does not know is refused, since a
 * flag that is ignored makes answers that are not what their command line says. */
#include "options.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "names.h"
#include "set.h"
#include "program/emit.h"

enum { PROGRAMS = 1, SIMULATE = 2, DECIDE = 4, BOTH = PROGRAMS | SIMULATE, ALL = BOTH | DECIDE };
enum flag_kind { COUNT, SIZE, MICROSECONDS, RATE, SHARING, SET, FILE_NAME, ALGORITHM };

struct flag {
  const char *name;
  char letter; /* 0: none */
  int commands;
  enum flag_kind kind;
  size_t offset;
  int least, most; /* COUNT */
};

#define AT(member) offsetof(struct tune_options, member)
static const struct flag flags[] = {
    {"nranks", 'n', ALL, COUNT, AT(nranks), 1, 4096},
    {"algo", 'a', BOTH, ALGORITHM, AT(algorithm), 0, 0},
    {"nodes", 'N', ALL, COUNT, AT(nodes), 1, 4096},
    {"root", 'r', BOTH, COUNT, AT(root), 0, 4095},
    {"peer", 'p', BOTH, COUNT, AT(peer), 0, 4095},
    {"slots", 's', BOTH, COUNT, AT(slots), 1, 1 << 16},
    {"pieces", 0, BOTH, COUNT, AT(pieces), 1, 4096},
    {"json", 'J', ALL, SET, AT(json), 0, 0},
    {"svg", 'S', BOTH, FILE_NAME, AT(svg), 0, 0},
    {"rank", 'R', PROGRAMS, COUNT, AT(rank), 0, 4095},
    {"channel", 'c', PROGRAMS, COUNT, AT(channel), 0, 1 << 16},
    {"loops", 'l', PROGRAMS, COUNT, AT(loops), 1, 1 << 16},
    {"picture", 'P', PROGRAMS, SET, AT(picture), 0, 0},
    {"sequential", 'q', BOTH, SET, AT(sequential), 0, 0},
    {"bytes", 'b', SIMULATE | DECIDE, SIZE, AT(bytes), 0, 0},
    {"end", 'e', DECIDE, SIZE, AT(end), 0, 0},
    {"factor", 'f', DECIDE, COUNT, AT(factor), 2, 1024},
    {"gpus", 'g', DECIDE, SET, AT(gpus), 0, 0},
    {"mapped", 'm', DECIDE, SET, AT(mapped), 0, 0},
    {"channels", 'C', SIMULATE, COUNT, AT(channels), 1, TUNE_MOST_CHANNELS},
    {"slot-bytes", 0, SIMULATE, SIZE, AT(slot_bytes), 0, 0},
    {"smallest-chunk", 0, SIMULATE, SIZE, AT(smallest_chunk), 0, 0},
    {"chunks", 0, SIMULATE, COUNT, AT(chunks), 1, 1 << 16},
    {"latency", 0, SIMULATE, MICROSECONDS, AT(cost.near.latency), 0, 0},
    {"bandwidth", 0, SIMULATE, RATE, AT(cost.near.byte), 0, 0},
    {"gap", 0, SIMULATE, MICROSECONDS, AT(cost.near.gap), 0, 0},
    {"shared-by", 0, SIMULATE, SHARING, AT(cost.near.sharing), 0, 0},
    {"far-latency", 0, SIMULATE, MICROSECONDS, AT(cost.far.latency), 0, 0},
    {"far-bandwidth", 0, SIMULATE, RATE, AT(cost.far.byte), 0, 0},
    {"far-gap", 0, SIMULATE, MICROSECONDS, AT(cost.far.gap), 0, 0},
    {"far-shared-by", 0, SIMULATE, SHARING, AT(cost.far.sharing), 0, 0},
    {"multicast-latency", 0, SIMULATE, MICROSECONDS, AT(cost.multicast.latency), 0, 0},
    {"multicast-bandwidth", 0, SIMULATE, RATE, AT(cost.multicast.byte), 0, 0},
    {"instruction", 0, SIMULATE, MICROSECONDS, AT(cost.instruction), 0, 0},
    {"message", 0, SIMULATE, MICROSECONDS, AT(cost.message), 0, 0},
    {"semaphore", 0, SIMULATE, MICROSECONDS, AT(cost.semaphore), 0, 0},
    {"reduce", 0, SIMULATE, RATE, AT(cost.reduce_byte), 0, 0},
    {"copy", 0, SIMULATE, RATE, AT(cost.copy_byte), 0, 0},
};
enum { NFLAGS = sizeof(flags) / sizeof(flags[0]), FIRST_VALUE = 256 };

struct parser {
  struct tune_options *options;
  char *error;
  size_t size;
  bool given[NFLAGS];
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

/* Bytes with K, M, G or T, powers of 1024. */
static bool parse_size(const char *text, uint64_t *bytes)
{
  static const char units[] = "KMGT";
  char *end;
  double value = *text >= '0' && *text <= '9' ? strtod(text, &end) : -1;
  if (value < 0) return false;
  const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
  if (unit) {
    value = ldexp(value, 10 * (int)(unit - units + 1));
    end++;
  }
  if ((*end & ~0x20) == 'B') end++;
  if (*end || !(value < 0x1p48) || value != floor(value)) return false;
  *bytes = (uint64_t)value;
  return true;
}

static bool parse_real(const char *text, double *value)
{
  char *end;
  *value = strtod(text, &end);
  return end != text && !*end && isfinite(*value) && *value >= 0;
}

static bool sharing_value(struct parser *parser, const struct flag *flag, const char *text, void *at)
{
  static const char *const names[] = {[TT_SHARE_NONE] = "pair", [TT_SHARE_RANK] = "rank", [TT_SHARE_NODE] = "node"};
  for (int i = 0; i < 3; i++) {
    if (strcmp(text, names[i])) continue;
    *(enum tt_simulate_sharing *)at = (enum tt_simulate_sharing)i;
    return true;
  }
  return wrong(parser, "--%s %s: must be pair, rank or node", flag->name, text);
}

static bool count_value(struct parser *parser, const struct flag *flag, const char *text, void *at)
{
  char *end;
  long value = strtol(text, &end, 10);
  if (end == text || *end || value < flag->least || value > flag->most)
    return wrong(parser, "--%s %s: must be a whole number from %d to %d", flag->name, text, flag->least, flag->most);
  *(int *)at = (int)value;
  return true;
}

static bool take(struct parser *parser, const struct flag *flag, const char *text)
{
  void *at = (char *)parser->options + flag->offset;
  double real;
  switch (flag->kind) {
  case COUNT:
    return count_value(parser, flag, text, at);
  case SIZE:
    if (parse_size(text, at)) return true;
    return wrong(parser, "--%s %s: is not a size in whole bytes, such as 8, 64K, 1.5M or 1G", flag->name, text);
  case MICROSECONDS:
    if (!parse_real(text, &real)) return wrong(parser, "--%s %s: is not a time in microseconds", flag->name, text);
    *(double *)at = real * 1000;
    return true;
  case RATE:
    if (!parse_real(text, &real)) return wrong(parser, "--%s %s: is not a rate in GB/s", flag->name, text);
    *(double *)at = real > 0 ? 1 / real : 0;
    return true;
  case SHARING:
    return sharing_value(parser, flag, text, at);
  case ALGORITHM:
    *(int *)at = tune_algorithm_find(text);
    if (*(int *)at >= 0) return true;
    return wrong(parser, "--algo %s: no such algorithm; `tutti-tune programs` lists them", text);
  case FILE_NAME:
    *(const char **)at = text;
    return true;
  default:
    *(bool *)at = true;
    return true;
  }
}

/* The estimates that stand in --help. */
static void defaults(struct tune_options *o)
{
  const struct tt_simulate_link near = {.latency = 1000, .byte = 1 / 20., .sharing = TT_SHARE_RANK};
  const struct tt_simulate_link far = {.latency = 10000, .byte = 1 / 12.5, .sharing = TT_SHARE_NODE};
  *o = (struct tune_options){.collective = -1,
                             .algorithm = -1,
                             .nranks = 8,
                             .peer = 1,
                             .rank = -1,
                             .nodes = 1,
                             .loops = 2,
                             .slots = TT_SLOTS,
                             .chunks = TT_SLOTS,
                             .bytes = 1 << 20,
                             .end = 64 << 20,
                             .factor = 4,
                             .slot_bytes = 512 << 10,
                             .smallest_chunk = 4 << 10,
                             .cost = {.near = near, .far = far, .multicast = near, .instruction = 200}};
}

static bool is_given(const struct parser *parser, const char *name)
{
  for (int i = 0; i < NFLAGS; i++)
    if (!strcmp(flags[i].name, name)) return parser->given[i];
  return false;
}

static bool below_ranks(struct parser *parser, const char *flag, int value)
{
  if (value < parser->options->nranks) return true;
  return wrong(parser, "--%s %d: there are %d ranks, 0 to %d", flag, value, parser->options->nranks,
               parser->options->nranks - 1);
}

/* What the collective must have been named for. */
static bool only_one(struct parser *parser)
{
  static const char *const flags_of_one[] = {"algo", "rank", "picture", "svg", "channel", "root", "peer", "pieces"};
  for (size_t i = 0; i < sizeof(flags_of_one) / sizeof(flags_of_one[0]); i++)
    if (is_given(parser, flags_of_one[i]))
      return wrong(parser, "--%s: needs a collective, as in `tutti-tune programs all_reduce`", flags_of_one[i]);
  return true;
}

static bool check_algorithm(struct parser *parser)
{
  struct tune_options *o = parser->options;
  char list[256];
  tune_algorithm_list(o->collective, list, sizeof(list));
  if (o->algorithm >= 0 && !tune_supports(o->collective, o->algorithm))
    return wrong(parser, "--algo %s: has no program for %s; there are %s", tune_algorithm_word(o->algorithm),
                 tune_collective_word(o->collective), list);
  if (o->algorithm < 0 && !strchr(list, ' ')) o->algorithm = tune_algorithm_find(list);
  bool about_one = o->picture || o->svg || o->rank >= 0 || is_given(parser, "channel");
  if (o->algorithm < 0 && about_one)
    return wrong(parser, "name one of the algorithms of %s with --algo: %s", tune_collective_word(o->collective), list);
  return true;
}

/* One size if only that is given. */
static bool can_decide(struct parser *parser)
{
  struct tune_options *o = parser->options;
  if (o->collective == TT_FUNC_SEND_RECV && !o->gpus)
    return wrong(parser, "sendrecv: has one algorithm but on GPUs (--gpus), and nothing is decided");
  if (o->mapped && !o->gpus) return wrong(parser, "--mapped: only GPUs (--gpus) use each other's buffers in place");
  if (!is_given(parser, "bytes")) o->bytes = 8;
  if (is_given(parser, "bytes") && !is_given(parser, "end")) o->end = o->bytes;
  if (o->end < o->bytes)
    return wrong(parser, "--end: %llu bytes are less than the first size, %llu", (unsigned long long)o->end,
                 (unsigned long long)o->bytes);
  return true;
}

static bool consistent(struct parser *parser)
{
  struct tune_options *o = parser->options;
  if (o->command != TUNE_PROGRAMS && o->collective < 0) {
    char list[256];
    tune_collective_list(list, sizeof(list));
    return wrong(parser, "name a collective: %s", list);
  }
  if (o->nodes > o->nranks) return wrong(parser, "--nodes %d: more than the %d ranks", o->nodes, o->nranks);
  if (o->command == TUNE_DECIDE) return can_decide(parser);
  if (o->collective < 0) return only_one(parser);
  bool pair = o->collective == TT_FUNC_SEND_RECV, rooted = pair || tt_collective_has_root(o->collective);
  if (is_given(parser, "root") && !rooted)
    return wrong(parser, "--root: %s has no root", tune_collective_word(o->collective));
  if (is_given(parser, "peer") && !pair)
    return wrong(parser, "--peer: only sendrecv has one; it is from --root to --peer");
  if (!is_given(parser, "peer") && o->nranks == 1) o->peer = 0;
  if (!below_ranks(parser, "root", o->root) || !below_ranks(parser, "peer", o->peer) ||
      !below_ranks(parser, "rank", o->rank))
    return false;
  if (o->json && (o->picture || (o->svg && !strcmp(o->svg, "-"))))
    return wrong(parser, "--json: has standard output for itself; write the picture with --svg FILE");
  if (o->sequential && o->command == TUNE_PROGRAMS && !o->picture && !o->svg)
    return wrong(parser, "--sequential: needs --picture or --svg");
  return check_algorithm(parser);
}

static bool take_words(struct parser *parser, int argc, char **argv)
{
  struct tune_options *o = parser->options;
  for (; optind < argc; optind++) {
    if (o->collective >= 0)
      return wrong(parser, "%s: one collective at a time, and it is %s", argv[optind],
                   tune_collective_word(o->collective));
    o->collective = tune_collective_find(argv[optind]);
    if (o->collective >= 0) continue;
    char list[256];
    tune_collective_list(list, sizeof(list));
    return wrong(parser, "%s: no such collective; there are %s", argv[optind], list);
  }
  return true;
}

/* getopt's tables, from `flags`. */
static void tables(struct option *options, char *letters)
{
  *letters++ = ':';
  *letters++ = 'h';
  for (int i = 0; i < NFLAGS; i++) {
    options[i] = (struct option){flags[i].name, flags[i].kind != SET, NULL, FIRST_VALUE + i};
    if (!flags[i].letter) continue;
    *letters++ = flags[i].letter;
    if (flags[i].kind != SET) *letters++ = ':';
  }
  options[NFLAGS] = (struct option){"help", 0, NULL, 'h'};
  options[NFLAGS + 1] = (struct option){NULL, 0, NULL, 0};
  *letters = '\0';
}

static int flag_of(int c)
{
  if (c >= FIRST_VALUE) return c - FIRST_VALUE;
  for (int i = 0; i < NFLAGS; i++)
    if (flags[i].letter == c) return i;
  return -1;
}

enum tune_parse tune_options_parse(struct tune_options *o, int argc, char **argv, char *error, size_t size)
{
  struct parser parser = {.options = o, .error = error, .size = size};
  struct option options[NFLAGS + 2];
  char letters[2 * NFLAGS + 3];
  defaults(o);
  if (argc < 2) return wrong(&parser, "no command; see --help"), TUNE_PARSE_WRONG;
  if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help")) return TUNE_PARSE_HELP;
  if (!strcmp(argv[1], "simulate"))
    o->command = TUNE_SIMULATE;
  else if (!strcmp(argv[1], "decide"))
    o->command = TUNE_DECIDE;
  else if (strcmp(argv[1], "programs"))
    return wrong(&parser, "%s: no such command; there are programs, simulate and decide", argv[1]), TUNE_PARSE_WRONG;
  int mine = o->command == TUNE_SIMULATE ? SIMULATE : o->command == TUNE_DECIDE ? DECIDE : PROGRAMS, c;
  tables(options, letters);
  argc--; /* the command stands where getopt expects the program's name */
  argv++;
  optind = 0;
  opterr = 0;
  while ((c = getopt_long(argc, argv, letters, options, NULL)) != -1) {
    const char *last = argv[optind - 1];
    if (c == 'h') return TUNE_PARSE_HELP;
    if (c == '?') return wrong(&parser, "%s: unknown flag; see --help", last), TUNE_PARSE_WRONG;
    if (c == ':') return wrong(&parser, "%s: needs a value; see --help", last), TUNE_PARSE_WRONG;
    const struct flag *flag = &flags[flag_of(c)];
    if (!(flag->commands & mine))
      return wrong(&parser, "--%s: not a flag of `tutti-tune %s`; see --help", flag->name, argv[0]), TUNE_PARSE_WRONG;
    parser.given[flag_of(c)] = true;
    if (!take(&parser, flag, optarg)) return TUNE_PARSE_WRONG;
  }
  if (!take_words(&parser, argc, argv)) return TUNE_PARSE_WRONG;
  if (!is_given(&parser, "multicast-latency")) o->cost.multicast.latency = o->cost.near.latency;
  if (!is_given(&parser, "multicast-bandwidth")) o->cost.multicast.byte = o->cost.near.byte;
  o->cost.network = o->cost.far;
  return consistent(&parser) ? TUNE_PARSE_RUN : TUNE_PARSE_WRONG;
}

void tune_options_help(FILE *out)
{
  char collectives[256];
  tune_collective_list(collectives, sizeof(collectives));
  fprintf(out,
          "usage: tutti-tune programs [COLLECTIVE] [flags]\n"
          "       tutti-tune simulate COLLECTIVE [flags]\n"
          "       tutti-tune decide COLLECTIVE [flags]\n"
          "Shows the programs that collectives are made of, checks them, predicts what they take, and tells which of\n"
          "them are chosen. Runs nothing.\n\n"
          "COLLECTIVE: %s\n\n",
          collectives);
  fputs(
      "programs: what there is; with a collective and an algorithm, the programs themselves and their proof\n"
      "  -R, --rank R          only the program of rank R\n"
      "  -c, --channel N       which channel's: of a tree algorithm, even and odd ones differ (0)\n"
      "  -l, --loops L         loops that are proved and drawn (2)\n"
      "  -P, --picture         draws them as text: time across, ranks down, a column an instruction\n"
      "  -q, --sequential      draws them as one thread a rank would run them\n\n"
      "simulate: predicted times, with strands running concurrently and one after the other\n"
      "  -b, --bytes SIZE      of the collective's larger buffer (1M)\n"
      "  -C, --channels N      that share the data (1; trees: 2)\n"
      "      --slot-bytes SIZE that a message may have (512K)\n"
      "      --chunks N        into which a channel's share of a chain or tree is cut so that hops overlap (8)\n"
      "      --smallest-chunk SIZE  below which it is not cut further (4K)\n"
      "  -q, --sequential      --svg draws the strands one after the other\n"
      "  Links: times in microseconds, rates in GB/s; 0: takes no time. The defaults are round numbers: give your "
      "own.\n"
      "      --latency T  --bandwidth X  --gap T      within a node, the gap for each message (1, 20, 0)\n"
      "      --shared-by WHO                          the bandwidth is that of a pair, a rank or a node (rank)\n"
      "      --far-latency T  --far-bandwidth X  --far-gap T  --far-shared-by WHO\n"
      "                                               between nodes, and to a network that reduces (10, 12.5, 0, "
      "node)\n"
      "      --multicast-latency T  --multicast-bandwidth X    of memory with many copies (as within a node)\n"
      "  Ranks:\n"
      "      --instruction T  --message T  --semaphore T       each time (0.2, 0, 0)\n"
      "      --reduce X  --copy X                     bytes that instructions reduce, or move (0, 0)\n\n"
      "decide: what the core chooses, what a tuner (NCCL_TUNER_PLUGIN, NCCL_TUNER_CONFIG_FILE) says to it, and what "
      "is\n"
      "used and why; other variables count, too\n"
      "  -b, --bytes SIZE  -e, --end SIZE  -f, --factor N  from, to, and times what (8, 64M, 4; just -b: one size)\n"
      "  -g, --gpus            on GPUs that NVLink joins within a node, in place of the host device\n"
      "  -m, --mapped          and whose ranks have mapped each other's buffers: windows, captured, of one process\n\n"
      "Of these, decide has -n, -N and -J; the others have all\n"
      "  -n, --nranks N        ranks (8)\n"
      "  -a, --algo NAME       algorithm (programs: a table of all; simulate: all)\n"
      "  -N, --nodes N         nodes that the ranks are on, as evenly as possible (1)\n"
      "  -r, --root R          root; of sendrecv, who sends (0)\n"
      "  -p, --peer R          of sendrecv, who receives (1)\n"
      "  -s, --slots N         of each connection (8)\n"
      "      --pieces N        chunks in a message of PAT at most\n"
      "  -S, --svg FILE        draws the run as SVG; - is standard output\n"
      "  -J, --json            as JSON\n"
      "  -h, --help            this text\n\n"
      "Exit status: 0; 1 a program is wrong: not proved, or it deadlocks; 2 wrong command line; 3 anything else.\n",
      out);
}
