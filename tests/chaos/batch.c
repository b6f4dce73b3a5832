/* Random operations of one rank (mixture.c): draws a batch, enqueues it one by one, in a group or in a graph, and
 * compares every element with what the definition of the operation says. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mixture.h"

enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, GATHER, SCATTER, MESSAGES, KINDS };
static const char *const names[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce",
                                    "all-to-all", "gather",     "scatter",        "messages"};
enum { MOST_OPS = 4, MOST_MESSAGES = 10, GUARD = 64, GUARD_BYTE = 0xa5 };

/* Elements are small whole numbers, so that every type holds every result exactly. */
static const struct {
  ncclDataType_t type;
  size_t size;
} types[] = {{ncclInt8, 1}, {ncclUint8, 1}, {ncclInt32, 4}, {ncclInt64, 8}, {ncclFloat, 4}, {ncclDouble, 8}};

/* Where a piece of memory came from. */
enum origin { OF_WINDOW, OF_MALLOC, OF_POOL, OF_USER, OF_NCCL, OF_REGISTERED };

struct memory {
  enum origin origin;
  char *base, *data; /* data: between two guards */
  size_t bytes;
  void *handle;
  ncclComm_t comm;
};

struct message {
  int from, to;
  size_t count;
  struct memory in, out; /* at its ends */
};

struct op {
  uint32_t id;
  enum kind kind;
  struct comm *comm;
  int type, root, stream;
  ncclRedOp_t red;
  bool in_place, window;
  size_t count, in_count, out_count; /* in_count, out_count: of this rank; 0: it has no such buffer */
  struct memory in, out;             /* in place: in.data may lie in out */
  struct message messages[MOST_MESSAGES];
  int nmessages;
};

/* ---- Elements ---- */

static int value(const struct op *op, int rank, size_t index)
{
  uint32_t mixed = ((uint32_t)index * 2654435761u) ^ (op->id * 0x85ebca6bu + (uint32_t)rank * 0x9e3779b9u);
  mixed = (mixed ^ mixed >> 15) * 0x2c1b3c6du;
  return (int)(mixed >> 20) % (op->red == ncclProd ? 2 : 8) + (op->red == ncclProd);
}

static void put(const struct op *op, char *data, size_t index, int number)
{
  switch (types[op->type].type) {
  case ncclInt8:
  case ncclUint8:
    data[index] = (char)number;
    break;
  case ncclInt32:
    ((int32_t *)(void *)data)[index] = number;
    break;
  case ncclInt64:
    ((int64_t *)(void *)data)[index] = number;
    break;
  case ncclFloat:
    ((float *)(void *)data)[index] = (float)number;
    break;
  default:
    ((double *)(void *)data)[index] = number;
  }
}

static int reduced(const struct op *op, size_t index)
{
  int result = value(op, 0, index);
  for (int r = 1; r < op->comm->count; r++) {
    int next = value(op, r, index);
    if (op->red == ncclSum) result += next;
    if (op->red == ncclProd) result *= next;
    if (op->red == ncclMax && next > result) result = next;
    if (op->red == ncclMin && next < result) result = next;
  }
  return result;
}

/* What element `index` of the output is to be. */
static int expected(const struct op *op, size_t index)
{
  size_t mine = (size_t)op->comm->rank * op->count;
  switch (op->kind) {
  case ALL_REDUCE:
  case REDUCE:
    return reduced(op, index);
  case REDUCE_SCATTER:
    return reduced(op, mine + index);
  case BROADCAST:
    return value(op, op->root, index);
  case SCATTER:
    return value(op, op->root, mine + index);
  case ALL_TO_ALL:
    return value(op, (int)(index / op->count), mine + index % op->count);
  default:
    return value(op, (int)(index / op->count), index % op->count);
  }
}

/* ---- Memory ---- */

static struct memory get_memory(struct rank *rank, struct op *op, size_t count)
{
  struct memory m = {.origin = OF_WINDOW, .bytes = count * types[op->type].size + 2 * GUARD};
  size_t shift = 0;
  if (!op->window) {
    m.origin = OF_MALLOC + tt_mixture_draw(&rank->own, OF_REGISTERED);
    shift = types[op->type].size * tt_mixture_draw(&rank->own, 5);
  }
  switch (m.origin) {
  case OF_WINDOW:
    m.base = op->comm->window + op->comm->used;
    break;
  case OF_MALLOC:
    m.base = malloc(m.bytes + shift);
    break;
  case OF_POOL:
  case OF_USER:
    m.base = fake_user_alloc(rank->device, m.bytes + shift, m.origin == OF_USER, NULL);
    break;
  default:
    CHECK(rank, ncclMemAlloc((void **)&m.base, m.bytes + shift));
  }
  if (m.base == NULL) tt_mixture_end(rank, ENDED_ERROR, "no memory");
  m.comm = op->comm->comm;
  if (m.origin == OF_REGISTERED) CHECK(rank, ncclCommRegister(m.comm, m.base, m.bytes + shift, &m.handle));
  m.data = m.base + shift + GUARD;
  memset(m.data - GUARD, GUARD_BYTE, m.bytes);
  return m;
}

