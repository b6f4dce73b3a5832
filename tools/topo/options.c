/* Commands, their operands and options, and the help. See options.h. */
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "base/text.h"
#include "graph/graph.h"
#include "graph/join_rules.h"
#include "topo.h"

/* Each option belongs to the commands that list its letter. */
static const struct command {
  const char *name, *operands, *options;
  int noperands;
} commands[] = {{"show", "one file, or --here", "rRNHS", 1},
                {"paths", "one file, or --here", "rRNsHS", 1},
                {"explain", "a file, or --here, and two ends: FILE A B", "RNHS", 3},
                {"graph", "one file, or --here", "rRNgldLHS", 1},
                {"join", "one file, or --here", "rRNlcHS", 1},
                {"draw", "one file, or --here", "rRNlgcVWHS", 1},
                {"copy", "one file, or --here", "RHS", 1}};

static const struct option flags[] = {{"rank", required_argument, NULL, 'r'},
                                      {"ranks", required_argument, NULL, 'R'},
                                      {"nodes", required_argument, NULL, 'N'},
                                      {"steps", no_argument, NULL, 's'},
                                      {"graph", required_argument, NULL, 'g'},
                                      {"load", required_argument, NULL, 'l'},
                                      {"dump", required_argument, NULL, 'd'},
                                      {"links", no_argument, NULL, 'L'},
                                      {"here", no_argument, NULL, 'H'},
                                      {"sysfs", required_argument, NULL, 'S'},
                                      {"channel", required_argument, NULL, 'c'},
                                      {"svg", required_argument, NULL, 'V'},
                                      {"html", required_argument, NULL, 'W'},
                                      {"help", no_argument, NULL, 'h'},
                                      {0}};

/* What a search obeys, beside what a join obeys, too. */
static const enum tt_param_id searching[] = {TT_PARAM_NCCL_CROSS_NIC, TT_PARAM_NCCL_MNNVL_SCATTER_NETS_ENABLE,
                                             TT_PARAM_NCCL_MNNVL_RAIL_PER_HOST};

static void help(FILE *out)
{
  fputs(
      "tutti-topo: what a topology file says of a machine, or this machine of itself\n\n"
      "  tutti-topo show FILE    the machine as a tree: CPUs, bridges, GPUs, NICs; their links and bandwidths\n"
      "  tutti-topo paths FILE   the path between GPUs, and from GPUs to CPUs and NETs: its type and bandwidth\n"
      "  tutti-topo explain FILE A B\n"
      "                          why ranks A and B, or rank A and NET B (net0), are connected as they are\n"
      "  tutti-topo graph FILE   rings, trees and other graphs: their channels, and how much of the links "
      "they use\n"
      "  tutti-topo join FILE    rings and trees over as many machines as --nodes says, proved\n"
      "  tutti-topo draw FILE    the machine and its graphs, as a picture (--svg) or a page to step through "
      "(--html)\n"
      "  tutti-topo copy FILE    the file as it was understood, in the form that NCCL reads\n\n"
      "FILE is what NCCL_TOPO_DUMP_FILE writes. Bandwidths are GB/s, one direction.\n\n"
      "      --here       in place of FILE: this machine; show then also has tables and warnings\n"
      "      --sysfs DIR  --here: a copy of /sys\n"
      "  -r, --rank N     as this rank sees it: with the GPUs that it reaches without a network (default: the "
      "lowest);\n"
      "                   join: this rank's place\n"
      "  -R, --ranks LIST only these ranks take part, as in 0,1,4-7; the GPUs of others are left out\n"
      "  -N, --nodes N    as one of N such machines (default 1); with more, the network sets the limits\n"
      "  -s, --steps      paths: also each path, node by node\n"
      "  -c, --channel N  join: only this channel; draw: with this one of --graph (default 0)\n"
      "  -g, --graph KIND graph: only ring, tree, collnetchain, nvls or collnetdirect; draw: the picture with a "
      "channel of\n"
      "                   it, the page begins there\n"
      "  -l, --load FILE  graph, join, draw: take what this graph file has, as NCCL_GRAPH_FILE does; search the rest\n"
      "  -d, --dump FILE  graph: also write a graph file\n"
      "  -L, --links      graph: each link that is used, not those that are alike as one\n"
      "      --svg OUT    draw: the picture's file\n"
      "      --html OUT   draw: the page's file\n"
      "  -h, --help\n\n"
      "These variables are obeyed:\n",
      out);
  const char *name, *meaning;
  for (int i = 0; tt_topology_rules_describe(i, &name, &meaning); i++) fprintf(out, "  %-32s%s\n", name, meaning);
  fputs("and by graph, join and draw:\n", out);
  for (size_t i = 0; i < TT_COUNT(searching); i++)
    fprintf(out, "  %-32s%s\n", tt_param_describe(searching[i])->name, tt_param_describe(searching[i])->help);
  fputs("and by join (the last two also by graph and draw):\n", out);
  for (int i = 0; tt_join_rules_describe(i, &name, &meaning); i++) fprintf(out, "  %-32s%s\n", name, meaning);
  fputs("\nExit status: 0 good, 1 the file or a variable was refused, 2 wrong usage, 3 the output failed\n", out);
}

