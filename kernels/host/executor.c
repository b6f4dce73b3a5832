/* Launches: chains of works, of which only the first of each chain is looked at, so that a launch of very many works
 * costs no more to progress than the few that can run. */
#include "kernels/host/executor.h"

#include "kernels/host/host.h"

/* Works of a chain that are finished in one call of progress before the other chains have their turn. */
#define CHAIN_WORKS 64

#define NONE (-1)

/* A work and the one that follows it in its chain, or NONE. */
struct link {
  struct tt_work *work;
  int next;
};

struct tt_launch {
  struct link *links;       /* one a work */
  struct tt_host_run *runs; /* one a chain; strands point to theirs, so they do not move */
  int nchains;
  int *active; /* chains that are not finished */
  int nactive;
  ncclResult_t result; /* of the first failure */
};

/* What is needed to find the chains: a hash table by order key with open addressing. */
struct chains {
  int *slots; /* 1 + number of a chain; 0: free */
  size_t mask;
  int *first, *last; /* works of each chain */
};

static void link_work(struct tt_launch *launch, struct chains *chains, int w)
{
  uint64_t order = launch->links[w].work->order;
  size_t at = (size_t)(order * UINT64_C(0x9e3779b97f4a7c15) >> 32) & chains->mask;
  while (chains->slots[at] != 0 && launch->links[chains->last[chains->slots[at] - 1]].work->order != order)
    at = (at + 1) & chains->mask;
  if (chains->slots[at] == 0) {
    chains->first[launch->nchains] = w;
    chains->slots[at] = ++launch->nchains;
  } else {
    launch->links[chains->last[chains->slots[at] - 1]].next = w;
  }
  chains->last[chains->slots[at] - 1] = w;
}

/* Links the works of each chain, and makes the chains' runs. */
static ncclResult_t make_chains(struct tt_launch *launch, struct tt_work *const *works, int nworks)
{
  size_t nslots = 4;
  while (nslots < 2 * (size_t)nworks) nslots *= 2;
  struct chains chains = {.mask = nslots - 1};
  struct tt_pool *pool = works[0]->pool; /* of one communicator of the launch: all of them live longer than it */
  ncclResult_t result;
  TT_TRY_GOTO(TT_POOL_NEW(pool, &launch->links, (size_t)nworks), result, out);
  TT_TRY_GOTO(TT_POOL_NEW(pool, &chains.slots, nslots), result, out);
  TT_TRY_GOTO(TT_POOL_NEW(pool, &chains.first, (size_t)nworks), result, out);
  TT_TRY_GOTO(TT_POOL_NEW(pool, &chains.last, (size_t)nworks), result, out);
  for (int w = 0; w < nworks; w++) {
    launch->links[w] = (struct link){works[w], NONE};
    link_work(launch, &chains, w);
  }
  TT_TRY_GOTO(TT_POOL_NEW(pool, &launch->runs, (size_t)launch->nchains), result, out);
  TT_TRY_GOTO(TT_POOL_NEW(pool, &launch->active, (size_t)launch->nchains), result, out);
  for (int c = 0; c < launch->nchains; c++) {
    launch->runs[c].index = chains.first[c];
    launch->active[launch->nactive++] = c;
  }
out:
  tt_pool_give(chains.slots);
  tt_pool_give(chains.first);
  tt_pool_give(chains.last);
  return result;
}

static void launch_finish(struct tt_launch *launch)
{
  if (launch == NULL) return;
  for (int c = 0; launch->runs != NULL && c < launch->nchains; c++) tt_host_run_free(&launch->runs[c]);
  tt_pool_give(launch->active);
  tt_pool_give(launch->runs);
  tt_pool_give(launch->links);
  tt_pool_give(launch);
}

