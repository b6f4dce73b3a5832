/* A small world for the host executor. */
#include "world.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/host/host.h"

/* Rounds in which nothing at all moved before the world is held to be stuck. Progress of this world needs nobody else,
 * so even a few would do. */
#define STUCK_ROUNDS 1000

uint64_t world_random(struct world *world)
{
  world->random ^= world->random << 13;
  world->random ^= world->random >> 7;
  world->random ^= world->random << 17;
  return world->random;
}

static void open_side(const struct world_options *options, struct world_side *side)
{
  atomic_store(&side->head, options->first_step);
  atomic_store(&side->tail, options->first_step);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (options->slot_bytes[p] == 0) continue;
    size_t bytes = TT_SLOTS * options->slot_bytes[p];
    side->slots[p] = aligned_alloc(64, bytes);
    ck_assert_ptr_nonnull(side->slots[p]);
    memset(side->slots[p], options->stale, bytes);
  }
}

static void open_end(struct world *world, struct world_side *side, int peer, struct tt_conn *conn)
{
  const struct world_options *options = &world->options;
  *conn = (struct tt_conn){.head = &side->head, .tail = &side->tail, .step = options->first_step, .peer = peer};
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    conn->slots[p] = side->slots[p];
    conn->slot_bytes[p] = options->slot_bytes[p];
  }
  conn->peer_bell = options->proxied ? NULL : &world->bell;
  conn->fifo = options->proxied ? side->fifo : NULL;
  conn->flags = options->proxied ? TT_CONN_PROXIED : 0;
}

void world_open(struct world *world, const struct world_options *options)
{
  int n = options->nranks;
  memset(world, 0, sizeof(*world));
  world->options = *options;
  world->random = options->seed * 2654435761u + 88172645463325252u;
  world->shared = calloc((size_t)n, sizeof(*world->shared));
  ck_assert_ptr_nonnull(world->shared);
  for (int r = 0; r < n && options->shared_bytes; r++) {
    world->shared[r] = aligned_alloc(64, options->shared_bytes);
    ck_assert_ptr_nonnull(world->shared[r]);
    memset(world->shared[r], options->stale, options->shared_bytes);
  }
  for (int c = 0; c < WORLD_CHANNELS; c++) {
    world->links[c] = aligned_alloc(64, (size_t)(n * n) * sizeof(struct world_link));
    ck_assert_ptr_nonnull(world->links[c]);
    memset(world->links[c], 0, (size_t)(n * n) * sizeof(struct world_link));
    for (int at = 0; at < n * n; at++) {
      struct world_link *link = &world->links[c][at];
      if (at / n == at % n) continue;
      open_side(options, &link->sides[0]);
      if (options->proxied) open_side(options, &link->sides[1]);
      open_end(world, &link->sides[0], at % n, &link->send);
      open_end(world, &link->sides[options->proxied], at / n, &link->recv);
      link->carried = options->first_step;
    }
  }
}

void world_close(struct world *world)
{
  int n = world->options.nranks;
  for (int c = 0; c < WORLD_CHANNELS; c++) {
    for (int at = 0; at < n * n; at++) {
      for (int side = 0; side < 2; side++)
        for (int p = 0; p < TT_NUM_PROTOCOLS; p++) free(world->links[c][at].sides[side].slots[p]);
    }
    free(world->links[c]);
  }
  for (int r = 0; r < n; r++) free(world->shared[r]);
  free(world->shared);
}

struct world_link *world_link(struct world *world, int channel, int from, int to)
{
  return &world->links[channel][from * world->options.nranks + to];
}

struct tt_work *world_work(struct world *world, int rank, const struct tt_program *const *programs, int nchannels,
                           int protocol)
{
  struct tt_work *work = calloc(1, sizeof(*work));
  ck_assert_ptr_nonnull(work);
  *work = (struct tt_work){.size = sizeof(*work),
                           .protocol = protocol,
                           .nchannels = (uint32_t)nchannels,
                           .abort = &world->abort,
                           .rank = rank};
  work->channels = calloc((size_t)nchannels, sizeof(*work->channels));
  ck_assert_ptr_nonnull(work->channels);
  for (int c = 0; c < nchannels; c++) {
    uint32_t npeers = programs[c]->npeers;
    struct tt_conn **conns = calloc(2 * npeers + 1, sizeof(*conns));
    ck_assert_ptr_nonnull(conns);
    work->channels[c] = (struct tt_work_channel){.program = programs[c], .send = conns, .recv = conns + npeers};
    for (uint32_t p = 0; p < npeers; p++) {
      conns[p] = &world_link(world, c, rank, programs[c]->peers[p])->send;
      conns[npeers + p] = &world_link(world, c, programs[c]->peers[p], rank)->recv;
    }
  }
  const struct tt_program *first = programs[0];
  if (first->shared_blocks) {
    work->shared = world->shared[rank];
    work->copies = calloc(first->nmembers, sizeof(*work->copies));
    ck_assert(work->shared && work->copies);
    for (uint32_t m = 0; m < first->nmembers; m++) work->copies[m] = world->shared[first->members[m]];
  }
  work->signature = (struct tt_signature){.protocol = (uint8_t)protocol, .nchannels = (uint8_t)nchannels};
  return work;
}

