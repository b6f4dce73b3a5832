/* Shapes as bytes, little-endian, for other machines:
 *
 *     "TTsh", version (1 byte), ranks (2)
 *     for each kind: pattern, crossnic, channels, same channels, type inside, type outside (1 each),
 *                    bandwidth inside, bandwidth outside, latency (4 each, IEEE)
 *                    for each channel: a head (2), or
 *                                      the number of an earlier equal channel (1), or
 *                                      255 (1) and the order (1 a rank; 2 where there are more than 256)
 *
 * Equal shapes have equal bytes. */
#include <string.h>
#include "base/check.h"
#include "base/hash.h"
#include "graph/join_internal.h"

#define OWN 255

static const uint8_t magic[] = {'T', 'T', 's', 'h', 1};

struct bytes {
  uint8_t *out;      /* NULL: only counts */
  const uint8_t *in; /* for reading */
  size_t at, size;
  bool over; /* more was read than there is */
};

static void put(struct bytes *b, uint32_t value, int width)
{
  for (int i = 0; i < width; i++, b->at++)
    if (b->out) b->out[b->at] = (uint8_t)(value >> (8 * i));
}

static uint32_t get(struct bytes *b, int width)
{
  uint32_t value = 0;
  if (b->size - b->at < (size_t)width) {
    b->over = true;
    return 0;
  }
  for (int i = 0; i < width; i++, b->at++) value |= (uint32_t)b->in[b->at] << (8 * i);
  return value;
}

static void put_float(struct bytes *b, float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  put(b, bits, 4);
}

static float get_float(struct bytes *b)
{
  uint32_t bits = get(b, 4);
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static void put_channel(struct bytes *b, const struct tt_join_graph *graph, int channel, int nranks)
{
  const uint16_t *order = &graph->order[channel * nranks];
  for (int c = 0; c < channel; c++)
    if (memcmp(&graph->order[c * nranks], order, (size_t)nranks * sizeof(*order)) == 0) {
      put(b, (uint32_t)c, 1);
      return;
    }
  put(b, OWN, 1);
  for (int i = 0; i < nranks; i++) put(b, order[i], nranks > 256 ? 2 : 1);
}

size_t tt_join_shape_pack(const struct tt_join_shape *shape, uint8_t *out)
{
  struct bytes b = {.out = out};
  for (size_t i = 0; i < sizeof(magic); i++) put(&b, magic[i], 1);
  put(&b, (uint32_t)shape->nranks, 2);
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    const struct tt_join_graph *graph = &shape->graphs[k];
    put(&b, graph->pattern, 1);
    put(&b, (uint32_t)graph->cross_nic, 1);
    put(&b, (uint32_t)graph->nchannels, 1);
    put(&b, graph->same_channels, 1);
    put(&b, graph->type_intra, 1);
    put(&b, graph->type_inter, 1);
    put_float(&b, graph->bandwidth_intra);
    put_float(&b, graph->bandwidth_inter);
    put_float(&b, graph->latency_inter);
    for (int c = 0; c < graph->nchannels; c++)
      if (tt_join_has_heads(k))
        put(&b, graph->order[c], 2);
      else
        put_channel(&b, graph, c, shape->nranks);
  }
  return b.at;
}

static void get_graph(struct bytes *b, struct tt_join_graph *graph)
{
  graph->pattern = (enum tt_graph_pattern)get(b, 1);
  graph->cross_nic = (int)get(b, 1);
  graph->nchannels = (int)get(b, 1);
  graph->same_channels = get(b, 1) != 0;
  graph->type_intra = (enum tt_path_type)get(b, 1);
  graph->type_inter = (enum tt_path_type)get(b, 1);
  graph->bandwidth_intra = get_float(b);
  graph->bandwidth_inter = get_float(b);
  graph->latency_inter = get_float(b);
}

/* Without `order` the channel is only stepped over. False: it names a later one. */
static bool get_channel(struct bytes *b, bool head, int channel, int nranks, uint16_t *order)
{
  if (head) {
    uint16_t number = (uint16_t)get(b, 2);
    if (order) order[channel] = number;
    return true;
  }
  int same = (int)get(b, 1);
  if (same != OWN) {
    if (same >= channel) return false;
    if (order) memcpy(&order[channel * nranks], &order[same * nranks], (size_t)nranks * sizeof(*order));
    return true;
  }
  for (int i = 0; i < nranks && !b->over; i++) {
    uint16_t number = (uint16_t)get(b, nranks > 256 ? 2 : 1);
    if (order) order[channel * nranks + i] = number;
  }
  return true;
}

/* Reads all of it; into `shape`, or only how many channels there are. NULL: good. */
static const char *get_shape(struct bytes *b, int *nranks, int nchannels[TT_GRAPH_KINDS], struct tt_join_shape *shape)
{
  b->at = 0;
  for (size_t i = 0; i < sizeof(magic); i++)
    if (get(b, 1) != magic[i]) return "they are of another release";
  *nranks = (int)get(b, 2);
  if (*nranks < 1 || *nranks > TT_JOIN_MOST_LOCAL) return "the number of ranks is wrong";
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    struct tt_join_graph head = {0}, *graph = shape ? &shape->graphs[k] : &head;
    get_graph(b, graph);
    nchannels[k] = graph->nchannels;
    if (b->over || graph->nchannels > TT_GRAPH_MOST_CHANNELS) return "the number of channels is wrong";
    for (int c = 0; c < graph->nchannels; c++)
      if (!get_channel(b, tt_join_has_heads(k), c, *nranks, graph->order)) return "a channel names a later one";
  }
  return b->over || b->at != b->size ? "their number is wrong" : NULL;
}

ncclResult_t tt_join_shape_unpack(const uint8_t *bytes, size_t size, struct tt_join_shape **out)
{
  struct bytes b = {.in = bytes, .size = size};
  int nranks, kind, nchannels[TT_GRAPH_KINDS];
  struct tt_join_shape *shape = NULL;
  *out = NULL;
  const char *why = get_shape(&b, &nranks, nchannels, NULL);
  if (why) return TT_FAIL(ncclInvalidUsage, "%zu bytes that describe a machine's graphs cannot be read: %s", size, why);
  TT_TRY(tt_join_shape_room(nranks, nchannels, &shape));
  get_shape(&b, &nranks, nchannels, shape);
  why = tt_join_shape_check(shape, &kind);
  if (why) {
    tt_join_shape_free(shape);
    return TT_FAIL(ncclInvalidUsage, "a machine's %s graph, as it came, %s", tt_graph_name((enum tt_graph_kind)kind),
                   why);
  }
  shape->bytes = size;
  shape->digest = tt_hash(bytes, size);
  *out = shape;
  return ncclSuccess;
}
