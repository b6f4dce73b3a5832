/* See fake_graph.h. */
#include "fake_graph.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/edges.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/state.h"

char fake_log[4096];
int fake_fail_at;
bool fake_running;
int fake_events, fake_uploads, fake_capture_infos;

static char primaries[4], other_context;
static _Thread_local void *current;
static struct tt_cuda_context_state state = {.primary = &primaries[2]};
static struct tt_cuda_executor executor = {.launched_end = &executor.launched};
struct tt_device_context fake_context = {.device = 2, .state = &state, .executor = &executor};

static bool fails(void)
{
  return fake_fail_at > 0 && --fake_fail_at == 0;
}

#define MAY_FAIL                                                                                                       \
  if (fails()) return cudaErrorUnknown

static struct fake_stream *of(cudaStream_t stream)
{
  return (struct fake_stream *)(void *)stream;
}

static void say(char what, const struct fake_stream *stream)
{
  size_t length = strlen(fake_log);
  ck_assert_uint_lt(length + 3, sizeof(fake_log));
  fake_log[length] = what;
  fake_log[length + 1] = stream->name;
}

static struct fake_node *add_node(struct fake_cuda_graph *graph, char kind, struct fake_node *before)
{
  struct fake_node *node = &graph->nodes[graph->nnodes++];
  ck_assert_int_le(graph->nnodes, 64);
  *node = (struct fake_node){.kind = kind};
  if (before != NULL) node->before[node->nbefore++] = before;
  return node;
}

static void put(struct fake_stream *stream, char kind)
{
  if (stream->graph == NULL) {
    say(kind, stream);
    return;
  }
  stream->tail = add_node(stream->graph, kind, stream->tail);
  if (stream->beside != NULL) stream->tail->before[stream->tail->nbefore++] = stream->beside;
  stream->beside = NULL;
}

void fake_kernel(struct fake_stream *stream)
{
  put(stream, 'K');
}

void fake_copy(struct fake_stream *stream)
{
  stream->beside = add_node(stream->graph, 'C', stream->tail->nbefore > 0 ? stream->tail->before[0] : NULL);
}

void fake_capture(struct fake_stream *stream, struct fake_cuda_graph *graph)
{
  static unsigned long long last;
  if (graph != NULL && graph->id == 0) graph->id = ++last;
  stream->graph = graph;
  stream->tail = stream->beside = NULL;
}

void fake_end(struct fake_cuda_graph *graph)
{
  for (int i = 0; i < graph->nobjects; i++) graph->objects[i].done(graph->objects[i].argument);
  graph->nobjects = 0;
}

bool fake_is_behind(const struct fake_node *node, const struct fake_node *other)
{
  if (node == other) return true;
  for (int i = 0; i < node->nbefore; i++)
    if (fake_is_behind(node->before[i], other)) return true;
  return false;
}

/* ---- Runtime ---- */

cudaError_t cudaGetLastError(void)
{
  return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
  (void)error;
  return "made to fail";
}

