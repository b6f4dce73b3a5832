/* See graphs.h. A graph may end at any moment, on a thread of the driver's, and after its communicator: what that
 * touches is counted. */
#include "plan/graphs.h"

#include <stdlib.h>
#include "base/check.h"
#include "device/context.h"

/* A graph that exists, and whose end will be told. */
struct note {
  struct note *next;
  struct tt_graphs *graphs;
  uint64_t graph;
};

struct tt_graphs {
  pthread_mutex_t lock;
  int references; /* the communicator's, and one a note */
  struct note *first;
  void (*gone)(void); /* NULL: nobody wants to know */
};

/* Called with the lock held, which it gives back. */
static void drop_reference(struct tt_graphs *graphs)
{
  bool last = --graphs->references == 0;
  pthread_mutex_unlock(&graphs->lock);
  if (!last) return;
  pthread_mutex_destroy(&graphs->lock);
  free(graphs);
}

/* Called once for each note, when its graph is gone. */
static void forget(void *argument)
{
  struct note *note = argument;
  struct tt_graphs *graphs = note->graphs;
  pthread_mutex_lock(&graphs->lock);
  struct note **place = &graphs->first;
  while (*place != note) place = &(*place)->next;
  *place = note->next;
  free(note);
  void (*gone)(void) = graphs->first == NULL ? graphs->gone : NULL;
  drop_reference(graphs);
  if (gone != NULL) gone();
}

static ncclResult_t open_graphs(struct ncclComm *comm)
{
  if (comm->graphs != NULL) return ncclSuccess;
  TT_TRY(TT_CALLOC(&comm->graphs, 1));
  pthread_mutex_init(&comm->graphs->lock, NULL);
  comm->graphs->references = 1;
  return ncclSuccess;
}

static bool is_noted(struct tt_graphs *graphs, uint64_t graph)
{
  pthread_mutex_lock(&graphs->lock);
  const struct note *note = graphs->first;
  while (note != NULL && note->graph != graph) note = note->next;
  pthread_mutex_unlock(&graphs->lock);
  return note != NULL;
}

ncclResult_t tt_graphs_note(struct ncclComm *comm, void *stream, uint64_t graph)
{
  struct note *note;
  TT_TRY(open_graphs(comm));
  struct tt_graphs *graphs = comm->graphs;
  if (is_noted(graphs, graph)) return ncclSuccess;
  TT_TRY(TT_CALLOC(&note, 1));
  note->graphs = graphs;
  note->graph = graph;
  pthread_mutex_lock(&graphs->lock);
  note->next = graphs->first;
  graphs->first = note;
  graphs->references++;
  pthread_mutex_unlock(&graphs->lock);
  return comm->device->at_graph_end(comm->context->handle, stream, forget, note);
}

int tt_graphs_live(const struct ncclComm *comm)
{
  struct tt_graphs *graphs = comm->graphs;
  if (graphs == NULL) return 0;
  pthread_mutex_lock(&graphs->lock);
  int live = graphs->references - 1;
  pthread_mutex_unlock(&graphs->lock);
  return live;
}

void tt_graphs_tell(struct ncclComm *comm, void (*gone)(void))
{
  struct tt_graphs *graphs = comm->graphs;
  if (graphs == NULL) return;
  pthread_mutex_lock(&graphs->lock);
  graphs->gone = gone;
  pthread_mutex_unlock(&graphs->lock);
}

void tt_graphs_close(struct ncclComm *comm)
{
  struct tt_graphs *graphs = comm->graphs;
  if (graphs == NULL) return;
  comm->graphs = NULL;
  pthread_mutex_lock(&graphs->lock);
  drop_reference(graphs);
}
