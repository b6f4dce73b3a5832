/* See join_expected.h. */
#include "join_expected.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum tt_path_type type_of(const char *name)
{
  for (int type = 0; type < TT_PATH_TYPES; type++)
    if (strcmp(name, tt_topology_name_path((enum tt_path_type)type)) == 0) return (enum tt_path_type)type;
  abort();
}

static void read_graph(struct join_section *s, const char *line, struct tt_graph **last)
{
  int id, pattern, cross, nchannels, same;
  float intra, inter;
  char inside[8], outside[8];
  if (sscanf(line, "graph %*s id %d pattern %d crossnic %d nchannels %d bw %f/%f type %7[^/]/%7s samechannels %d", &id,
             &pattern, &cross, &nchannels, &intra, &inter, inside, outside, &same) != 9 ||
      id < 0 || id >= TT_GRAPH_KINDS || s->graphs[id])
    abort();
  if (tt_graph_new((enum tt_graph_kind)id, nchannels, s->ngpus, last) != ncclSuccess) abort();
  s->graphs[id] = *last;
  (*last)->pattern = (enum tt_graph_pattern)pattern;
  (*last)->cross_nic = cross;
  (*last)->nchannels = nchannels;
  (*last)->same_channels = same;
  (*last)->bandwidth_intra = intra;
  (*last)->bandwidth_inter = inter;
  (*last)->type_intra = type_of(inside);
  (*last)->type_inter = type_of(outside);
}

/* "ch 0: net3 ranks 0 3 2 1 net2" */
static void read_channel(struct tt_graph *graph, char *line)
{
  char *save, *word = strtok_r(line, " :", &save); /* ch */
  int channel = atoi(strtok_r(NULL, " :", &save)), ranks = 0, nets = 0;
  while ((word = strtok_r(NULL, " ", &save))) {
    if (strncmp(word, "net", 3) == 0)
      graph->nets[channel * 2 + nets++] = strtoll(word + 3, NULL, 16);
    else if (strcmp(word, ":") != 0 && strcmp(word, "ranks") != 0)
      graph->ranks[channel * graph->nranks + ranks++] = atoi(word);
  }
}

static void add_line(struct join_section *s, const char *line)
{
  s->lines = realloc(s->lines, (size_t)(s->nlines + 1) * sizeof(*s->lines));
  if (!s->lines || !(s->lines[s->nlines++] = strdup(line))) abort();
}

static void read_line(struct join_section *s, char *line, struct tt_graph **last)
{
  sscanf(line, "# gpus %d nets %*d nodes %*d nranks %d", &s->ngpus, &s->nranks);
  if (strncmp(line, "graph ", 6) == 0) read_graph(s, line, last);
  if (strncmp(line, "  ch ", 5) == 0 && *last) read_channel(*last, line);
  if (strncmp(line, "ringorder", 9) == 0 || strncmp(line, "tree ", 5) == 0 || strncmp(line, "nvlstree", 8) == 0)
    add_line(s, line);
  if (sscanf(line, "# coll channels %d nvls channels %d p2p channels %d per peer %d treeDepth %d", &s->coll_channels,
             &s->nvls_channels, &s->peer_channels, &s->per_peer, &s->tree_depth) == 5)
    s->joined = true;
}

struct join_section *join_sections_read(const char *path, int *count)
{
  struct join_section *sections = NULL;
  struct tt_graph *last = NULL;
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
      struct join_section *s = &sections[(*count)++];
      *s = (struct join_section){0};
      last = NULL;
      if (sscanf(line, "### nodes=%d %63[^=]=%63s", &s->nodes, s->name, s->value) < 1) abort();
    } else if (*count > 0) {
      read_line(&sections[*count - 1], line, &last);
    }
  }
  free(line);
  fclose(file);
  return sections;
}

void join_sections_free(struct join_section *sections, int count)
{
  for (int i = 0; i < count; i++) {
    for (int k = 0; k < TT_GRAPH_KINDS; k++) tt_graph_free(sections[i].graphs[k]);
    for (int l = 0; l < sections[i].nlines; l++) free(sections[i].lines[l]);
    free(sections[i].lines);
  }
  free(sections);
}
