/* See expected.h. */
#include "expected.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_line(struct expected *s, const char *line)
{
  if (s->npaths == s->room) {
    s->room = s->room ? 2 * s->room : 32;
    s->paths = realloc(s->paths, (size_t)s->room * sizeof(*s->paths));
    if (!s->paths) abort();
  }
  s->paths[s->npaths++] = strdup(line);
}

static void read_line(struct expected *s, const char *line)
{
  int gpus, nets, nodes;
  if (strncmp(line, "path ", 5) == 0) add_line(s, line + 5);
  if (strncmp(line, "ERROR", 5) == 0) s->error = true;
  sscanf(line, "# gpus %d nets %d nodes %d nranks %d inter %d maxBw %f totalBw %f", &gpus, &nets, &nodes, &s->nranks,
         &s->inter, &s->max_bandwidth, &s->total_bandwidth);
}

struct expected *expected_read(const char *path, int *count)
{
  struct expected *sections = NULL;
  FILE *file = fopen(path, "re");
  char *line = NULL;
  size_t room = 0;
  *count = 0;
  if (!file) {
    perror(path);
    return NULL;
  }
  while (getline(&line, &room, file) > 0) {
    line[strcspn(line, "\n")] = 0;
    if (strncmp(line, "### ", 4) == 0) {
      sections = realloc(sections, (size_t)(*count + 1) * sizeof(*sections));
      if (!sections) abort();
      struct expected *s = &sections[(*count)++];
      *s = (struct expected){.inter = -1};
      if (sscanf(line, "### nodes=%d %63[^=]=%63s", &s->nodes, s->name, s->value) < 1) abort();
    } else if (*count > 0) {
      read_line(&sections[*count - 1], line);
    }
  }
  free(line);
  fclose(file);
  return sections;
}

void expected_free(struct expected *sections, int count)
{
  for (int i = 0; i < count; i++) expected_free_lines(sections[i].paths, sections[i].npaths);
  free(sections);
}

void expected_free_lines(char **lines, int count)
{
  for (int i = 0; i < count; i++) free(lines[i]);
  free(lines);
}

static void print_node(const struct tt_node *node, FILE *out)
{
  const unsigned long long below = ((unsigned long long)1 << 56) - 1;
  if (node->type == TT_NODE_GPU)
    fprintf(out, "gpu%d", node->gpu.rank);
  else if (node->type == TT_NODE_CPU)
    fprintf(out, "cpu%d-%llx", node->host, (unsigned long long)node->id & below);
  else
    fprintf(out, "net%llx", (unsigned long long)node->host << 56 | (unsigned long long)node->net.dev);
}

static void print_paths(const struct tt_topology *t, int from, enum tt_node_type to, FILE *out)
{
  for (int i = 0; i < t->count[to]; i++) {
    int node = tt_topology_node(t, to, i);
    const struct tt_path *path = tt_topology_path(t, from, node);
    fputc(' ', out);
    print_node(&t->nodes[node], out);
    fprintf(out, ":%s/%.1f/%d", tt_topology_name_path((enum tt_path_type)path->type), (double)path->bandwidth,
            path->hops);
  }
}

char **expected_lines(const struct tt_topology *t, int *count)
{
  struct expected lines = {0};
  const int ngpus = t->count[TT_NODE_GPU], nnets = t->count[TT_NODE_NET];
  for (int i = 0; i < 3 * ngpus + nnets; i++) {
    if (i < 3 * ngpus && i % 3 == 2 && nnets == 0) continue; /* no line says that there are no NETs */
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) abort();
    int node =
        i < 3 * ngpus ? tt_topology_node(t, TT_NODE_GPU, i / 3) : tt_topology_node(t, TT_NODE_NET, i - 3 * ngpus);
    print_node(&t->nodes[node], out);
    if (i >= 3 * ngpus) {
      int gpu = t->nodes[node].net.local_gpu;
      fprintf(out, " localgpu %d ->", gpu < 0 ? -1 : t->nodes[tt_topology_node(t, TT_NODE_GPU, gpu)].gpu.rank);
      print_paths(t, node, TT_NODE_GPU, out);
    } else {
      static const enum tt_node_type to[] = {TT_NODE_GPU, TT_NODE_CPU, TT_NODE_NET};
      static const char *const words[] = {" ->", " -> cpu", " -> net"};
      fputs(words[i % 3], out);
      print_paths(t, node, to[i % 3], out);
    }
    fclose(out);
    add_line(&lines, text);
    free(text);
  }
  *count = lines.npaths;
  return lines.paths;
}

/* The length of a word without the hops at its end, as in "gpu1:NVL/80.0/3". */
static size_t word(const char *text, long *hops)
{
  size_t length = strcspn(text, " ");
  *hops = -1;
  for (size_t i = length; i > 0; i--)
    if (text[i - 1] == '/') {
      *hops = strtol(text + i, NULL, 10);
      return i;
    }
  return length;
}

bool expected_same(const char *a, const char *b, int *hops)
{
  for (;;) {
    long of_a, of_b;
    size_t length = word(a, &of_a);
    if (length != word(b, &of_b) || strncmp(a, b, length) != 0) return false;
    *hops += of_a != of_b;
    a += strcspn(a, " ");
    b += strcspn(b, " ");
    if (!*a || !*b) return !*a && !*b;
    a++;
    b++;
  }
}
