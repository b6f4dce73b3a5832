/* See fake_wires.h. */
#include "fake_wires.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS 256
#define REGIONS 512

struct wire {
  bool ends[2];      /* open: receiving, sending */
  long posted, sent; /* requests so far */
};

/* The plugin's comm: an end of a wire. */
struct end {
  struct wire *wire;
  bool send;
};

struct region {
  struct end *end;
  char *data;
  size_t bytes;
};

struct buffer {
  char *data;
  size_t room, size;
  int tag;
  struct region *region;
  bool matched, full;
};

struct request {
  bool used, done;
  struct end *end;
  long number; /* among the receives or sends of its wire */
  int n;
  struct buffer buffers[TT_NET_MAX_RECVS]; /* of a send: one */
  struct request *to;                      /* of a send: the receive that it is matched with, and its buffer */
  int to_buffer;
};

static struct {
  struct wires_mood mood;
  struct wires_count count;
  struct region *regions[REGIONS];
  int dangling; /* regions deregistered while in use, which only who closes the comm next may do */
  struct request requests[REQUESTS];
} net;

struct tt_net *wires_net(void)
{
  return (struct tt_net *)(void *)&net;
}

void wires_reset(const struct wires_mood *mood)
{
  memset(&net, 0, sizeof net);
  net.mood = *mood;
}

void wires_take_all(void)
{
  net.mood.null_percent = 0;
}

struct wires_count wires_counts(void)
{
  return net.count;
}

static void fault(const char *what)
{
  fprintf(stderr, "wires: %s\n", what);
  net.count.faults++;
}

static bool chance(int percent)
{
  return (int)(rand_r(&net.mood.seed) % 100u) < percent;
}

void wires_open(void **send_comm, void **recv_comm)
{
  struct wire *wire = calloc(1, sizeof *wire);
  void **comms[2] = {recv_comm, send_comm};
  for (int e = 0; e < 2; e++) {
    struct end *end = malloc(sizeof *end);
    *end = (struct end){wire, e == 1};
    wire->ends[e] = true;
    *comms[e] = end;
    net.count.open++;
  }
}

struct tt_net *tt_net_retain(struct tt_net *any)
{
  return any;
}

ncclResult_t tt_net_close(struct tt_net *any)
{
  (void)any;
  return ncclSuccess;
}

int tt_net_version(const struct tt_net *any)
{
  (void)any;
  return 12;
}

const char *tt_net_name(const struct tt_net *any)
{
  (void)any;
  return "Wires";
}

static int find_region(const struct region *region)
{
  int i = 0;
  while (i < REGIONS && net.regions[i] != region) i++;
  return i;
}

ncclResult_t tt_net_reg_mr(struct tt_net *any, void *comm, void *data, size_t bytes, int type, void **mhandle)
{
  (void)any, (void)type;
  int i = find_region(NULL);
  *mhandle = NULL;
  if (i == REGIONS) return ncclSystemError;
  net.regions[i] = malloc(sizeof(struct region));
  *net.regions[i] = (struct region){comm, data, bytes};
  *mhandle = net.regions[i];
  net.count.registered++;
  return ncclSuccess;
}

static bool in_use(const struct region *region)
{
  for (int i = 0; i < REQUESTS; i++)
    for (int b = 0; net.requests[i].used && b < net.requests[i].n; b++)
      if (net.requests[i].buffers[b].region == region && !net.requests[i].done) return true;
  return false;
}

ncclResult_t tt_net_dereg_mr(struct tt_net *any, void *comm, void *mhandle)
{
  (void)any;
  int i = find_region(mhandle);
  if (i == REGIONS || net.regions[i]->end != comm) {
    fault("deregistered what was not registered");
    return ncclInternalError;
  }
  if (in_use(mhandle)) {
    net.regions[i]->end = NULL;
    net.dangling++;
    return ncclSuccess;
  }
  free(net.regions[i]);
  net.regions[i] = NULL;
  net.count.registered--;
  return ncclSuccess;
}

static struct request *new_request(struct end *end, int n)
{
  int i = 0;
  while (i < REQUESTS && net.requests[i].used) i++;
  if (i == REQUESTS) {
    fault("too many requests");
    abort();
  }
  net.requests[i] = (struct request){.used = true, .end = end, .n = n};
  return &net.requests[i];
}

static void fill(struct buffer *buffer, const struct end *end, char *data, size_t bytes, int tag, void *mhandle)
{
  int i = find_region(mhandle);
  if (i == REGIONS || net.regions[i]->end != end || data < net.regions[i]->data ||
      data + bytes > net.regions[i]->data + net.regions[i]->bytes)
    fault("memory is not registered");
  *buffer = (struct buffer){.data = data, .room = bytes, .tag = tag, .region = mhandle};
}

ncclResult_t tt_net_isend(struct tt_net *any, void *comm, void *data, size_t bytes, int tag, void *mhandle,
                          void *phandle, void **request)
{
  (void)any, (void)phandle;
  *request = NULL;
  if (chance(net.mood.null_percent)) return ncclSuccess;
  struct request *send = new_request(comm, 1);
  send->number = send->end->wire->sent++;
  fill(&send->buffers[0], comm, data, bytes, tag, mhandle);
  net.count.sends++;
  *request = send;
  return ncclSuccess;
}

