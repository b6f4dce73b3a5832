/* Graphs that were instantiated, and their launches. A launch runs whatever node is ready, in any order; the next
 * launch of the same executable waits for it.
 *
 * A kernel that was launched to begin early is ready as soon as kernels that it comes behind let it, and all else that
 * it comes behind is done. Its threads are held where they wait for those kernels. */
#include "gpu.h"

#include <stdlib.h>

struct exec_node {
  struct emu_work *work;
  size_t nbefore;
  size_t *after, nafter;
};

struct CUgraphExec_st {
  struct CUgraphExec_st *next;
  unsigned references; /* the user's, and of launches that are not over */
  struct exec_node *nodes;
  size_t count;
  struct emu_held *objects;
  struct emu_mark *last; /* behind the last launch */
};

/* A launch. */
struct emu_run {
  struct CUgraphExec_st *exec;
  struct {
    struct emu_work *work; /* NULL: done */
    size_t left;           /* nodes that it waits for */
    size_t awaited;        /* kernels of these that are not over, and need not be for it to begin */
    bool lets;             /* kernels behind this one have begun, or may */
  } * nodes;
  size_t *ready, nready;
};

static struct CUgraphExec_st *all;

static void drop(struct CUgraphExec_st *exec)
{
  if (--exec->references > 0) return;
  for (size_t i = 0; i < exec->count; i++) {
    emu_work_free(exec->nodes[i].work);
    free(exec->nodes[i].after);
  }
  free(exec->nodes);
  emu_objects_free(exec->objects);
  emu_mark_drop(exec->last);
  free(exec);
}

/* ---- Instantiation ---- */

/* Gives the nodes numbers so that each comes behind all that it depends on. False: they depend on each other in a
 * circle. */
static bool number_nodes(struct CUgraph_st *graph)
{
  size_t numbered = 0, before;
  for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) node->seen = false;
  do {
    before = numbered;
    for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
      bool ready = !node->seen;
      for (size_t i = 0; ready && i < node->nbefore; i++) ready = node->before[i]->seen;
      if (!ready) continue;
      node->seen = true;
      node->index = numbered++;
    }
  } while (numbered > before);
  return numbered == graph->nnodes;
}

static cudaError_t instantiate(cudaGraphExec_t *out, cudaGraph_t graph)
{
  if (!emu_graph_is(graph) || !number_nodes(graph)) return cudaErrorInvalidValue;
  struct CUgraphExec_st *exec = emu_calloc(1, sizeof(*exec));
  *exec = (struct CUgraphExec_st){.next = all,
                                  .references = 1,
                                  .nodes = emu_calloc(graph->nnodes, sizeof(*exec->nodes)),
                                  .count = graph->nnodes,
                                  .objects = emu_objects_copy(graph->objects)};
  for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
    exec->nodes[node->index].work = emu_work_clone(node->work);
    exec->nodes[node->index].nbefore = node->nbefore;
    for (size_t i = 0; i < node->nbefore; i++) exec->nodes[node->before[i]->index].nafter++;
  }
  for (size_t i = 0; i < exec->count; i++) {
    exec->nodes[i].after = emu_calloc(exec->nodes[i].nafter, sizeof(size_t));
    exec->nodes[i].nafter = 0;
  }
  for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next)
    for (size_t i = 0; i < node->nbefore; i++) {
      struct exec_node *leader = &exec->nodes[node->before[i]->index];
      leader->after[leader->nafter++] = node->index;
    }
  *out = all = exec;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
  if (exec == NULL || flags != 0) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_CONTEXT, instantiate(exec, graph));
}

static cudaError_t destroy(cudaGraphExec_t handle)
{
  struct CUgraphExec_st **place = &all;
  while (*place != NULL && *place != handle) place = &(*place)->next;
  if (*place == NULL) return cudaErrorInvalidValue;
  *place = handle->next;
  drop(handle);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
  EMU_RUNTIME(EMU_CONTEXT, destroy(exec));
}

/* ---- Launches ---- */

/* Events mean what they mean when the graph is launched: those that it waits for, what they were last recorded behind;
 * and who waits from now on for one that it records waits for this launch. */
static struct emu_work *prepare(const struct emu_work *from)
{
  struct emu_work *work = emu_work_clone(from);
  if (work->event == NULL) return work;
  if (work->what == EMU_RECORD)
    work->mark = emu_event_record(work->event);
  else if (work->event->mark != NULL)
    work->mark = emu_mark_hold(work->event->mark);
  else
    work->what = EMU_EMPTY;
  return work;
}

/* Whether the second may begin while the first ends. */
static bool overlap(const struct emu_work *first, const struct emu_work *second)
{
  return first->what == EMU_KERNEL && second->what == EMU_KERNEL && second->launch.early;
}

