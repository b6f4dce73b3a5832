/* Work on the emulated GPUs: streams are queues of works, and one thread (gpu.c) does the works of all of them. All
 * functions are called with the lock held. */
#ifndef TESTS_EMULATED_GPU_GPU_H
#define TESTS_EMULATED_GPU_GPU_H

#include "emulated.h"
#include "grid.h"

/* Something that will have happened: what was put on a stream up to some point. */
struct emu_mark {
  unsigned references;
  bool done;
};
struct emu_mark *emu_mark_make(void); /* one reference */
struct emu_mark *emu_mark_hold(struct emu_mark *mark);
void emu_mark_drop(struct emu_mark *mark); /* may be NULL */

/* ---- Works: works.c ---- */

enum emu_what { EMU_KERNEL, EMU_COPY, EMU_SET, EMU_RECORD, EMU_WAIT, EMU_CALL, EMU_GRAPH, EMU_EMPTY };
struct emu_work {
  struct emu_work *next; /* of a stream */
  enum emu_what what;
  bool begun;
  struct { /* KERNEL */
    const struct emu_kernel *kernel;
    unsigned blocks, threads;
    int device;
    bool early; /* may begin while kernels end that it comes behind in a graph */
    bool held;  /* did so, or may, and they are not over */
    void *arguments;
    struct emu_grid *grid; /* NULL: not begun */
  } launch;
  struct { /* COPY, SET */
    char *to;
    const char *from;
    size_t bytes, done;
    bool backwards;
    int value;
    void *staging; /* is freed with the work */
  } copy;
  struct emu_mark *mark;    /* RECORD, WAIT, CALL; NULL in graphs, of which each launch makes its own */
  struct CUevent_st *event; /* RECORD, WAIT in graphs */
  cudaHostFn_t call;        /* CALL */
  void *argument;
  struct emu_run *run; /* GRAPH */
};
/* A copy of it on the heap. */
struct emu_work *emu_work_make(const struct emu_work *work);
/* The same for another use, before any has begun: with arguments of its own. */
struct emu_work *emu_work_clone(const struct emu_work *work);
void emu_work_free(struct emu_work *work);
/* Goes on with it, on the GPUs' thread. BUSY: it is to be called again soon; BLOCKED: after something else. */
enum emu_progress { EMU_DONE, EMU_BUSY, EMU_BLOCKED };
enum emu_progress emu_work_step(struct emu_work *work);

/* ---- The GPUs' thread: gpu.c ---- */

void emu_gpu_wake(void); /* there is something new; starts the thread */
void emu_gpu_wait(void); /* until something is done; gives the lock back meanwhile */
/* Calls the function on a thread for such; then the mark, if any, is done. */
void emu_call_later(cudaHostFn_t function, void *argument, struct emu_mark *mark);

/* ---- Streams: streams.c ---- */

struct CUstream_st {
  struct CUstream_st *next;
  int device;
  bool legacy, blocking;
  bool gone;           /* destroyed: ends when it is empty */
  unsigned references; /* of calls that wait for it */
  struct emu_work *first, **end;
  uint64_t queued, finished;    /* works */
  struct emu_capture *capture;  /* NULL: none */
  struct CUgraphNode_st **last; /* of the capture: what comes next depends on these */
  size_t nlast;
};
extern struct CUstream_st *emu_streams;
/* A user's handle. */
cudaError_t emu_stream_find(cudaStream_t handle, struct CUstream_st **stream);
/* Behind all that is on it, in the order that the legacy stream asks for. Takes over the work. */
void emu_stream_push(struct CUstream_st *stream, struct emu_work *work);
/* Puts it on the stream, or into the graph that the stream is captured into. Takes over the work, also on failure. */
cudaError_t emu_submit(struct CUstream_st *stream, struct emu_work *work);
void emu_stream_wait(struct CUstream_st *stream);
void emu_stream_end_if_empty(struct CUstream_st *stream); /* one that is gone */
/* For all that a device (-1: each one) has to do now. */
void emu_device_wait(int device);