ncclResult_t tt_net_irecv(struct tt_net *any, void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles,
                          void **phandles, void **request)
{
  (void)any, (void)phandles;
  struct end *end = comm;
  if (*request) fault("irecv with a request");
  *request = NULL;
  if (n < 1 || n > net.mood.max_recvs) fault("a group is too large");
  if (chance(net.mood.null_percent)) return ncclSuccess;
  struct request *recv = new_request(comm, n);
  recv->number = end->wire->posted++;
  for (int i = 0; i < n; i++) {
    fill(&recv->buffers[i], comm, data[i], bytes[i], tags[i], mhandles[i]);
    for (int k = 0; k < i; k++)
      if (tags[k] == tags[i]) fault("two buffers of a group have one tag");
  }
  net.count.recvs++;
  net.count.grouped += n > 1;
  net.count.messages += n;
  if (n > net.count.largest) net.count.largest = n;
  *request = recv;
  return ncclSuccess;
}

/* The oldest receive of the wire that has a free buffer of the tag. */
static void match(struct request *send)
{
  struct request *oldest = NULL;
  for (int i = 0; i < REQUESTS; i++) {
    struct request *recv = &net.requests[i];
    if (!recv->used || recv->done || recv->end->send || recv->end->wire != send->end->wire) continue;
    if (oldest && oldest->number < recv->number) continue;
    for (int b = 0; b < recv->n; b++) {
      if (recv->buffers[b].matched || recv->buffers[b].tag != send->buffers[0].tag) continue;
      oldest = recv;
      send->to_buffer = b;
      break;
    }
  }
  send->to = oldest;
  if (!oldest) return;
  struct buffer *buffer = &oldest->buffers[send->to_buffer];
  buffer->matched = true;
  buffer->size = send->buffers[0].room;
  if (buffer->size > buffer->room) fault("a message is larger than its buffer");
}

static bool earlier_waits(const struct request *send)
{
  for (int i = 0; i < REQUESTS; i++) {
    const struct request *other = &net.requests[i];
    if (other->used && other != send && other->end == send->end && !other->to && !other->done &&
        other->buffers[0].tag == send->buffers[0].tag && other->number < send->number)
      return true;
  }
  return false;
}

/* What a send does when it gets its chance: finds its receive, later copies, at once for both. */
static void move_send(struct request *send)
{
  if (!send->to) {
    if (!earlier_waits(send)) match(send);
    return;
  }
  struct buffer *buffer = &send->to->buffers[send->to_buffer];
  memcpy(buffer->data, send->buffers[0].data, buffer->size);
  buffer->full = true;
  send->done = true;
  bool all = true;
  for (int b = 0; b < send->to->n; b++) all = all && send->to->buffers[b].full;
  send->to->done = all;
}

ncclResult_t tt_net_test(struct tt_net *any, void *opaque, int *done, int *bytes)
{
  (void)any;
  struct request *request = opaque;
  *done = 0;
  if (!request->used) fault("tested a request that is gone");
  if (net.dangling) fault("memory in use was deregistered");
  int start = rand_r(&net.mood.seed) % REQUESTS;
  for (int k = 0; k < REQUESTS; k++) {
    struct request *send = &net.requests[(start + k) % REQUESTS];
    if (send->used && !send->done && send->end->send && !chance(net.mood.slow_percent)) move_send(send);
  }
  if (!request->done || chance(net.mood.slow_percent)) return ncclSuccess;
  *done = 1;
  for (int b = 0; b < request->n; b++)
    bytes[b] = (int)(request->end->send ? request->buffers[b].room : request->buffers[b].size);
  request->used = false;
  return ncclSuccess;
}

static ncclResult_t close_end(struct end *end, bool send)
{
  if (end->send != send || !end->wire->ends[send]) fault("closed the wrong end");
  for (int i = 0; i < REQUESTS; i++) {
    struct request *request = &net.requests[i];
    if (request->used && request->end->wire == end->wire && (request->end == end || request->to)) request->used = false;
  }
  for (int i = 0; i < REGIONS; i++) {
    if (!net.regions[i] || (net.regions[i]->end != end && net.regions[i]->end != NULL)) continue;
    if (net.regions[i]->end == end) fault("closed with memory registered");
    if (net.regions[i]->end == NULL) net.dangling--;
    free(net.regions[i]);
    net.regions[i] = NULL;
    net.count.registered--;
  }
  end->wire->ends[send] = false;
  if (!end->wire->ends[!send]) free(end->wire);
  free(end);
  net.count.open--;
  return ncclSuccess;
}

ncclResult_t tt_net_close_send(struct tt_net *any, void *comm)
{
  (void)any;
  return close_end(comm, true);
}

ncclResult_t tt_net_close_recv(struct tt_net *any, void *comm)
{
  (void)any;
  return close_end(comm, false);
}

/* Nothing here lies in a device's memory. */
ncclResult_t tt_net_reg_mr_dmabuf(struct tt_net *self, void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                  int fd, void **mhandle)
{
  (void)self, (void)comm, (void)data, (void)bytes, (void)type, (void)offset, (void)fd, (void)mhandle;
  fault("a dma-buf");
  return ncclInternalError;
}

ncclResult_t tt_net_iflush(struct tt_net *self, void *comm, int n, void **data, int *bytes, void **mhandles,
                           void **request)
{
  (void)self, (void)comm, (void)n, (void)data, (void)bytes, (void)mhandles, (void)request;
  fault("a flush");
  return ncclInternalError;
}