static bool number(const char *text, const char *what, int least, int *value)
{
  int64_t found;
  if (tt_text_int(text, &found) && found >= least && found <= 1 << 20) {
    *value = (int)found;
    return true;
  }
  fprintf(stderr, "tutti-topo: %s \"%s\" must be a number from %d to %d\n", what, text, least, 1 << 20);
  return false;
}

static bool kind(const char *text, int *value)
{
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    *value = k;
    if (strcmp(text, tt_graph_name((enum tt_graph_kind)k)) == 0) return true;
  }
  fprintf(stderr, "tutti-topo: --graph \"%s\" must be ring, tree, collnetchain, nvls or collnetdirect\n", text);
  return false;
}

static bool take(struct topo_options *o, int flag)
{
  switch (flag) {
  case 'r':
    return number(optarg, "--rank", 0, &o->rank);
  case 'N':
    return number(optarg, "--nodes", 1, &o->nodes);
  case 'c':
    return number(optarg, "--channel", 0, &o->channel);
  case 'g':
    return kind(optarg, &o->graph);
  case 'R':
    o->ranks = optarg;
    return true;
  case 's':
    return o->steps = true;
  case 'L':
    return o->links = true;
  case 'H':
    return o->here = true;
  case 'S':
    o->sysfs = optarg;
    return true;
  case 'V':
    o->svg = optarg;
    return true;
  case 'W':
    o->html = optarg;
    return true;
  case 'l':
    o->load = optarg;
    return true;
  case 'd':
    o->dump = optarg;
    return true;
  default:
    return false; /* getopt has said why */
  }
}

static const struct command *find_command(const char *name)
{
  for (size_t i = 0; i < TT_COUNT(commands); i++)
    if (strcmp(commands[i].name, name) == 0) return &commands[i];
  fprintf(stderr, "tutti-topo: there is no command %s; use", name);
  for (size_t i = 0; i < TT_COUNT(commands); i++)
    fprintf(stderr, "%s %s", i == 0 ? "" : i + 1 < TT_COUNT(commands) ? "," : " or", commands[i].name);
  fputc('\n', stderr);
  return NULL;
}

/* Whether all options that were given are the command's. */
static bool belong(const struct command *command, const char *given)
{
  for (; *given; given++) {
    const struct option *flag = flags;
    if (strchr(command->options, *given)) continue;
    while (flag->val != *given) flag++;
    fprintf(stderr, "tutti-topo: --%s belongs to", flag->name);
    bool first = true;
    for (size_t i = 0; i < TT_COUNT(commands); i++) {
      if (!strchr(commands[i].options, *given)) continue;
      fprintf(stderr, "%s %s", first ? "" : ",", commands[i].name);
      first = false;
    }
    fprintf(stderr, ", not to %s\n", command->name);
    return false;
  }
  return true;
}

int topo_options_parse(struct topo_options *o, int argc, char **argv)
{
  char given[TT_COUNT(flags) + 1] = "";
  *o = (struct topo_options){.nodes = 1, .rank = -1, .graph = -1, .channel = -1};
  for (int flag; (flag = getopt_long(argc, argv, "r:R:N:sg:l:d:Lc:h", flags, NULL)) != -1;) {
    if (flag == 'h') {
      help(stdout);
      return TOPO_GOOD;
    }
    if (!take(o, flag)) return TOPO_USAGE;
    if (!strchr(given, flag)) given[strlen(given)] = (char)flag;
  }
  const int files = o->here ? 0 : 1;
  if (argc - optind < 1 + files) {
    fputs("tutti-topo: name a command and a file, as in: tutti-topo show FILE; --help tells more\n", stderr);
    return TOPO_USAGE;
  }
  const struct command *command = find_command(argv[optind]);
  if (!command) return TOPO_USAGE;
  if (argc - optind - files != command->noperands) {
    fprintf(stderr, "tutti-topo: %s takes %s\n", command->name, command->operands);
    return TOPO_USAGE;
  }
  if (!belong(command, given)) return TOPO_USAGE;
  const bool draw = strcmp(command->name, "draw") == 0;
  if (draw && !o->svg && !o->html) {
    fputs("tutti-topo: draw takes a file to write, as in: tutti-topo draw FILE --html OUT\n", stderr);
    return TOPO_USAGE;
  }
  if (draw && o->channel >= 0 && o->graph < 0) {
    fputs("tutti-topo: name the --graph of that --channel\n", stderr);
    return TOPO_USAGE;
  }
  o->command = command->name;
  o->file = o->here ? NULL : argv[optind + 1];
  for (int i = 0; i < 2 && command->noperands == 3; i++) o->ends[i] = argv[optind + 1 + files + i];
  if (o->sysfs && !o->here) {
    fputs("tutti-topo: --sysfs belongs to --here\n", stderr);
    return TOPO_USAGE;
  }
  if (!o->sysfs) o->sysfs = "/sys";
  return -1;
}