const char *cudaGetErrorName(cudaError_t error)
{
  (void)error;
  return "cudaErrorUnknown";
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
  MAY_FAIL;
  if (flags != cudaEventDisableTiming) return cudaErrorInvalidValue;
  *event = malloc(1);
  fake_events++;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  free(event);
  fake_events--;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
  (void)event;
  return fake_running ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
  (void)event;
  MAY_FAIL;
  ck_assert_ptr_null(of(stream)->graph); /* would be no node, but a mark for the capture itself */
  say('R', of(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
  (void)event;
  MAY_FAIL;
  ck_assert_uint_eq(flags, of(stream)->graph != NULL ? cudaEventWaitExternal : 0);
  put(of(stream), 'W');
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     TT_CUDA_EDGES(const cudaGraphEdgeData **edges, size_t *count))
{
  struct fake_stream *stream = of(handle);
  ck_assert(!TT_CUDA_GIVEN(edges));
  fake_capture_infos++;
  MAY_FAIL;
  if (stream == NULL) return cudaErrorStreamCaptureImplicit;
  if (stream->device == -2) return cudaErrorInvalidResourceHandle;
  *status = stream->graph == NULL         ? cudaStreamCaptureStatusNone
            : stream->graph->nnodes == 64 ? cudaStreamCaptureStatusInvalidated
                                          : cudaStreamCaptureStatusActive;
  if (stream->graph == NULL) return cudaSuccess;
  if (id != NULL) *id = stream->graph->id;
  if (graph != NULL) *graph = (cudaGraph_t)(void *)stream->graph;
  int given = 0;
  if (stream->beside != NULL) stream->last[given++] = stream->beside;
  if (stream->tail != NULL) stream->last[given++] = stream->tail;
  if (nodes != NULL) *nodes = (const cudaGraphNode_t *)(void *)stream->last;
  if (count != NULL) *count = (size_t)given;
  return cudaSuccess;
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
                                                TT_CUDA_EDGES(const cudaGraphEdgeData *edges, size_t count),
                                                unsigned int flags)
{
  MAY_FAIL;
  ck_assert(!TT_CUDA_GIVEN(edges) && count >= 1 && count <= 2 && flags == cudaStreamAddCaptureDependencies);
  /* A stream has one tail here: a node without work stands for both. */
  struct fake_node *joined = add_node(of(stream)->graph, 'J', of(stream)->tail);
  for (size_t n = 0; n < count; n++) joined->before[joined->nbefore++] = (struct fake_node *)(void *)nodes[n];
  of(stream)->tail = joined;
  return cudaSuccess;
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before,
                                        size_t count, cudaEvent_t event)
{
  (void)event;
  MAY_FAIL;
  ck_assert(count >= 1 && count <= 2);
  struct fake_node *record = add_node((struct fake_cuda_graph *)(void *)graph, 'R', NULL);
  for (size_t n = 0; n < count; n++) record->before[record->nbefore++] = (struct fake_node *)(void *)before[n];
  *node = (cudaGraphNode_t)(void *)record;
  return cudaSuccess;
}

cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                        TT_CUDA_EDGES(const cudaGraphEdgeData *edges, size_t count))
{
  struct fake_node *node = (struct fake_node *)(void *)to[0];
  (void)graph;
  MAY_FAIL;
  ck_assert(!TT_CUDA_GIVEN(edges) && (int)count == node->nbefore);
  for (size_t n = 0; n < count; n++)
    ck_assert(to[n] == to[0] && node->before[n] == (struct fake_node *)(void *)from[n]);
  node->nbefore = 0;
  return cudaSuccess;
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                     TT_CUDA_EDGES(const cudaGraphEdgeData *edges, size_t count))
{
  struct fake_node *node = (struct fake_node *)(void *)to[0];
  (void)graph;
  MAY_FAIL;
  ck_assert(!TT_CUDA_GIVEN(edges) && count >= 1 && count <= 2);
  for (size_t n = 0; n < count; n++) {
    ck_assert(to[n] == to[0]);
    node->before[node->nbefore++] = (struct fake_node *)(void *)from[n];
  }
  return cudaSuccess;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *argument, cudaHostFn_t done, unsigned int references,
                                 unsigned int flags)
{
  struct fake_object *made;
  MAY_FAIL;
  ck_assert(references == 1 && flags == cudaUserObjectNoDestructorSync);
  made = malloc(sizeof(*made));
  *made = (struct fake_object){done, argument};
  *object = (cudaUserObject_t)(void *)made;
  return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned int count)
{
  struct fake_object *object = (struct fake_object *)(void *)handle;
  ck_assert_uint_eq(count, 1);
  object->done(object->argument);
  free(object);
  return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t handle, cudaUserObject_t object, unsigned int count,
                                      unsigned int flags)
{
  struct fake_cuda_graph *graph = (struct fake_cuda_graph *)(void *)handle;
  MAY_FAIL;
  ck_assert(count == 1 && flags == cudaGraphUserObjectMove && graph->nobjects < 8);
  graph->objects[graph->nobjects++] = *(struct fake_object *)(void *)object;
  free(object);
  return cudaSuccess;
}

/* ---- Driver ---- */

static CUresult get_current(CUcontext *context)
{
  *context = current;
  return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
  current = context;
  return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device)
{
  *device = current == &other_context ? 2 : (int)((char *)current - primaries);
  return CUDA_SUCCESS;
}

static CUresult error_name(CUresult error, const char **name)
{
  *name = error == CUDA_ERROR_CONTEXT_IS_DESTROYED ? "CUDA_ERROR_CONTEXT_IS_DESTROYED" : "another";
  return CUDA_SUCCESS;
}

static CUresult stream_context(CUstream handle, CUcontext *context)
{
  const struct fake_stream *stream = of(handle);
  if (stream->device == -2) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = (CUcontext)(void *)(stream->device == -1 ? &other_context : &primaries[stream->device]);
  return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
  if (of(handle)->device == -2) return CUDA_ERROR_INVALID_HANDLE;
  *status = of(handle)->graph != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

const struct tt_cuda_driver *tt_cuda_driver(void)
{
  static const struct tt_cuda_driver driver = {.cuCtxGetCurrent = get_current,
                                               .cuCtxSetCurrent = set_current,
                                               .cuCtxGetDevice = get_device,
                                               .cuGetErrorName = error_name,
                                               .cuGetErrorString = error_name,
                                               .cuStreamGetCtx = stream_context,
                                               .cuStreamIsCapturing = is_capturing};
  return &driver;
}

/* ---- The rest of the backend ---- */

ncclResult_t tt_cuda_enter(const struct tt_device_context *context, struct tt_cuda_enter *enter)
{
  (void)context, (void)enter;
  return ncclSuccess;
}

void tt_cuda_leave(const struct tt_cuda_enter *enter)
{
  (void)enter;
}

ncclResult_t tt_cuda_launched(struct tt_device_context *context, cudaStream_t stream)
{
  context->state->any_launch = true;
  return tt_cuda_check(cudaEventRecord(context->state->launched, stream), "recording");
}

ncclResult_t tt_cuda_small_alloc(struct tt_device_context *context, size_t bytes, void **ptr)
{
  static unsigned char memory[1 << 20];
  static size_t used;
  (void)context;
  if (fails()) return ncclSystemError;
  *ptr = memory + used;
  used += bytes;
  ck_assert_uint_le(used, sizeof(memory));
  return ncclSuccess;
}

ncclResult_t tt_cuda_upload(struct tt_device_context *context, void *to, const void *from, size_t bytes)
{
  (void)context;
  if (fails()) return ncclSystemError;
  memcpy(to, from, bytes);
  fake_uploads++;
  return ncclSuccess;
}