static void release(struct rank *rank, struct memory *m)
{
  if (m->base == NULL) return;
  if (m->origin == OF_REGISTERED) CHECK(rank, ncclCommDeregister(m->comm, m->handle));
  if (m->origin == OF_MALLOC) free(m->base);
  if (m->origin == OF_POOL || m->origin == OF_USER) fake_user_free(m->base);
  if (m->origin >= OF_NCCL) CHECK(rank, ncclMemFree(m->base));
}

/* ---- Drawing ---- */

static size_t draw_count(struct rank *rank)
{
  switch (tt_mixture_draw(&rank->common, 8)) {
  case 0:
    return 0;
  case 1:
    return 1;
  case 2:
  case 3:
    return tt_mixture_draw(&rank->common, 200);
  case 4:
    return 32768 + tt_mixture_draw(&rank->common, 3);
  case 5:
    return tt_mixture_draw(&rank->common, 80000);
  default:
    return tt_mixture_draw(&rank->common, 6000);
  }
}

static void count_buffers(struct op *op)
{
  size_t all = op->count * (size_t)op->comm->count;
  bool root = op->comm->rank == op->root;
  op->in_count = op->out_count = op->count;
  if (op->kind == ALL_GATHER || op->kind == ALL_TO_ALL || op->kind == GATHER) op->out_count = all;
  if (op->kind == REDUCE_SCATTER || op->kind == ALL_TO_ALL || op->kind == SCATTER) op->in_count = all;
  if (!root && (op->kind == GATHER || op->kind == REDUCE)) op->out_count = 0;
  if (!root && op->kind == SCATTER) op->in_count = 0;
  if (!root && (op->kind == GATHER || op->kind == SCATTER)) op->in_place = false;
  if (op->kind == BROADCAST && !root && !op->in_place) op->in_count = 0;
}

/* All ranks take as much of the window, so that a buffer lies at one offset of it on all. */
static void get_buffers(struct rank *rank, struct op *op)
{
  size_t size = types[op->type].size, own = (size_t)op->comm->rank * op->count * size;
  size_t room = (op->count * (size_t)op->comm->count * size + 2 * GUARD + 255) & ~(size_t)255;
  op->window = op->window && op->comm->window != NULL && op->comm->used + 2 * room <= WINDOW_BYTES;
  size_t end = op->comm->used + 2 * room;
  if (op->in_place && (op->in_count > op->out_count || op->kind == SCATTER)) {
    op->in = get_memory(rank, op, op->in_count);
    op->out = (struct memory){.data = op->in.data + (op->kind == REDUCE ? 0 : own)};
  } else {
    op->out = get_memory(rank, op, op->out_count);
    if (op->window) op->comm->used += room;
    if (op->in_place)
      op->in = (struct memory){.data = op->out.data + (op->in_count < op->out_count ? own : 0)};
    else
      op->in = get_memory(rank, op, op->in_count);
  }
  if (op->window) op->comm->used = end;
}

static void draw_messages(struct rank *rank, struct op *op)
{
  op->red = ncclSum;
  op->nmessages = 1 + (int)tt_mixture_draw(&rank->common, MOST_MESSAGES);
  for (int i = 0; i < op->nmessages; i++) {
    struct message *m = &op->messages[i];
    uint32_t from = tt_mixture_draw(&rank->common, 1000), to = tt_mixture_draw(&rank->common, 1000);
    m->count = draw_count(rank);
    if (op->comm->comm == NULL) continue;
    m->from = (int)from % op->comm->count;
    m->to = (int)to % op->comm->count;
    op->window = false;
    if (m->from == op->comm->rank) m->in = get_memory(rank, op, m->count);
    if (m->to == op->comm->rank) m->out = get_memory(rank, op, m->count);
  }
}

