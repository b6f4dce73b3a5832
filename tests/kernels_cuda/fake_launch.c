/* See fake_launch.h. */
#include "fake_launch.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "fake_hints.h"
#include "kernels/cuda/multicast.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/stream.h"

static struct tt_cuda_context_state state;
static struct tt_cuda_executor executor;
struct tt_device_context fake_context = {.processors = FAKE_PROCESSORS, .state = &state, .executor = &executor};

static struct {
  const struct tt_program *program;
  struct tt_cuda_program *packed;
} programs[64];

struct fake_launched launched;

/* The backend's second stream: copies of each, and how many of the other one's each has waited for. */
struct CUstream_st {
  char some;
};
struct CUevent_st {
  bool second;
  int copies, launches;
};
static struct CUstream_st second;
static struct CUevent_st recorded;
static int done[2], seen[2][2];
static int seen_launches; /* by the second stream; all are on the user's */

void forget_launches(void)
{
  memset(&launched, 0, sizeof(launched));
  memset(done, 0, sizeof(done));
  memset(seen, 0, sizeof(seen));
  seen_launches = 0;
}

/* The address of a byte tells which kernel it is. */
static char kernels[12][TT_NUM_PROTOCOLS][TT_CUDA_FORMS];
#define KERNEL(type)                                                                                                   \
  static const void *kernel_##type(int protocol, int form)                                                             \
  {                                                                                                                    \
    return &kernels[type][protocol][form];                                                                             \
  }                                                                                                                    \
  _Static_assert(type <= ncclFloat8e5m2, "a data type")

KERNEL(0);
KERNEL(1);
KERNEL(2);
KERNEL(3);
KERNEL(4);
KERNEL(5);
KERNEL(6);
KERNEL(7);
KERNEL(8);
KERNEL(9);
KERNEL(10);
KERNEL(11);

tt_cuda_kernel *const tt_cuda_kernels[12] = {kernel_0, kernel_1, kernel_2, kernel_3, kernel_4,  kernel_5,
                                             kernel_6, kernel_7, kernel_8, kernel_9, kernel_10, kernel_11};

static char sharing_kernels[12];
const void *tt_cuda_nvls_kernel(int datatype)
{
  return &sharing_kernels[datatype];
}

static void keep_launch(const void *kernel, dim3 grid, dim3 block, void **arguments)
{
  ptrdiff_t number = (const char *)kernel - &kernels[0][0][0], sharing = (const char *)kernel - sharing_kernels;
  launched.shares = sharing >= 0 && sharing < (ptrdiff_t)sizeof(sharing_kernels);
  if (launched.shares) number = (sharing * TT_NUM_PROTOCOLS + TT_PROTO_SIMPLE) * TT_CUDA_FORMS;
  ck_assert(number >= 0 && number < (ptrdiff_t)sizeof(kernels));
  launched.count++;
  launched.form = (int)(number % TT_CUDA_FORMS);
  launched.protocol = (int)(number / TT_CUDA_FORMS % TT_NUM_PROTOCOLS);
  launched.datatype = (int)(number / TT_CUDA_FORMS / TT_NUM_PROTOCOLS);
  launched.grid = grid;
  launched.block = block;
  if (launched.form == TT_CUDA_FORM_BRIEF) { /* reads no more of it */
    memset(&launched.launch, 0xa5, sizeof(launched.launch));
    memcpy(&launched.launch, arguments[0], sizeof(struct tt_cuda_brief));
  } else {
    launched.launch = *(struct tt_cuda_launch *)arguments[0];
  }
  launched.nattributes = 0;
  launched.awaited_by_kernel = seen[0][1];
  launched.cluster = 0;
  launched.spread = launched.remote = launched.links = launched.early = false;
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
  (void)stream;
  ck_assert(shared == 0);
  keep_launch(kernel, grid, block, arguments);
  return cudaSuccess;
}

/* As CUDA has it: clusters divide the grid, and each attribute comes once. */
static void keep_attribute(const cudaLaunchAttribute *attribute)
{
  const cudaLaunchAttributeValue *value = &attribute->val;
  switch ((int)attribute->id) {
  case cudaLaunchAttributeClusterDimension:
    ck_assert(launched.cluster == 0 && value->clusterDim.x > 0 && launched.grid.x % value->clusterDim.x == 0);
    ck_assert(value->clusterDim.y == 1 && value->clusterDim.z == 1);
    launched.cluster = value->clusterDim.x;
    break;
  case cudaLaunchAttributeClusterSchedulingPolicyPreference:
    ck_assert(!launched.spread);
    launched.spread = value->clusterSchedulingPolicyPreference == cudaClusterSchedulingPolicySpread;
    break;
  case cudaLaunchAttributeMemSyncDomain:
    ck_assert(!launched.remote);
    launched.remote = value->memSyncDomain == cudaLaunchMemSyncDomainRemote;
    break;
  case cudaLaunchAttributeProgrammaticStreamSerialization:
    ck_assert(!launched.early);
    launched.early = value->programmaticStreamSerializationAllowed == 1;
    break;
  case FAKE_LINKS_ID:
    ck_assert(!launched.links);
    launched.links = fake_links_are_on(attribute);
    break;
  default:
    ck_abort_msg("attribute %d", (int)attribute->id);
  }
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments)
{
  ck_assert(config->dynamicSmemBytes == 0 && config->stream == NULL);
  keep_launch(kernel, config->gridDim, config->blockDim, arguments);
  for (unsigned a = 0; a < config->numAttrs; a++) keep_attribute(&config->attrs[a]);
  launched.nattributes = (int)config->numAttrs;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
  (void)device;
  return fake_capability(value, attribute);
}

