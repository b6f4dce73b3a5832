/* One table row a collective; see collective.h. */
#include "collective.h"

#include <ctype.h>
#include <string.h>
#include "types.h"

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    ncclResult_t result_ = (call);                                                                                     \
    if (result_ != ncclSuccess) return result_;                                                                        \
  } while (0)

/* Shapes. "elements" is the size of the larger buffer, as nccl-tests counts it. */
static void shape_equal(struct perf_shape *shape, size_t elements, int rank, int nranks)
{
  (void)rank, (void)nranks;
  *shape = (struct perf_shape){.count = elements, .send = elements, .recv = elements};
}

static void shape_gather(struct perf_shape *shape, size_t elements, int rank, int nranks)
{
  size_t count = elements / nranks;
  *shape = (struct perf_shape){.count = count, .send = count, .recv = count * nranks, .send_offset = rank * count};
}

static void shape_scatter(struct perf_shape *shape, size_t elements, int rank, int nranks)
{
  size_t count = elements / nranks;
  *shape = (struct perf_shape){.count = count, .send = count * nranks, .recv = count, .recv_offset = rank * count};
}

static void shape_exchange(struct perf_shape *shape, size_t elements, int rank, int nranks)
{
  size_t count = elements / nranks;
  (void)rank;
  *shape = (struct perf_shape){.count = count, .send = count * nranks, .recv = count * nranks};
}

/* Expected outputs. */
static bool segment_all_reduce(struct perf_segment *segment, int i, const struct perf_shape *shape, int rank,
                               int nranks, int root)
{
  (void)rank, (void)nranks, (void)root;
  *segment = (struct perf_segment){0, shape->recv, PERF_REDUCED, 0};
  return i == 0;
}

static bool segment_reduce(struct perf_segment *segment, int i, const struct perf_shape *shape, int rank, int nranks,
                           int root)
{
  (void)nranks;
  *segment = (struct perf_segment){0, shape->recv, rank == root ? PERF_REDUCED : PERF_UNTOUCHED, 0};
  return i == 0;
}

static bool segment_reduce_scatter(struct perf_segment *segment, int i, const struct perf_shape *shape, int rank,
                                   int nranks, int root)
{
  (void)nranks, (void)root;
  *segment = (struct perf_segment){0, shape->recv, PERF_REDUCED, rank * shape->count};
  return i == 0;
}

static bool segment_broadcast(struct perf_segment *segment, int i, const struct perf_shape *shape, int rank, int nranks,
                              int root)
{
  (void)rank, (void)nranks;
  *segment = (struct perf_segment){0, shape->recv, root, 0};
  return i == 0;
}

static bool segment_all_gather(struct perf_segment *segment, int i, const struct perf_shape *shape, int rank,
                               int nranks, int root)
{
  (void)rank, (void)root;
  *segment = (struct perf_segment){i * shape->count, shape->count, i, 0};
  return i < nranks;
}

static bool segment_gather(struct perf_segment *segment, int i, const struct perf_shape *shape, int rank, int nranks,
                           int root)
{
  if (rank == root) return segment_all_gather(segment, i, shape, rank, nranks, root);
  *segment = (struct perf_segment){0, shape->recv, PERF_UNTOUCHED, 0};
  return i == 0;
}

static bool segment_scatter(struct perf_segment *segment, int i, const struct perf_shape *shape, int rank, int nranks,
                            int root)
{
  (void)nranks;
  *segment = (struct perf_segment){0, shape->recv, root, rank * shape->count};
  return i == 0;
}

static bool segment_alltoall(struct perf_segment *segment, int i, const struct perf_shape *shape, int rank, int nranks,
                             int root)
{
  (void)root;
  *segment = (struct perf_segment){i * shape->count, shape->count, i, rank * shape->count};
  return i < nranks;
}

static bool segment_sendrecv(struct perf_segment *segment, int i, const struct perf_shape *shape, int rank, int nranks,
                             int root)
{
  (void)root;
  *segment = (struct perf_segment){0, shape->recv, (rank - 1 + nranks) % nranks, 0};
  return i == 0;
}

/* Bus factors, as nccl-tests' doc/PERFORMANCE.md derives them. */
static double factor_all_reduce(int nranks)
{
  return 2.0 * (nranks - 1) / nranks;
}

static double factor_exchange(int nranks)
{
  return (double)(nranks - 1) / nranks;
}