/* Draws alike on all ranks, whether or not they are in the communicator. */
static void draw_op(struct rank *rank, struct op *op, uint32_t id, bool may_be_in_place)
{
  static const ncclRedOp_t reds[] = {ncclSum, ncclProd, ncclMax, ncclMin};
  uint64_t *common = &rank->common;
  *op = (struct op){.id = id};
  op->kind = tt_mixture_draw(common, KINDS);
  op->comm = &rank->comms[tt_mixture_draw(common, 2) ? 0 : tt_mixture_draw(common, COMMS)];
  op->type = (int)tt_mixture_draw(common, sizeof types / sizeof *types);
  op->red = reds[tt_mixture_draw(common, 4)];
  op->in_place = tt_mixture_draw(common, 2) && may_be_in_place;
  op->window = tt_mixture_draw(common, 2);
  op->root = (int)tt_mixture_draw(common, 1000);
  op->stream = (int)tt_mixture_draw(common, STREAMS + 1);
  if (op->kind == MESSAGES) {
    draw_messages(rank, op);
    return;
  }
  op->count = draw_count(rank);
  if (op->comm->comm == NULL) return;
  op->root %= op->comm->count;
  count_buffers(op);
  get_buffers(rank, op);
}

/* ---- Doing ---- */

static void fill(const struct op *op)
{
  for (size_t i = 0; i < op->in_count; i++) put(op, op->in.data, i, value(op, op->comm->rank, i));
  for (int m = 0; m < op->nmessages; m++) {
    const struct message *message = &op->messages[m];
    if (message->in.base == NULL) continue;
    for (size_t i = 0; i < message->count; i++) put(op, message->in.data, i, value(op, m, i));
  }
}

/* A group's communicators are served in the order of their first calls in it, which is to be the same on all ranks: who
 * has no message sends itself none. */
static void enqueue_messages(struct rank *rank, struct op *op, void *stream)
{
  ncclDataType_t type = types[op->type].type;
  CHECK(rank, ncclGroupStart());
  CHECK(rank, ncclSend(NULL, 0, type, op->comm->rank, op->comm->comm, stream));
  CHECK(rank, ncclRecv(NULL, 0, type, op->comm->rank, op->comm->comm, stream));
  for (int i = 0; i < op->nmessages; i++) {
    struct message *m = &op->messages[i];
    if (m->in.base != NULL) CHECK(rank, ncclSend(m->in.data, m->count, type, m->to, op->comm->comm, stream));
    if (m->out.base != NULL) CHECK(rank, ncclRecv(m->out.data, m->count, type, m->from, op->comm->comm, stream));
  }
  CHECK(rank, ncclGroupEnd());
}

static void enqueue(struct rank *rank, struct op *op, void *stream)
{
  ncclDataType_t type = types[op->type].type;
  ncclComm_t comm = op->comm->comm;
  const void *in = op->in.data;
  void *out = op->out.data;
  size_t n = op->count;
  switch (op->kind) {
  case ALL_REDUCE:
    CHECK(rank, ncclAllReduce(in, out, n, type, op->red, comm, stream));
    break;
  case ALL_GATHER:
    CHECK(rank, ncclAllGather(in, out, n, type, comm, stream));
    break;
  case REDUCE_SCATTER:
    CHECK(rank, ncclReduceScatter(in, out, n, type, op->red, comm, stream));
    break;
  case BROADCAST:
    CHECK(rank, ncclBroadcast(in, out, n, type, op->root, comm, stream));
    break;
  case REDUCE:
    CHECK(rank, ncclReduce(in, out, n, type, op->red, op->root, comm, stream));
    break;
  case ALL_TO_ALL:
    CHECK(rank, ncclAlltoAll(in, out, n, type, comm, stream));
    break;
  case GATHER:
    CHECK(rank, ncclGather(in, out, n, type, op->root, comm, stream));
    break;
  case SCATTER:
    CHECK(rank, ncclScatter(in, out, n, type, op->root, comm, stream));
    break;
  default:
    enqueue_messages(rank, op, stream);
  }
}

/* ---- Checking ---- */

static void wrong(const struct rank *rank, const struct op *op, const char *what, size_t index, size_t count)
{
  char text[300];
  snprintf(text, sizeof text,
           "%s: %s %zu of %zu is wrong (communicator %d with %d ranks, %zu elements, type %d, operation %d, root %d%s; "
           "memory %d, %d)",
           names[op->kind], what, index, count, (int)(op->comm - rank->comms), op->comm->count, op->count,
           (int)types[op->type].type, (int)op->red, op->root, op->in_place ? ", in place" : "", (int)op->in.origin,
           (int)op->out.origin);
  tt_mixture_end(rank, ENDED_WRONG, text);
}

static void check_guards(const struct rank *rank, const struct op *op, const struct memory *m)
{
  if (m->base == NULL) return;
  for (size_t i = 0; i < GUARD; i++) {
    const char *before = m->data - GUARD, *after = before + m->bytes - GUARD;
    if ((unsigned char)before[i] != GUARD_BYTE) wrong(rank, op, "guard before a buffer, byte", i, GUARD);
    if ((unsigned char)after[i] != GUARD_BYTE) wrong(rank, op, "guard after a buffer, byte", i, GUARD);
  }
}

