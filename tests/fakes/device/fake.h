/* A device with streams and memory of its own, made of threads and mapped files: so that everything which the core does
 * for GPUs runs where there is none. The library exports a backend as any other does, and for tests what a program
 * would do with CUDA's runtime: choosing a device, streams, and recording what is launched on a stream to repeat it. */
#ifndef TT_TESTS_FAKES_DEVICE_FAKE_H
#define TT_TESTS_FAKES_DEVICE_FAKE_H

#include <stdbool.h>
#include "tutti/device.h"

#define FAKE_DEVICES 8

/* The calling thread's device, 0 at first. */
void fake_set_device(int device);

/* A stream runs its works one launch after the other. Where a stream is asked for, NULL is the default stream of the
 * calling thread's device. */
void *fake_stream_create(int device);
/* How often the core has asked about streams of this process. */
int fake_stream_checks(void);
/* Waits for what the stream still has to do. */
void fake_stream_destroy(void *stream);
/* Whether all that was launched on the stream is done before the time is over. */
bool fake_stream_wait(void *stream, int timeout_ms);
/* A held stream begins nothing. */
void fake_stream_hold(void *stream, bool hold);

/* Has `call` called when the stream comes to it. */
void fake_stream_call(void *stream, void (*call)(void *argument), void *argument);

/* What comes on `stream` waits for what is on `leader` now, of the same device. */
void fake_stream_join(void *stream, void *leader);

/* Between begin and end what is put on the stream, and on others that follow it, is recorded and not run; `end` takes
 * the stream that `begin` took. A graph may be replayed any number of times, on any stream of its device, and may be
 * destroyed while a replay still runs. */
struct fake_graph;
void fake_capture_begin(void *stream);
struct fake_graph *fake_capture_end(void *stream);
void fake_graph_replay(struct fake_graph *graph, void *stream);
void fake_graph_destroy(struct fake_graph *graph);

/* Memory of a user's, as ncclMemAlloc has it, or, not `exported`, such that no other rank can map it, as of pools; at
 * an address where nothing is, or anywhere (NULL). NULL if there is none. */
void *fake_user_alloc(int device, size_t bytes, bool exported, void *at);
bool fake_user_free(void *ptr);

/* Works that find another signature than theirs do not say which, as where only a hash of it came. */
void fake_hide_signatures(bool hide);

/* A step of making a team, which then fails on one device of this process; NONE: none does. */
enum fake_team_step { FAKE_TEAM_NONE, FAKE_TEAM_CREATE, FAKE_TEAM_IMPORT, FAKE_TEAM_ADD, FAKE_TEAM_BIND };
void fake_fail_team(enum fake_team_step step, int device);
/* Works launched so far in this process that have a multicast address. */
int fake_multicast_works(void);
/* Of the last one: its channels, and the bytes that it moves at a time. */
void fake_last_multicast(int *channels, size_t *chunk);
/* Works launched so far in this process that use buffers of other ranks. */
int fake_mapped_works(void);
/* Of these, those that copy engines are to do; here no more is done about that than to see whether they could. */
int fake_engine_works(void);
/* What the last context on a device was opened with; all zero: there was none. */
struct tt_device_config fake_opened(int device);
/* Devices of this process may be in no team. */
void fake_forbid_teams(bool forbid);

/* What a descriptor of a dma-buf begins with: memory of this process. `kind`: FAKE_DMABUF. */
#define FAKE_DMABUF UINT64_C(0x6675622d616d64)
struct fake_dmabuf {
  uint64_t kind, ptr, bytes;
  int32_t pci;
};

/* What a flush of the device's does, for a network that keeps back what it has written; NULL: nothing. */
typedef void fake_flushed(void);
void fake_at_flush(fake_flushed *flushed);

/* What exists now in this process. */
struct fake_counts {
  int contexts, memories, twins, streams, launches;
  int users; /* allocations of users, which are among the memories */
  int hosts; /* ranges of the host's memory that contexts have mapped */
};
void fake_count(struct fake_counts *counts);

/* From now on the device's programs name so many other ranks at most (TT_DEVICE_PEERS), and larger ones fail; 0: any.
 */
void fake_limit_peers(int peers);
/* Waits, as cudaMalloc and cudaFree may, until nothing is left to run of what this process has launched. Whether that
 * came before the time was over. */
bool fake_wait_idle(int timeout_ms);
/* Allocations of this process that came while something was launched. */
int fake_late_allocations(void);

/* The backend's entry, as the core finds it by name. */
const struct tt_device *tutti_device(tt_device_log *log, char *why, size_t why_size);

#endif
