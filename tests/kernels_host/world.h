/* A small world for the host executor: ranks of one process, connections in ordinary memory, works made from emitters
 * or from programs written by hand, and, where asked for, a proxy that carries whole messages between two memories. */
#ifndef TT_TESTS_KERNELS_HOST_WORLD_H
#define TT_TESTS_KERNELS_HOST_WORLD_H

#include <check.h>
#include <stdbool.h>
#include "base/doorbell.h"
#include "program/emit.h"
#include "tutti/device.h"

#define WORLD_CHANNELS 3

/* What one side of a connection maps. Without a proxy both ends map one. */
struct world_side {
  _Alignas(64) _Atomic uint64_t head;
  _Alignas(64) _Atomic uint64_t tail;
  struct tt_conn_fifo fifo[TT_SLOTS];
  unsigned char *slots[TT_NUM_PROTOCOLS];
};

struct world_link {
  struct world_side sides[2];
  struct tt_conn send, recv;
  uint64_t carried; /* steps that the proxy has moved */
};

struct world_options {
  int nranks;
  size_t slot_bytes[TT_NUM_PROTOCOLS];
  uint64_t first_step;
  unsigned char stale; /* slots and shared memory are filled with this byte before use */
  size_t shared_bytes; /* of each rank's copy of shared memory */
  bool proxied;
  int proxy_protocol; /* of the messages that the proxy carries */
  uint64_t seed;
};

struct world {
  struct world_options options;
  struct world_link *links[WORLD_CHANNELS]; /* [channel][from * nranks + to] */
  unsigned char **shared;                   /* each rank's copy */
  _Atomic uint32_t abort;
  struct tt_doorbell bell;
  uint64_t random;
};

void world_open(struct world *world, const struct world_options *options);
void world_close(struct world *world);
uint64_t world_random(struct world *world);
/* The connection from one rank to another. */
struct world_link *world_link(struct world *world, int channel, int from, int to);

/* A work whose channels' connections are bound; freed by world_free_work. Programs stay the caller's. */
struct tt_work *world_work(struct world *world, int rank, const struct tt_program *const *programs, int nchannels,
                           int protocol);
void world_free_work(struct tt_work *work);

/* Cuts [0, count) of each block among the work's channels, in chunks of `chunk` elements at most. */
void world_cut(struct tt_work *work, size_t count, size_t chunk);

/* Drives the launches in random order, and the proxy, until all are done or one fails. A launch that fails or is done
 * is driven no more. Returns the first failure; fails the test if nothing moves any more. */
ncclResult_t world_drive(struct world *world, struct tt_launch **launches, int nlaunches);

/* Launches works[rank][...], drives them, finishes them. */
ncclResult_t world_run(struct world *world, struct tt_work **const *works, int nworks);

#endif