static bool holds(const struct op *op, const char *data, size_t index, int number)
{
  char one[8] = {0};
  size_t size = types[op->type].size;
  put(op, one, 0, number);
  return memcmp(data + index * size, one, size) == 0;
}

static void check(const struct rank *rank, const struct op *op)
{
  for (size_t i = 0; i < op->out_count; i++)
    if (!holds(op, op->out.data, i, expected(op, i))) wrong(rank, op, "element", i, op->out_count);
  for (size_t i = 0; i < op->in_count && !op->in_place; i++)
    if (!holds(op, op->in.data, i, value(op, op->comm->rank, i)))
      wrong(rank, op, "element of the input", i, op->in_count);
  check_guards(rank, op, &op->in);
  check_guards(rank, op, &op->out);
  for (int m = 0; m < op->nmessages; m++) {
    const struct message *message = &op->messages[m];
    check_guards(rank, op, &message->in);
    check_guards(rank, op, &message->out);
    if (message->out.base == NULL) continue;
    for (size_t i = 0; i < message->count; i++)
      if (!holds(op, message->out.data, i, value(op, m, i))) wrong(rank, op, "element of a message", i, message->count);
  }
}

/* So that a replay that does nothing is noticed. */
static void clear(struct op *op)
{
  size_t size = types[op->type].size;
  if (op->out.base != NULL) memset(op->out.data, 0x5a, op->out_count * size);
  for (int m = 0; m < op->nmessages; m++)
    if (op->messages[m].out.base != NULL) memset(op->messages[m].out.data, 0x5a, op->messages[m].count * size);
}

/* ---- Batches ---- */

static void *stream_of(const struct rank *rank, int number)
{
  return number < STREAMS ? rank->streams[number] : NULL;
}

static void finish(struct rank *rank)
{
  bool ended = true;
  for (int s = 0; s <= STREAMS; s++) ended = fake_stream_wait(stream_of(rank, s), PATIENCE_MS) && ended;
  for (int c = 0; c < COMMS; c++) {
    ncclResult_t result = ncclSuccess;
    if (rank->comms[c].comm == NULL) continue;
    CHECK(rank, ncclCommGetAsyncError(rank->comms[c].comm, &result));
    tt_mixture_check(rank, "the works", result);
  }
  if (!ended) tt_mixture_end(rank, ENDED_LATE, "the streams do not come to their ends");
}

static void enqueue_all(struct rank *rank, struct op *ops, int count, bool group, bool captured)
{
  if (group) CHECK(rank, ncclGroupStart());
  for (int i = 0; i < count; i++) {
    int stream = captured ? ops[i].stream % STREAMS : ops[i].stream;
    if (ops[i].comm->comm != NULL) enqueue(rank, &ops[i], stream_of(rank, stream));
  }
  if (group) CHECK(rank, ncclGroupEnd());
}

static void replay(struct rank *rank, struct op *ops, int count, bool group, int replays)
{
  fake_capture_begin(rank->streams[0]);
  for (int s = 1; s < STREAMS; s++) fake_stream_join(rank->streams[s], rank->streams[0]);
  enqueue_all(rank, ops, count, group, true);
  struct fake_graph *graph = fake_capture_end(rank->streams[0]);
  for (int r = 0; r < replays; r++) {
    if (r > 0) {
      finish(rank);
      for (int i = 0; i < count; i++)
        if (ops[i].comm->comm != NULL) check(rank, &ops[i]), clear(&ops[i]);
    }
    fake_graph_replay(graph, rank->streams[r % STREAMS]);
  }
  finish(rank);
  fake_graph_destroy(graph);
}

void tt_mixture_batch(struct rank *rank)
{
  struct op ops[MOST_OPS];
  int count = 1 + (int)tt_mixture_draw(&rank->common, MOST_OPS), mode = (int)tt_mixture_draw(&rank->common, 4);
  int replays = mode >= 2 ? 1 + (int)tt_mixture_draw(&rank->common, 3) : 0;
  for (int c = 0; c < COMMS; c++) rank->comms[c].used = 0;
  for (int i = 0; i < count; i++) {
    draw_op(rank, &ops[i], (uint32_t)(rank->batch * MOST_OPS + i), replays < 2);
    if (ops[i].comm->comm != NULL) fill(&ops[i]);
  }
  if (replays > 0)
    replay(rank, ops, count, mode == 3, replays);
  else
    enqueue_all(rank, ops, count, mode == 1, false);
  finish(rank);
  for (int i = 0; i < count; i++) {
    if (ops[i].comm->comm == NULL) continue;
    check(rank, &ops[i]);
    release(rank, &ops[i].in);
    release(rank, &ops[i].out);
    for (int m = 0; m < ops[i].nmessages; m++) {
      release(rank, &ops[i].messages[m].in);
      release(rank, &ops[i].messages[m].out);
    }
  }
}
