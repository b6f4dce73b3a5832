/* CUDA's streams, events and graphs without a GPU, as far as the order of launches needs them: what is put on a stream
 * is kept as text, and a graph as nodes with what they come behind. */
#ifndef TEST_KERNELS_CUDA_FAKE_GRAPH_H
#define TEST_KERNELS_CUDA_FAKE_GRAPH_H

#include <stdbool.h>
#include "kernels/cuda/stream.h"

struct fake_node {
  char kind; /* K: kernel, C: copy, W: waits for an event, R: records one */
  struct fake_node *before[4];
  int nbefore;
};

struct fake_cuda_graph {
  struct fake_node nodes[64];
  int nnodes;
  unsigned long long id;
  struct fake_object {
    void (*done)(void *argument);
    void *argument;
  } objects[8];
  int nobjects;
};

struct fake_stream {
  char name;
  int device; /* whose primary context it is of; -1: of another one of device 2; -2: it was destroyed */
  struct fake_cuda_graph *graph;
  struct fake_node *tail, *beside; /* what the next node comes behind; `beside`: and this one, or NULL */
  struct fake_node *last[2];       /* both, as they were given away */
};

/* What was done outside of captures: "Ka": a kernel on stream a; "Ra", "Wa": the event was recorded there, waited for.
 */
extern char fake_log[4096];
extern int fake_fail_at;                                  /* the call that fails, counting down from here; 0: none */
extern bool fake_running;                                 /* what was recorded in events is not done */
extern int fake_events, fake_uploads, fake_capture_infos; /* the last: times that captures were asked for */
extern struct tt_device_context fake_context;             /* on device 2 */

void fake_kernel(struct fake_stream *stream);
/* Beside what was put on the captured stream last. */
void fake_copy(struct fake_stream *stream);
void fake_capture(struct fake_stream *stream, struct fake_cuda_graph *graph);
/* What was asked for at its end is called. */
void fake_end(struct fake_cuda_graph *graph);
bool fake_is_behind(const struct fake_node *node, const struct fake_node *other);

#endif