/* ---- Events: events.c ---- */

struct CUevent_st {
  struct CUevent_st *next;
  int device;
  unsigned references;        /* the user's, and of graphs */
  struct emu_mark *mark;      /* NULL: never recorded, or in a capture */
  unsigned long long capture; /* its id; 0: none */
  struct CUgraphNode_st **nodes;
  size_t nnodes;
};
cudaError_t emu_event_find(cudaEvent_t handle, struct CUevent_st **event); /* a user's handle */
struct CUevent_st *emu_event_hold(struct CUevent_st *event);
void emu_event_drop(struct CUevent_st *event);
/* A new mark for what is now recorded: the event's, and the caller's reference. */
struct emu_mark *emu_event_record(struct CUevent_st *event);

/* ---- Captures: capture.c ---- */

struct emu_capture {
  struct emu_capture *next;
  unsigned long long id;
  enum cudaStreamCaptureMode mode;
  pthread_t thread;
  struct CUstream_st *origin;
  struct CUgraph_st *graph;
  bool invalid;
};
struct emu_capture *emu_capture_by_id(unsigned long long id);
/* Calls that a capture may forbid, by its mode and the thread's. */
cudaError_t emu_unsafe(void);
/* Calls on a stream, such as to wait for it, that a capture of it always forbids. */
cudaError_t emu_not_captured(struct CUstream_st *stream);
/* The legacy stream cannot be used while a stream that waits for it is captured. */
cudaError_t emu_legacy_allowed(const struct CUstream_st *stream, bool invalidate);
cudaError_t emu_capture_work(struct CUstream_st *stream, struct emu_work *work);
void emu_capture_leave(struct CUstream_st *stream); /* what is destroyed makes its capture invalid */
/* Of cudaEventRecord and cudaStreamWaitEvent. */
void emu_capture_record(struct CUstream_st *stream, struct CUevent_st *event);
cudaError_t emu_capture_join(struct CUstream_st *stream, const struct CUevent_st *event);

/* ---- Graphs: graph.c, executable.c, user_objects.c ---- */

struct CUgraphNode_st {
  struct CUgraphNode_st *next;
  struct CUgraph_st *graph;
  struct emu_work *work;
  struct CUgraphNode_st **before;
  size_t nbefore;
  size_t index; /* while nodes are put in order */
  bool seen;
};
struct emu_held {
  struct emu_held *next;
  struct CUuserObject_st *object;
  unsigned count;
};
struct CUgraph_st {
  struct CUgraph_st *next;
  struct CUgraphNode_st *first, **end;
  size_t nnodes;
  struct emu_held *objects;
};
struct CUgraph_st *emu_graph_make(void);
void emu_graph_free(struct CUgraph_st *graph);
bool emu_graph_is(const struct CUgraph_st *graph); /* a graph that lives */
bool emu_graph_has(const struct CUgraph_st *graph, const struct CUgraphNode_st *node);
/* Takes over the work. */
struct CUgraphNode_st *emu_graph_add(struct CUgraph_st *graph, struct CUgraphNode_st *const *before, size_t nbefore,
                                     struct emu_work *work);
/* Whether all of `to` are among `from` and what these come behind. */
bool emu_nodes_reach(struct CUgraph_st *graph, struct CUgraphNode_st *const *from, size_t nfrom,
                     struct CUgraphNode_st *const *to, size_t nto);
void emu_nodes_set(struct CUgraphNode_st ***nodes, size_t *count, struct CUgraphNode_st *const *from, size_t nfrom);
void emu_nodes_add(struct CUgraphNode_st ***nodes, size_t *count, struct CUgraphNode_st *const *from, size_t nfrom);

struct emu_held *emu_objects_copy(const struct emu_held *objects);
void emu_objects_free(struct emu_held *objects);
enum emu_progress emu_run_step(struct emu_run *run);
void emu_run_free(struct emu_run *run);

#endif
