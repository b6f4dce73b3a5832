/* What the files of the fake device share. */
#ifndef TT_TESTS_FAKES_DEVICE_INTERNAL_H
#define TT_TESTS_FAKES_DEVICE_INTERNAL_H

#include <pthread.h>
#include "base/check.h"
#include "base/timer.h"
#include "fake.h"

/* What a work was like that was said to come again. */
#define FAKE_REPEATS 64
struct fake_repeat {
  uint64_t number, digest;
};

struct tt_device_context {
  int device, rank, nranks;
  int refs; /* the user's, and one a launch; under `lock`, as all that follows */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint64_t issued, finished; /* launches: they run in the order in which they were issued, whatever their streams */
  bool stop_seen;
  struct tt_device_status status;
  _Atomic uint32_t abort;
  struct fake_pending *pending, *pending_end; /* copies.c's, oldest first */
  uint64_t copies_begun, copies_done;
  struct fake_repeat repeats[FAKE_REPEATS]; /* by number */
};

/* An end of a connection as works see it. */
struct fake_twin {
  struct tt_conn conn; /* first: works point to it */
  uint64_t last;       /* the step behind the last of the launch that runs: the running thread's */
};

/* Works of one launch, copied from what the core gave. */
struct fake_launch {
  _Atomic int refs;
  struct tt_device_context *context;
  int nworks;
  struct tt_work *works[];
};

extern struct fake_totals {
  _Atomic int contexts, memories, twins, streams, launches, late, users, multicast, hosts;
  _Atomic int multicast_channels; /* of the last such work; and bytes of its chunks */
  _Atomic size_t multicast_chunk;
} fake_totals;

/* context.c */
void fake_context_hold(struct tt_device_context *context);
void fake_context_drop(struct tt_device_context *context);

/* An error if a program has more peers than fake_limit_peers said. */
ncclResult_t fake_check_peers(const struct tt_work *work);

/* repeat.c: an error if the work is said to be like an earlier one, and is not. */
ncclResult_t fake_check_repeat(const struct tt_work *work);

/* copy.c: nothing of `works` is needed afterwards. */
ncclResult_t fake_launch_copy(struct tt_work *const *works, int nworks, struct fake_launch **out);
struct fake_launch *fake_launch_hold(struct fake_launch *launch);
void fake_launch_drop(struct fake_launch *launch);

/* run.c: runs a launch to its end, on a stream's thread. */
void fake_run(struct fake_launch *launch);
/* What the thread's last warning said, which is printed by nobody. */
extern _Thread_local char fake_warning[512];
extern _Thread_local bool fake_in_stream;

/* memory.c */
ncclResult_t fake_alloc(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory);
void fake_release(struct tt_device_context *context, struct tt_device_memory *memory);
ncclResult_t fake_export(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                         struct tt_device_export *out);
ncclResult_t fake_import(struct tt_device_context *context, const struct tt_device_export *in,
                         struct tt_device_memory *memory);

/* A descriptor that FAKE_DMABUF is read from: it says of which memory it is. */
ncclResult_t fake_export_dmabuf(struct tt_device_context *context, const void *ptr, size_t bytes, int pci, int *fd);
ncclResult_t fake_import_parts(struct tt_device_context *context, const struct tt_device_export *in, int count,
                               struct tt_device_memory *memory);

ncclResult_t fake_flush(struct tt_device_context *context);

/* Of a user's, at an address, or anywhere (NULL). Each import of it is mapped on its own. */
ncclResult_t fake_alloc_user(int device, size_t bytes, void *at, struct tt_device_memory *memory);

/* host.c. What works may touch; `context` NULL: works of all contexts. */
ncclResult_t fake_range_add(const struct tt_device_context *context, const void *ptr, size_t bytes);
bool fake_range_remove(const struct tt_device_context *context, const void *ptr, size_t bytes);
bool fake_range_covers(const struct tt_device_context *context, const void *ptr, size_t bytes);
ncclResult_t fake_map_host(struct tt_device_context *context, void *ptr, size_t bytes, void **at);
void fake_unmap_host(struct tt_device_context *context, void *ptr, size_t bytes);

/* user.c: see tt_device. */
ncclResult_t fake_user_alloc_on(int index, size_t bytes, void **ptr);
ncclResult_t fake_user_free_of(void *ptr);
ncclResult_t fake_check_buffer(struct tt_device_context *context, struct tt_device_check *check);
ncclResult_t fake_find_buffer(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer);
ncclResult_t fake_reach_buffer(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer);
/* Whether works of the context may use users' memory at `ptr`: it is their device's, was reached, or is an import. */
bool fake_may_use(const struct tt_device_context *context, const void *ptr);
ncclResult_t fake_export_buffer(struct tt_device_context *context, const void *ptr, int local,
                                struct tt_device_export *out);

/* team.c */
ncclResult_t fake_team_check(int index, struct tt_device_multicast *out);
ncclResult_t fake_team_create(struct tt_device_context *context, const struct tt_device_team_config *config,
                              struct tt_device_export *out, struct tt_device_team **team);
ncclResult_t fake_team_import(struct tt_device_context *context, const struct tt_device_team_config *config,
                              const struct tt_device_export *in, struct tt_device_team **team);
ncclResult_t fake_team_add(struct tt_device_context *context, struct tt_device_team *team);
ncclResult_t fake_team_bind(struct tt_device_context *context, struct tt_device_team *team, void **own, void **all);
void fake_team_leave(struct tt_device_context *context, struct tt_device_team *team);
/* Gives a work that has a multicast address the copies behind it. */
ncclResult_t fake_team_place(struct tt_work *work);

/* fabric.c: files by names that lead to them from any process of this machine, whatever hosts those claim to be. A
 * name stays good as long as this process has the file. */
bool fake_has_fabric(void);
ncclResult_t fake_fabric_name(int fd, unsigned char name[64]);
int fake_fabric_open(const unsigned char name[64]);
ncclResult_t fake_describe(int index, struct tt_device_description *out);
ncclResult_t fake_peer_status(const char *from, const char *to, struct tt_device_peer *status);

/* copies.c */
ncclResult_t fake_copy(struct tt_device_context *context, void *to, const void *from, size_t bytes, uint64_t *ticket);
ncclResult_t fake_copied(struct tt_device_context *context, uint64_t *ticket);
void fake_copies_end(struct tt_device_context *context);

/* stream.c */
ncclResult_t fake_launch_on(struct tt_work *const *works, int nworks, void *stream, struct tt_launch **launch);
ncclResult_t fake_stream_check(struct tt_device_context *context, void *stream);
ncclResult_t fake_stream_follow(struct tt_device_context *context, void *stream, void *leader);
ncclResult_t fake_stream_capturing(struct tt_device_context *context, void *stream, uint64_t *graph);
ncclResult_t fake_graph_end(struct tt_device_context *context, void *stream, void (*done)(void *argument),
                            void *argument);
int fake_device_of_thread(void);
/* Ends the default streams of a device that has no context any more. */
void fake_streams_end(int device);

#endif