cudaError_t cudaGetLastError(void)
{
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
  ck_assert(kind == cudaMemcpyDefault && (stream == NULL || stream == &second) && launched.ncopies < FAKE_COPIES);
  bool on_second = stream != NULL;
  launched.copies[launched.ncopies++] = (struct fake_copy){.after = on_second ? seen_launches : launched.count,
                                                           .from = from,
                                                           .to = to,
                                                           .bytes = bytes,
                                                           .second = on_second,
                                                           .awaited = seen[on_second][!on_second]};
  done[on_second]++;
  return cudaSuccess;
}

/* ---- Two streams, and one event ---- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
  *least = *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
  (void)flags, (void)priority;
  *stream = &second;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
  (void)stream;
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
  (void)stream;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  (void)event;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
  (void)flags;
  *event = &recorded;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
  event->second = stream != NULL;
  event->copies = done[event->second];
  event->launches = event->second ? seen_launches : launched.count;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
  ck_assert(flags == 0 && event->second != (stream != NULL));
  seen[stream != NULL][event->second] = event->copies;
  launched.awaited = seen[0][1];
  if (stream != NULL) seen_launches = event->launches;
  return cudaSuccess;
}

ncclResult_t tt_cuda_check(cudaError_t error, const char *doing)
{
  (void)doing;
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t tt_cuda_enter(const struct tt_device_context *here, struct tt_cuda_enter *enter)
{
  (void)here, (void)enter;
  return ncclSuccess;
}

void tt_cuda_leave(const struct tt_cuda_enter *enter)
{
  (void)enter;
}

ncclResult_t tt_cuda_order_begin(struct tt_device_context *here, cudaStream_t stream, struct tt_cuda_graph **graph)
{
  (void)here, (void)stream;
  *graph = NULL;
  return ncclSuccess;
}

ncclResult_t tt_cuda_order_end(struct tt_device_context *here, cudaStream_t stream, struct tt_cuda_graph *graph)
{
  (void)here, (void)stream, (void)graph;
  return ncclSuccess;
}

void tt_cuda_order_failed(struct tt_device_context *here, cudaStream_t stream, struct tt_cuda_graph *graph)
{
  (void)here, (void)stream, (void)graph;
}

ncclResult_t tt_cuda_launched(struct tt_device_context *here, cudaStream_t stream)
{
  (void)here, (void)stream;
  return ncclSuccess;
}

ncclResult_t tt_cuda_blob_take(struct tt_device_context *here, const uint32_t *words, size_t bytes,
                               struct tt_cuda_blob **blob, const uint32_t **on_device)
{
  (void)here, (void)words, (void)bytes;
  *on_device = NULL;
  *blob = NULL;
  return ncclSuccess;
}

ncclResult_t tt_cuda_blob_launched(struct tt_device_context *here, struct tt_cuda_blob *blob, cudaStream_t stream,
                                   struct tt_cuda_graph *graph)
{
  (void)here, (void)blob, (void)stream, (void)graph;
  return ncclSuccess;
}

/* Equal programs share a packed form, as they do in the executor. */
ncclResult_t tt_cuda_program_get(struct tt_device_context *here, const struct tt_program *program,
                                 const struct tt_cuda_program **packed, const struct tt_cuda_program **on_device)
{
  struct tt_cuda_program *made = NULL;
  size_t i = 0;
  (void)here;
  while (i < TT_COUNT(programs) && programs[i].program != NULL && programs[i].program != program) i++;
  ck_assert_uint_lt(i, TT_COUNT(programs));
  if (programs[i].program == NULL) {
    TT_TRY(tt_cuda_pack(program, &made));
    programs[i].program = program;
    programs[i].packed = made;
    for (size_t k = 0; k < i; k++)
      if (made->bytes == programs[k].packed->bytes && memcmp(made, programs[k].packed, made->bytes) == 0)
        programs[i].packed = programs[k].packed;
    if (programs[i].packed != made) free(made);
  }
  *packed = *on_device = programs[i].packed;
  return ncclSuccess;
}

void forget_programs(void)
{
  for (size_t i = 0; i < TT_COUNT(programs); i++) {
    bool owner = programs[i].packed != NULL;
    for (size_t k = 0; k < i; k++) owner &= programs[k].packed != programs[i].packed;
    if (owner) free(programs[i].packed);
  }
  memset(programs, 0, sizeof(programs));
}