static double factor_one(int nranks)
{
  (void)nranks;
  return 1.0;
}

/* Calls. */
static ncclResult_t run_all_reduce(const struct perf_call *c)
{
  return ncclAllReduce(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
}

static ncclResult_t run_all_gather(const struct perf_call *c)
{
  return ncclAllGather(c->send, c->recv, c->count, c->type, c->comm, c->stream);
}

static ncclResult_t run_reduce_scatter(const struct perf_call *c)
{
  return ncclReduceScatter(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
}

static ncclResult_t run_broadcast(const struct perf_call *c)
{
  return ncclBroadcast(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

static ncclResult_t run_reduce(const struct perf_call *c)
{
  return ncclReduce(c->send, c->recv, c->count, c->type, c->op, c->root, c->comm, c->stream);
}

static ncclResult_t run_gather(const struct perf_call *c)
{
  return ncclGather(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

static ncclResult_t run_scatter(const struct perf_call *c)
{
  return ncclScatter(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

static size_t type_bytes(ncclDataType_t type)
{
  int i = 0;
  while (perf_type_at(i)->type != type) i++;
  return (size_t)perf_type_at(i)->bytes;
}

static ncclResult_t run_alltoall(const struct perf_call *c)
{
  size_t bytes = c->count * type_bytes(c->type);
  TRY(ncclGroupStart());
  for (int peer = 0; peer < c->nranks; peer++) {
    TRY(ncclSend((const char *)c->send + peer * bytes, c->count, c->type, peer, c->comm, c->stream));
    TRY(ncclRecv((char *)c->recv + peer * bytes, c->count, c->type, peer, c->comm, c->stream));
  }
  return ncclGroupEnd();
}

static ncclResult_t run_sendrecv(const struct perf_call *c)
{
  TRY(ncclGroupStart());
  TRY(ncclSend(c->send, c->count, c->type, (c->rank + 1) % c->nranks, c->comm, c->stream));
  TRY(ncclRecv(c->recv, c->count, c->type, (c->rank - 1 + c->nranks) % c->nranks, c->comm, c->stream));
  return ncclGroupEnd();
}

static const struct perf_collective collectives[] = {
    {"all_reduce", true, false, true, shape_equal, segment_all_reduce, factor_all_reduce, run_all_reduce},
    {"all_gather", false, false, true, shape_gather, segment_all_gather, factor_exchange, run_all_gather},
    {"reduce_scatter", true, false, true, shape_scatter, segment_reduce_scatter, factor_exchange, run_reduce_scatter},
    {"broadcast", false, true, true, shape_equal, segment_broadcast, factor_one, run_broadcast},
    {"reduce", true, true, true, shape_equal, segment_reduce, factor_one, run_reduce},
    {"gather", false, true, false, shape_gather, segment_gather, factor_exchange, run_gather},
    {"scatter", false, true, false, shape_scatter, segment_scatter, factor_exchange, run_scatter},
    {"alltoall", false, false, false, shape_exchange, segment_alltoall, factor_exchange, run_alltoall},
    {"sendrecv", false, false, false, shape_equal, segment_sendrecv, factor_one, run_sendrecv},
};

const struct perf_collective *perf_collective_at(int i)
{
  return i >= 0 && i < (int)(sizeof(collectives) / sizeof(collectives[0])) ? &collectives[i] : NULL;
}

/* Lower-case letters of `name` without separators and without the suffixes of nccl-tests' program names. */
static void plain(char *out, size_t size, const char *name)
{
  size_t n = 0;
  for (; *name && n + 1 < size; name++)
    if (*name != '_' && *name != '-') out[n++] = (char)tolower((unsigned char)*name);
  out[n] = 0;
  static const char *const suffixes[] = {"mpi", "perf"};
  for (size_t i = 0; i < 2; i++) {
    size_t length = strlen(suffixes[i]);
    if (n > length && !strcmp(out + n - length, suffixes[i])) out[n -= length] = 0;
  }
}

const struct perf_collective *perf_collective_find(const char *name)
{
  char wanted[64], known[64];
  plain(wanted, sizeof(wanted), name);
  for (int i = 0; perf_collective_at(i); i++) {
    plain(known, sizeof(known), perf_collective_at(i)->name);
    if (!strcmp(wanted, known)) return perf_collective_at(i);
  }
  return NULL;
}
