/* Streams and graphs of the fake device, from inside. */
#ifndef TT_TESTS_FAKES_DEVICE_STREAM_H
#define TT_TESTS_FAKES_DEVICE_STREAM_H

#include "internal.h"

#define FAKE_API __attribute__((visibility("default")))

/* A point of a stream that another one waits for. Who put it there and who waits have a reference each. */
struct mark {
  int refs; /* under marks_lock, as the next */
  bool reached;
};

/* One thing to do: a launch, a call of a test's, or to reach or wait for a mark. */
struct item {
  struct item *next;
  struct fake_launch *launch;
  uint64_t ticket; /* of a launch, among the context's */
  void (*call)(void *argument);
  void *argument;
  struct mark *reach, *await;
  struct fake_graph *graph; /* that it is repeated from; or NULL */
};

struct stream {
  struct stream *next; /* of all that exist */
  int device;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct item *first, **end;
  bool busy, hold, quit;
  struct fake_graph *capture; /* what is recorded now */
};

/* Launches and calls, of all the streams that were captured, in the order in which they came. */
struct fake_graph {
  _Atomic int refs; /* the user's, and one an item of a repetition */
  uint64_t id;
  struct item *first, **end; /* under the lock of the graphs while it is recorded */
  struct fake_graph_end {
    struct fake_graph_end *next;
    void (*done)(void *argument);
    void *argument;
  } * ends;
};

/* Locks are taken in this order: of all streams, of a stream, of the graphs. */
extern pthread_mutex_t fake_all_lock, fake_graphs_lock;
extern struct stream *fake_all_streams;

/* stream.c */
struct item *fake_item_new(void);
void fake_item_free(struct item *item);
/* Default streams are made when first used. */
struct stream *fake_stream_find(void *handle, int device);
/* Takes the item. Called with the stream's lock held: a context's launches have the order in which they are issued on
 * every stream, so that streams do not wait for each other in a circle. */
void fake_stream_append(struct stream *stream, struct item *item);

/* graph.c */
void fake_graph_drop(struct fake_graph *graph);

#endif
