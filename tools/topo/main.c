/* tutti-topo: what a topology file says of a machine, without that machine. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/text.h"
#include "topo.h"

struct options {
  const char *command, *file, *ends[2];
  int rank, nodes;
  bool steps;
};

static void help(FILE *out)
{
  fputs("tutti-topo: what a topology file says of a machine\n\n"
        "  tutti-topo show FILE    the machine as a tree: CPUs, bridges, GPUs, NICs; their links and bandwidths\n"
        "  tutti-topo paths FILE   the path between GPUs, and from GPUs to CPUs and NETs: its type and bandwidth\n"
        "  tutti-topo explain FILE A B\n"
        "                          why ranks A and B, or rank A and NET B (net0), are connected as they are\n"
        "  tutti-topo copy FILE    the file as it was understood, in the form that NCCL reads\n\n"
        "FILE is what NCCL_TOPO_FILE takes and NCCL_TOPO_DUMP_FILE writes. Bandwidths are GB/s, one direction.\n\n"
        "  -r, --rank N     as this rank sees it: with the GPUs that it reaches without a network (default 0)\n"
        "  -N, --nodes N    as one of N such machines (default 1); with more, the network sets the limits\n"
        "  -s, --steps      paths: also each path, node by node\n"
        "  -h, --help\n\n"
        "These variables are obeyed:\n",
        out);
  const char *name, *meaning;
  for (int i = 0; tt_topology_rules_describe(i, &name, &meaning); i++) fprintf(out, "  %-24s%s\n", name, meaning);
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

/* -1: go on; else the exit status. */
static int parse(struct options *o, int argc, char **argv)
{
  static const struct option flags[] = {{"rank", required_argument, NULL, 'r'},
                                        {"nodes", required_argument, NULL, 'N'},
                                        {"steps", no_argument, NULL, 's'},
                                        {"help", no_argument, NULL, 'h'},
                                        {0}};
  *o = (struct options){.nodes = 1};
  for (int flag; (flag = getopt_long(argc, argv, "r:N:sh", flags, NULL)) != -1;) {
    if (flag == 'h') {
      help(stdout);
      return TOPO_GOOD;
    }
    if (flag == 's')
      o->steps = true;
    else if (flag != 'r' && flag != 'N')
      return TOPO_USAGE; /* getopt has said why */
    else if (!number(optarg, flag == 'r' ? "--rank" : "--nodes", flag == 'N', flag == 'r' ? &o->rank : &o->nodes))
      return TOPO_USAGE;
  }
  static const char *const commands[] = {"show", "paths", "copy", "explain"};
  if (argc - optind < 2) {
    fputs("tutti-topo: name a command and a file, as in: tutti-topo show FILE; --help tells more\n", stderr);
    return TOPO_USAGE;
  }
  o->command = argv[optind];
  o->file = argv[optind + 1];
  bool known = false;
  for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) known |= strcmp(o->command, commands[i]) == 0;
  if (!known) {
    fprintf(stderr, "tutti-topo: there is no command %s; use show, paths, explain or copy\n", o->command);
    return TOPO_USAGE;
  }
  bool explain = strcmp(o->command, "explain") == 0;
  if (argc - optind != (explain ? 4 : 2)) {
    fprintf(stderr, "tutti-topo: %s takes %s\n", o->command, explain ? "a file and two ends: FILE A B" : "one file");
    return TOPO_USAGE;
  }
  for (int i = 0; i < 2 && explain; i++) o->ends[i] = argv[optind + 2 + i];
  if (o->steps && strcmp(o->command, "paths") != 0) {
    fprintf(stderr, "tutti-topo: --steps belongs to paths, not to %s\n", o->command);
    return TOPO_USAGE;
  }
  return -1;
}

/* Ranks of N equal machines: those of one are known once it is built. */
static ncclResult_t make(const struct options *o, const struct tt_xml *xml, struct tt_topology **t)
{
  struct tt_topology_rules rules = tt_topology_rules_default();
  ncclResult_t result = tt_topology_rules_from_parameters(&rules);
  if (result == ncclSuccess) result = tt_topology_create(xml, &rules, o->rank, 0, t);
  if (result != ncclSuccess || o->nodes == 1) return result;
  int nranks = (*t)->nranks * o->nodes;
  tt_topology_free(*t);
  return tt_topology_create(xml, &rules, o->rank, nranks, t);
}

/* The same machine with no rule that changes a path. */
static bool explain(const struct options *o, const struct tt_xml *xml, const struct tt_topology *t)
{
  struct tt_topology_rules none = tt_topology_rules_default();
  struct tt_topology *machine;
  char error[256];
  none.peer_level = none.gpu_direct_level = TT_PATH_SYS;
  none.net_intra = none.pxn = false;
  none.relays = t->rules.relays;
  bool good = tt_topology_create(xml, &none, o->rank, 0, &machine) == ncclSuccess;
  if (!good) {
    fprintf(stderr, "tutti-topo: %s\n", tt_log_thread_error());
    return false;
  }
  good = topo_explain(t, machine, o->ends[0], o->ends[1], error, sizeof(error));
  if (!good) fprintf(stderr, "tutti-topo: %s\n", error);
  tt_topology_free(machine);
  return good;
}

int main(int argc, char **argv)
{
  struct options o;
  struct tt_xml *xml = NULL;
  struct tt_topology *t = NULL;
  int status = parse(&o, argc, argv);
  if (status >= 0) return status;
  ncclResult_t result = tt_xml_read(o.file, "system", &xml);
  if (result == ncclSuccess && strcmp(o.command, "copy") == 0)
    result = tt_xml_write(xml, stdout);
  else if (result == ncclSuccess)
    result = make(&o, xml, &t);
  if (t && strcmp(o.command, "show") == 0) topo_show(t);
  if (t && strcmp(o.command, "paths") == 0) topo_paths(t, o.steps);
  if (result != ncclSuccess) fprintf(stderr, "tutti-topo: %s\n", tt_log_thread_error());
  status = result == ncclSuccess ? TOPO_GOOD : result == ncclSystemError ? TOPO_FAILED : TOPO_REFUSED;
  if (t && strcmp(o.command, "explain") == 0 && !explain(&o, xml, t)) status = TOPO_REFUSED;
  tt_topology_free(t);
  tt_xml_free(xml);
  if (fflush(stdout) == 0 && !ferror(stdout)) return status;
  fputs("tutti-topo: the output could not be written\n", stderr);
  return TOPO_FAILED;
}
