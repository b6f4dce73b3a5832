/* Collectives with data that is known everywhere. */
#include "collectives.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GUARD 0x5eadbeefu

void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, ncclGetLastError(NULL));
}

static uint32_t value(const struct operation *o, int rank, size_t block, size_t i)
{
  return (uint32_t)rank * 2654435761u + (uint32_t)block * 40503u + (uint32_t)i * 97u + o->seed;
}

static size_t in_blocks(const struct operation *o)
{
  if (o->kind == SCATTER) return o->rank == o->root ? (size_t)o->n : 0;
  if (o->kind == BROADCAST) return o->rank == o->root;
  return o->kind == ALL_TO_ALL || o->kind == REDUCE_SCATTER ? (size_t)o->n : 1;
}

static size_t out_blocks(const struct operation *o)
{
  if (o->kind == GATHER) return o->rank == o->root ? (size_t)o->n : 0;
  if (o->kind == REDUCE) return o->rank == o->root;
  return o->kind == ALL_TO_ALL || o->kind == ALL_GATHER ? (size_t)o->n : 1;
}

size_t operation_room(const struct operation *o)
{
  return (in_blocks(o) > out_blocks(o) ? in_blocks(o) : out_blocks(o)) * o->count + 1;
}

void operation_open(struct operation *o)
{
  o->in = malloc((in_blocks(o) * o->count + 1) * sizeof *o->in);
  o->out = malloc((out_blocks(o) * o->count + 1) * sizeof *o->out);
  ck_assert(o->in != NULL && o->out != NULL);
  operation_fill(o, o->seed);
}

void operation_fill(struct operation *o, uint32_t seed)
{
  o->seed = seed;
  for (size_t b = 0; b < in_blocks(o); b++)
    for (size_t i = 0; i < o->count; i++) o->in[b * o->count + i] = value(o, o->rank, b, i);
  memset(o->out, 0x33, out_blocks(o) * o->count * sizeof *o->out);
  o->out[out_blocks(o) * o->count] = GUARD;
}

ncclResult_t operation_call(const struct operation *o, ncclComm_t comm, void *stream)
{
  cudaStream_t s = stream;
  int next = (o->rank + 1) % o->n, before = (o->rank + o->n - 1) % o->n;
  switch (o->kind) {
  case ALL_REDUCE:
    return ncclAllReduce(o->in, o->out, o->count, ncclUint32, ncclSum, comm, s);
  case ALL_GATHER:
    return ncclAllGather(o->in, o->out, o->count, ncclUint32, comm, s);
  case REDUCE_SCATTER:
    return ncclReduceScatter(o->in, o->out, o->count, ncclUint32, ncclSum, comm, s);
  case BROADCAST:
    return ncclBroadcast(o->in, o->out, o->count, ncclUint32, o->root, comm, s);
  case REDUCE:
    return ncclReduce(o->in, o->out, o->count, ncclUint32, ncclSum, o->root, comm, s);
  case ALL_TO_ALL:
    return ncclAlltoAll(o->in, o->out, o->count, ncclUint32, comm, s);
  case GATHER:
    return ncclGather(o->in, o->out, o->count, ncclUint32, o->root, comm, s);
  case SCATTER:
    return ncclScatter(o->in, o->out, o->count, ncclUint32, o->root, comm, s);
  default:
    ok(ncclGroupStart());
    ok(ncclSend(o->in, o->count, ncclUint32, next, comm, s));
    ok(ncclRecv(o->out, o->count, ncclUint32, before, comm, s));
    return ncclGroupEnd();
  }
}

static uint32_t expected(const struct operation *o, size_t block, size_t i)
{
  uint32_t sum = 0;
  switch (o->kind) {
  case ALL_REDUCE:
  case REDUCE:
    for (int r = 0; r < o->n; r++) sum += value(o, r, 0, i);
    return sum;
  case REDUCE_SCATTER:
    for (int r = 0; r < o->n; r++) sum += value(o, r, (size_t)o->rank, i);
    return sum;
  case BROADCAST:
    return value(o, o->root, 0, i);
  case ALL_TO_ALL:
    return value(o, (int)block, (size_t)o->rank, i);
  case SCATTER:
    return value(o, o->root, (size_t)o->rank, i);
  case SEND_RECV:
    return value(o, (o->rank + o->n - 1) % o->n, 0, i);
  default:
    return value(o, (int)block, 0, i);
  }
}

/* Plain comparisons: check notes each of its own in a file. */
void operation_check(const struct operation *o)
{
  size_t out = out_blocks(o);
  for (size_t b = 0; b < out; b++)
    for (size_t i = 0; i < o->count; i++)
      if (o->out[b * o->count + i] != expected(o, b, i))
        ck_abort_msg("kind %d, rank %d of %d, root %d, count %zu: block %zu, element %zu is %x", o->kind, o->rank, o->n,
                     o->root, o->count, b, i, o->out[b * o->count + i]);
  ck_assert_uint_eq(o->out[out * o->count], GUARD);
}

void operation_close(struct operation *o)
{
  free(o->in);
  free(o->out);
}

uint64_t now_ms(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
