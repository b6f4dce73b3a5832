/* Nodes and links of a draft. See draft.h. */
#include "topology/draft.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"

ncclResult_t tt_draft_add(struct tt_draft *draft, enum tt_node_type type, int host, uint64_t id, int element, int *node)
{
  if (draft->count == TT_TOPOLOGY_MOST_NODES)
    return TT_FAIL(ncclInvalidUsage, "%s describes more than %d devices; a machine that large cannot be searched",
                   draft->xml->source, TT_TOPOLOGY_MOST_NODES);
  if (draft->count == draft->room) {
    int room = draft->room ? draft->room * 2 : 128;
    struct tt_draft_node *nodes = realloc(draft->nodes, (size_t)room * sizeof(*nodes));
    if (!nodes) return TT_FAIL(ncclSystemError, "no memory for %d nodes of a topology", room);
    draft->nodes = nodes;
    draft->room = room;
  }
  *node = draft->count++;
  draft->nodes[*node] = (struct tt_draft_node){
      .up = -1, .node = {.type = type, .host = host, .id = id, .line = draft->xml->elements[element].line}};
  return ncclSuccess;
}

ncclResult_t tt_draft_append(struct tt_draft *draft, int from, struct tt_draft_link link)
{
  struct tt_draft_node *n = &draft->nodes[from];
  if (n->nlinks == TT_TOPOLOGY_MOST_LINKS)
    return TT_FAIL(ncclInvalidUsage, "%s:%d: the device has more than %d links", draft->xml->source, n->node.line,
                   TT_TOPOLOGY_MOST_LINKS);
  if (n->nlinks == n->room) {
    int room = n->room ? n->room * 2 : 8;
    struct tt_draft_link *links = realloc(n->links, (size_t)room * sizeof(*links));
    if (!links) return TT_FAIL(ncclSystemError, "no memory for %d links of a topology", room);
    n->links = links;
    n->room = room;
  }
  n->links[n->nlinks++] = link;
  return ncclSuccess;
}

ncclResult_t tt_draft_connect(struct tt_draft *draft, int from, int to, enum tt_link_type type, float bandwidth)
{
  struct tt_draft_node *n = &draft->nodes[from];
  int i = 0;
  while (i < n->nlinks && (n->links[i].to != to || n->links[i].type != type)) i++;
  if (i == n->nlinks) TT_TRY(tt_draft_append(draft, from, (struct tt_draft_link){.to = to, .type = type}));
  struct tt_draft_link link = n->links[i];
  link.bandwidth += bandwidth;
  for (; i > 0 && n->links[i - 1].bandwidth < link.bandwidth; i--) n->links[i] = n->links[i - 1];
  n->links[i] = link;
  return ncclSuccess;
}

ncclResult_t tt_draft_connect_both(struct tt_draft *draft, int from, int to, enum tt_link_type type, float bandwidth)
{
  TT_TRY(tt_draft_connect(draft, from, to, type, bandwidth));
  return tt_draft_connect(draft, to, from, type, bandwidth);
}

int tt_draft_find(const struct tt_draft *draft, enum tt_node_type type, int host, uint64_t id)
{
  for (int i = 0; i < draft->count; i++) {
    const struct tt_node *node = &draft->nodes[i].node;
    if (node->type == type && node->host == host && node->id == id && !draft->nodes[i].gone) return i;
  }
  return -1;
}

ncclResult_t tt_draft_bus_id(const struct tt_xml *xml, int element, const char *attribute, uint64_t *id)
{
  const char *text;
  char where[512];
  int digits = 0;
  *id = 0;
  TT_TRY(tt_xml_need(xml, element, attribute, &text));
  for (const char *c = text; *c; c++) {
    if (*c == ':' || *c == '.') continue;
    if (!isxdigit((unsigned char)*c) || ++digits > 16) {
      digits = 0;
      break;
    }
    *id = *id << 4 | (uint64_t)(isdigit((unsigned char)*c) ? *c - '0' : tolower((unsigned char)*c) - 'a' + 10);
  }
  if (digits > 0) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage, "%s: %s is \"%.64s\"; it must be a PCI bus id like 0000:3b:00.0",
                 tt_xml_where(xml, element, where, sizeof(where)), attribute, text);
}

/* The links of a PCI device go down first, to its parent last: searches try them in this order. */
static void put_uplink_last(struct tt_draft_node *n, int up)
{
  int i = 0;
  while (i < n->nlinks && (n->links[i].to != up || n->links[i].type != TT_LINK_PCI)) i++;
  if (i == n->nlinks) return;
  struct tt_draft_link link = n->links[i];
  memmove(&n->links[i], &n->links[i + 1], (size_t)(n->nlinks - i - 1) * sizeof(link));
  n->links[n->nlinks - 1] = link;
}

void tt_draft_sort(struct tt_draft *draft)
{
  for (int n = 0; n < draft->count; n++)
    if (!draft->nodes[n].gone && draft->nodes[n].up >= 0) put_uplink_last(&draft->nodes[n], draft->nodes[n].up);
}

void tt_draft_free(struct tt_draft *draft)
{
  for (int n = 0; n < draft->count; n++) free(draft->nodes[n].links);
  free(draft->nodes);
  free(draft->node_of);
  free(draft->hosts);
}