static ncclResult_t launch_start(struct tt_work *const *works, int nworks, void *stream, struct tt_launch **out)
{
  struct tt_launch *launch;
  ncclResult_t result = ncclSuccess;
  *out = NULL;
  if (stream != NULL) return TT_FAIL(ncclInvalidArgument, "the host device has no streams, and got %p as one", stream);
  TT_TRY(TT_POOL_NEW(nworks > 0 ? works[0]->pool : NULL, &launch, 1));
  if (nworks > 0) TT_TRY_GOTO(make_chains(launch, works, nworks), result, out);
  for (int c = 0; c < launch->nchains; c++)
    TT_TRY_GOTO(tt_host_run_begin(&launch->runs[c], launch->links[launch->runs[c].index].work), result, out);
  *out = launch;
out:
  if (result != ncclSuccess) launch_finish(launch);
  return result;
}

static ncclResult_t check_abort(const struct tt_work *work)
{
  if (work->abort == NULL || atomic_load_explicit(work->abort, memory_order_acquire) == 0) return ncclSuccess;
  char text[256];
  tt_host_describe(work, text, sizeof(text));
  return TT_FAIL(ncclInternalError, "rank %d: aborted, before this was complete: %s", work->rank, text);
}

/* Advances a chain; *finished when its last work is complete. */
static ncclResult_t advance_chain(struct tt_launch *launch, struct tt_host_run *run, bool *finished, bool *moved)
{
  for (int works = 0; works < CHAIN_WORKS; works++) {
    TT_TRY(check_abort(run->work));
    TT_TRY(tt_host_run_advance(run, moved));
    if (run->left > 0) return ncclSuccess;
    *moved = true;
    __atomic_store_n(&launch->links[run->index].work->complete, 1, __ATOMIC_RELAXED); /* reports read it */
    run->index = launch->links[run->index].next;
    if (run->index == NONE) {
      *finished = true;
      return ncclSuccess;
    }
    TT_TRY(tt_host_run_begin(run, launch->links[run->index].work));
  }
  return ncclSuccess;
}

static ncclResult_t progress_chains(struct tt_launch *launch, bool *moved)
{
  for (int a = 0; a < launch->nactive;) {
    struct tt_host_run *run = &launch->runs[launch->active[a]];
    bool finished = false;
    TT_TRY(advance_chain(launch, run, &finished, moved));
    if (!finished) {
      a++;
      continue;
    }
    tt_host_run_free(run);
    launch->active[a] = launch->active[--launch->nactive];
  }
  return ncclSuccess;
}

static ncclResult_t launch_progress(struct tt_launch *launch, int *moved, int *done)
{
  bool any = false;
  if (launch->result == ncclSuccess) launch->result = progress_chains(launch, &any);
  *moved = any;
  *done = launch->result == ncclSuccess && launch->nactive == 0;
  return launch->result;
}

/* Any index names a host device: all of them are the same processors and memory, so the number only has to exceed any
 * number of ranks that one host can hold. */
#define HOST_DEVICES (1 << 20)

static ncclResult_t count_devices(int *devices)
{
  *devices = HOST_DEVICES;
  return ncclSuccess;
}

/* LL slots of 16 KiB: with its data an LL message fits the 32 KiB or more of a first-level cache, and beyond that size
 * the doubled bytes of LL cost more than the counter it saves. Simple slots of 128 KiB: the eight of a connection fill
 * the 1 to 2 MiB second-level cache of current server cores, so that the receiver finds in a cache what was written. */
static const struct tt_device host_device = {
    .size = sizeof(struct tt_device),
    .name = "host",
    .protocols = 1u << TT_PROTO_LL | 1u << TT_PROTO_SIMPLE,
    .default_buffer = {[TT_PROTO_LL] = TT_SLOTS * (16 << 10), [TT_PROTO_SIMPLE] = TT_SLOTS * (128 << 10)},
    .version = TT_DEVICE_VERSION,
    .features = TT_DEVICE_FP8 | TT_DEVICE_POOLED | TT_DEVICE_CHECK,
    .count = count_devices,
    .launch = launch_start,
    .progress = launch_progress,
    .finish = launch_finish,
    .check_buffer = tt_host_check_buffer,
};

const struct tt_device *tt_host_device(void)
{
  return &host_device;
}