void world_free_work(struct tt_work *work)
{
  if (work == NULL) return;
  for (uint32_t c = 0; c < work->nchannels; c++) free(work->channels[c].send);
  free(work->channels);
  free(work->copies);
  free(work);
}

void world_cut(struct tt_work *work, size_t count, size_t chunk)
{
  for (uint32_t c = 0; c < work->nchannels; c++) {
    struct tt_geometry *geometry = &work->channels[c].geometry;
    size_t parts = work->channels[c].program->parts, n = work->nchannels;
    geometry->lo = count * c / n;
    geometry->hi = count * (c + 1) / n;
    geometry->chunk = chunk;
    geometry->input_stride = geometry->output_stride = count;
    geometry->scratch_stride = parts * chunk;
    geometry->scratch_lo = c * work->channels[c].program->scratch_blocks * parts * chunk;
    geometry->shared_stride = parts * chunk;
    geometry->shared_lo = c * work->channels[c].program->shared_blocks * parts * chunk;
    size_t share = geometry->hi - geometry->lo, loop = parts * chunk;
    geometry->loops = share == 0 ? 1 : (share + loop - 1) / loop;
    size_t left = share - (geometry->loops - 1) * loop;
    geometry->last_chunk = (left + parts - 1) / parts;
  }
}

/* Carries one message, if there is one and room for it. */
static bool carry(struct world *world, struct world_link *link)
{
  struct world_side *from = &link->sides[0], *to = &link->sides[1];
  uint64_t step = link->carried, slot = step % TT_SLOTS;
  if (atomic_load(&from->tail) <= step || step >= atomic_load(&to->head) + TT_SLOTS) return false;
  int protocol = world->options.proxy_protocol;
  size_t slot_bytes = world->options.slot_bytes[protocol];
  ck_assert_int_eq(from->fifo[slot].mode, TT_FIFO_NORMAL);
  size_t size = (size_t)from->fifo[slot].size;
  ck_assert_uint_ge(size, TT_SLOT_HEADER);
  ck_assert_uint_le(size, slot_bytes);
  memcpy(to->slots[protocol] + slot * slot_bytes, from->slots[protocol] + slot * slot_bytes, size);
  memset(from->slots[protocol] + slot * slot_bytes, 0xee, slot_bytes); /* it is the sender's again */
  to->fifo[slot] = (struct tt_conn_fifo){.mode = TT_FIFO_NORMAL, .size = (int64_t)size};
  atomic_store(&to->tail, step + 1);
  atomic_store(&from->head, step + 1);
  link->carried = step + 1;
  return true;
}

/* Carries at most one message a connection; leaves half of them for later, at random. */
static bool carry_some(struct world *world)
{
  bool any = false;
  int n = world->options.nranks;
  for (int c = 0; c < WORLD_CHANNELS; c++) {
    for (int at = 0; at < n * n; at++) {
      if (at / n == at % n) continue;
      if (world_random(world) & 1)
        any = true;
      else
        any |= carry(world, &world->links[c][at]);
    }
  }
  return any;
}

ncclResult_t world_drive(struct world *world, struct tt_launch **launches, int nlaunches)
{
  const struct tt_device *device = tt_host_device();
  bool ended[64] = {false};
  int left = nlaunches, stuck = 0;
  ncclResult_t result = ncclSuccess;
  ck_assert_int_le(nlaunches, (int)TT_COUNT(ended));
  while (left > 0 && stuck < STUCK_ROUNDS) {
    bool any = world->options.proxied && carry_some(world);
    int skew = (int)(world_random(world) % (uint64_t)nlaunches);
    for (int k = 0; k < nlaunches; k++) {
      int rank = (k + skew) % nlaunches, moved, done;
      if (ended[rank] || world_random(world) % 4 == 0) continue;
      ncclResult_t one = device->progress(launches[rank], &moved, &done);
      if (one != ncclSuccess && result == ncclSuccess) result = one;
      ended[rank] = done || one != ncclSuccess;
      left -= ended[rank];
      any |= moved || ended[rank];
    }
    stuck = any && result == ncclSuccess ? 0 : stuck + 1;
  }
  ck_assert_msg(left == 0 || result != ncclSuccess, "%d of %d ranks are stuck", left, nlaunches);
  return result;
}

ncclResult_t world_run(struct world *world, struct tt_work **const *works, int nworks)
{
  const struct tt_device *device = tt_host_device();
  struct tt_launch *launches[64] = {NULL};
  int n = world->options.nranks;
  for (int r = 0; r < n; r++) ck_assert_int_eq(device->launch(works[r], nworks, NULL, &launches[r]), ncclSuccess);
  ncclResult_t result = world_drive(world, launches, n);
  for (int r = 0; r < n; r++) device->finish(launches[r]);
  return result;
}