static struct emu_run *make_run(struct CUgraphExec_st *exec)
{
  struct emu_run *run = emu_calloc(1, sizeof(*run));
  run->exec = exec;
  exec->references++;
  run->nodes = emu_calloc(exec->count, sizeof(*run->nodes));
  run->ready = emu_calloc(exec->count, sizeof(*run->ready));
  for (size_t i = 0; i < exec->count; i++) {
    run->nodes[i].work = prepare(exec->nodes[i].work);
    run->nodes[i].left = exec->nodes[i].nbefore;
    if (run->nodes[i].left == 0) run->ready[run->nready++] = i;
  }
  for (size_t i = 0; i < exec->count; i++)
    for (size_t k = 0; k < exec->nodes[i].nafter; k++) {
      size_t after = exec->nodes[i].after[k];
      if (!overlap(exec->nodes[i].work, exec->nodes[after].work)) continue;
      run->nodes[after].awaited++;
      run->nodes[after].work->launch.held = true;
    }
  return run;
}

void emu_run_free(struct emu_run *run)
{
  for (size_t i = 0; i < run->exec->count; i++)
    if (run->nodes[i].work != NULL) emu_work_free(run->nodes[i].work);
  free(run->nodes);
  free(run->ready);
  drop(run->exec);
  free(run);
}

static void count_down(struct emu_run *run, size_t index)
{
  if (--run->nodes[index].left == 0) run->ready[run->nready++] = index;
}

/* Those behind a kernel that ends which may begin now. */
static void let_begin(struct emu_run *run, size_t index)
{
  const struct exec_node *node = &run->exec->nodes[index];
  run->nodes[index].lets = true;
  for (size_t i = 0; i < node->nafter; i++)
    if (overlap(node->work, run->exec->nodes[node->after[i]].work)) count_down(run, node->after[i]);
}

static void let_go(struct emu_run *run, size_t index)
{
  struct emu_work *work = run->nodes[index].work;
  if (--run->nodes[index].awaited > 0) return;
  work->launch.held = false;
  if (work->launch.grid != NULL) emu_grid_hold(work->launch.grid, false);
}

/* The node at a place of the list of ready ones is done: others may take its place. */
static void finish(struct emu_run *run, size_t place)
{
  size_t index = run->ready[place];
  const struct exec_node *node = &run->exec->nodes[index];
  run->ready[place] = run->ready[--run->nready];
  emu_work_free(run->nodes[index].work);
  run->nodes[index].work = NULL;
  if (!run->nodes[index].lets) let_begin(run, index);
  for (size_t i = 0; i < node->nafter; i++) {
    if (overlap(node->work, run->exec->nodes[node->after[i]].work))
      let_go(run, node->after[i]);
    else
      count_down(run, node->after[i]);
  }
}

/* Looks at ready nodes, beginning with any; at those that become ready the next time. */
enum emu_progress emu_run_step(struct emu_run *run)
{
  bool busy = false;
  size_t count = run->nready, start = count > 0 ? emu_random((uint32_t)count) : 0;
  for (size_t i = 0; i < count; i++) {
    size_t place = (start + i) % count;
    if (place >= run->nready) continue;
    size_t index = run->ready[place];
    const struct emu_work *work = run->nodes[index].work;
    enum emu_progress progress = emu_work_step(run->nodes[index].work);
    busy |= progress != EMU_BLOCKED;
    if (progress == EMU_DONE)
      finish(run, place);
    else if (!run->nodes[index].lets && work->launch.grid != NULL && emu_grid_lets_next(work->launch.grid))
      let_begin(run, index);
  }
  if (run->nready == 0) return EMU_DONE;
  return busy ? EMU_BUSY : EMU_BLOCKED;
}

static cudaError_t launch(cudaGraphExec_t handle, cudaStream_t on)
{
  struct CUgraphExec_st *exec = all;
  struct CUstream_st *stream;
  while (exec != NULL && exec != handle) exec = exec->next;
  if (exec == NULL) return cudaErrorInvalidValue;
  EMU_TRY(emu_stream_find(on, &stream));
  if (stream->capture != NULL) { /* graphs as nodes of graphs there are none */
    stream->capture->invalid = true;
    return cudaErrorNotSupported;
  }
  EMU_TRY(emu_legacy_allowed(stream, true));
  if (exec->last != NULL)
    emu_stream_push(stream, emu_work_make(&(struct emu_work){.what = EMU_WAIT, .mark = exec->last}));
  emu_stream_push(stream, emu_work_make(&(struct emu_work){.what = EMU_GRAPH, .run = make_run(exec)}));
  exec->last = emu_mark_make();
  emu_stream_push(stream, emu_work_make(&(struct emu_work){.what = EMU_RECORD, .mark = emu_mark_hold(exec->last)}));
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
  EMU_RUNTIME(EMU_CONTEXT, launch(exec, stream));
}
