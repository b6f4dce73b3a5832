/* What host streams (host_stream.c) and their queues (host_queue.c) share. */
#ifndef TT_PLAN_HOST_INTERNAL_H
#define TT_PLAN_HOST_INTERNAL_H

#include <pthread.h>
#include "plan/host_stream.h"

/* An item's place in the queue of one of its streams. */
struct tt_host_place {
  struct tt_host_item *item;
  struct tt_host_place *next;
  struct tt_host_stream *stream;
  void *handle;
};

struct tt_host_item {
  tt_host_run *run;
  tt_host_free *end;
  int nstreams, nparts;
  struct tt_host_place *places; /* the first stream's thread runs it */
  struct tt_host_part *parts;
  bool kept, running, complete;
  ncclResult_t result;
  char *error; /* its sentence; NULL: none, or no memory for it */
};

struct tt_host_stream {
  struct tt_host_stream *next;
  void *handle;
  struct tt_host_place *first, **last;
  uint64_t entered, done; /* items */
  pthread_t thread;
  pthread_cond_t work; /* its thread waits here */
  bool started;
  bool dying;  /* being destroyed: nobody finds it any more */
  bool ending; /* nothing will come: its thread leaves */
  int waiters; /* threads that wait for what is on it */
  ncclResult_t failed;
  char text[1024]; /* the failure's sentence */
};

/* Guards everything here, and what communicators have for it. */
extern pthread_mutex_t tt_host_lock;
/* All streams, dying ones included. */
extern struct tt_host_stream *tt_host_streams;

/* With the lock held, all of these. */
struct tt_host_stream *tt_host_find(const void *handle);
ncclResult_t tt_host_unknown(const char *function, const void *handle);
/* Waits until something is done; at most timeout_ms, 0: as long as it takes. */
void tt_host_wait_done(int timeout_ms);
void tt_host_wake_waiters(void);
/* Keeps the first failure, with the calling thread's last error sentence. */
void tt_host_stream_note(struct tt_host_stream *stream, ncclResult_t result);
/* Has the thread of the stream run items, if there is none yet. */
ncclResult_t tt_host_start(struct tt_host_stream *stream);

#endif
