/* Host streams as the user has them, and the joining of a group's streams. */
#include "api/host_stream.h"

#include <stdlib.h>
#include "api/check.h"
#include "base/check.h"
#include "plan/stream.h"
#include "tutti.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT ncclResult_t tuttiStreamCreate(cudaStream_t *stream)
{
  TT_TRY(tt_api_check_pointer("tuttiStreamCreate", "stream", stream));
  return tt_host_stream_create((void **)stream);
}

EXPORT ncclResult_t tuttiStreamDestroy(cudaStream_t stream)
{
  return stream == NULL ? ncclSuccess : tt_host_stream_destroy("tuttiStreamDestroy", stream);
}

EXPORT ncclResult_t tuttiStreamSynchronize(cudaStream_t stream)
{
  return stream == NULL ? ncclSuccess : tt_host_stream_synchronize("tuttiStreamSynchronize", stream);
}

EXPORT ncclResult_t tuttiStreamQuery(cudaStream_t stream)
{
  return stream == NULL ? ncclSuccess : tt_host_stream_query("tuttiStreamQuery", stream);
}

/* ---- Joining ---- */

/* A communicator's use of a stream in the group. */
struct use {
  void *stream;
  int comm;
};

/* The communicators of a group, and which of them belong together: `root` leads to the first of those. */
struct join {
  struct ncclComm **comms;
  int *root;
  struct use *uses;
  int ncomms, nuses;
};

static int find_root(const struct join *join, int comm)
{
  while (join->root[comm] != comm) comm = join->root[comm];
  return comm;
}

static void unite(struct join *join, int a, int b)
{
  int first = find_root(join, a), other = find_root(join, b);
  join->root[TT_MAX(first, other)] = TT_MIN(first, other);
}

/* How many uses there are of host streams, counting changes only; noted where there is room for them. */
static int count_uses(const struct ncclComm *comm, struct use *uses, int number)
{
  int count = 0;
  void *last = NULL;
  if (tt_stream_device(comm)) return 0;
  for (const struct tt_task *task = comm->tasks; task != NULL; task = task->next) {
    if (task->stream == NULL || task->stream == last) continue;
    last = task->stream;
    if (uses != NULL) uses[count] = (struct use){last, number};
    count++;
  }
  return count;
}

static bool names_none(const struct ncclComm *comm)
{
  const struct tt_task *task = comm->tasks;
  while (task != NULL && task->stream != NULL) task = task->next;
  return task != NULL;
}

static int by_stream(const void *a, const void *b)
{
  const struct use *left = a, *right = b;
  if (left->stream != right->stream) return (uintptr_t)left->stream < (uintptr_t)right->stream ? -1 : 1;
  return (left->comm > right->comm) - (left->comm < right->comm);
}

static ncclResult_t find_uses(struct join *join, struct ncclComm *comms)
{
  int number = 0, nuses = 0;
  TT_TRY(TT_CALLOC(&join->comms, (size_t)join->ncomms));
  TT_TRY(TT_CALLOC(&join->root, (size_t)join->ncomms));
  TT_TRY(TT_CALLOC(&join->uses, (size_t)join->nuses));
  for (struct ncclComm *comm = comms; comm != NULL; comm = comm->group_next, number++) {
    join->comms[number] = comm;
    join->root[number] = number;
    nuses += count_uses(comm, join->uses + nuses, number);
  }
  qsort(join->uses, (size_t)join->nuses, sizeof *join->uses, by_stream);
  for (int u = 1; u < join->nuses; u++)
    if (join->uses[u].stream == join->uses[u - 1].stream) unite(join, join->uses[u].comm, join->uses[u - 1].comm);
  return ncclSuccess;
}

/* The item of all communicators that belong to `root`. */
static ncclResult_t make_item(const struct join *join, int root, tt_host_run *run, tt_host_free *end,
                              struct tt_host_item **item, bool *kept)
{
  int parts = 0, uses = 0;
  for (int c = root; c < join->ncomms; c++) parts += find_root(join, c) == root;
  for (int u = 0; u < join->nuses; u++) uses += find_root(join, join->uses[u].comm) == root;
  TT_TRY(tt_host_item_new(uses, parts, run, end, item));
  for (int u = 0; u < join->nuses; u++)
    if (find_root(join, join->uses[u].comm) == root) tt_host_item_add_stream(*item, join->uses[u].stream);
  for (int c = root; c < join->ncomms; c++) {
    if (find_root(join, c) != root) continue;
    *kept |= names_none(join->comms[c]);
    tt_host_item_add_part(*item, join->comms[c]);
  }
  if (*kept) tt_host_item_keep(*item);
  return ncclSuccess;
}

/* A communicator without host streams is in no item. */
static ncclResult_t make_items(const struct join *join, tt_host_run *run, tt_host_free *end, struct tt_host_items *out)
{
  TT_TRY(TT_CALLOC(&out->items, (size_t)join->ncomms));
  TT_TRY(TT_CALLOC(&out->kept, (size_t)join->ncomms));
  for (int c = 0; c < join->ncomms; c++) {
    if (find_root(join, c) != c || count_uses(join->comms[c], NULL, c) == 0) continue;
    TT_TRY(make_item(join, c, run, end, &out->items[out->count], &out->kept[out->count]));
    out->count++;
  }
  return ncclSuccess;
}

ncclResult_t tt_host_items_make(struct ncclComm *comms, int ncomms, tt_host_run *run, tt_host_free *end,
                                struct tt_host_items *out)
{
  struct join join = {.ncomms = ncomms};
  for (const struct ncclComm *comm = comms; comm != NULL; comm = comm->group_next)
    join.nuses += count_uses(comm, NULL, 0);
  if (join.nuses == 0) return ncclSuccess;
  ncclResult_t result = find_uses(&join, comms);
  if (result == ncclSuccess) result = make_items(&join, run, end, out);
  free(join.comms);
  free(join.root);
  free(join.uses);
  return result;
}

ncclResult_t tt_host_items_end(struct tt_host_items *items, bool enqueued)
{
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < items->count; i++) {
    if (!enqueued) {
      tt_host_item_free(items->items[i]);
    } else if (items->kept[i]) {
      ncclResult_t failed = tt_host_item_wait(items->items[i]);
      if (result == ncclSuccess) result = failed;
    }
  }
  free(items->items);
  free(items->kept);
  return result;
}
