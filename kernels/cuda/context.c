/* The life of a context: one rank's use of one GPU. Nothing here but close and drain waits for kernels, and no call is
 * made that waits for them on its own account. */
#include "kernels/cuda/context.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/check.h"
#include "base/timer.h"
#include "kernels/cuda/attributes.h"
#include "kernels/cuda/describe.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/state.h"

/* How long works may go on after they were stopped. */
#define STOPPED_MS 1000
/* Polls that do not sleep, and how long others do. */
#define QUICK_POLLS 200
#define POLL_USEC 50

static void pause_between_polls(int poll)
{
  if (poll < QUICK_POLLS)
    sched_yield();
  else
    usleep(POLL_USEC);
}

/* ---- The calling thread ---- */

/* The driver's notion of the current context is what all CUDA runtimes of a process share. It is put back as it was: to
 * choose a device by its number instead would create a context there in threads that had none. */
static ncclResult_t enter_primary(CUcontext primary, struct tt_cuda_enter *enter)
{
  CUcontext previous;
  TT_TRY(tt_cuda_driver_check(tt_cuda_driver()->cuCtxGetCurrent(&previous), "asking for the thread's context"));
  enter->previous = previous;
  enter->mode = cudaStreamCaptureModeRelaxed;
  TT_CUDA_TRY(cudaThreadExchangeStreamCaptureMode(&enter->mode), "setting the thread's capture mode");
  enter->changed = previous != primary;
  if (!enter->changed) return ncclSuccess;
  ncclResult_t result = tt_cuda_driver_check(tt_cuda_driver()->cuCtxSetCurrent(primary), "choosing the GPU");
  if (result != ncclSuccess) cudaThreadExchangeStreamCaptureMode(&enter->mode);
  return result;
}

ncclResult_t tt_cuda_enter(const struct tt_device_context *context, struct tt_cuda_enter *enter)
{
  return enter_primary(context->state->primary, enter);
}

void tt_cuda_leave(const struct tt_cuda_enter *enter)
{
  enum cudaStreamCaptureMode mode = enter->mode;
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (enter->changed) tt_cuda_driver()->cuCtxSetCurrent(enter->previous);
}

/* Makes the device's primary context, or finds that it is there. The thread's own stays what it is. */
static ncclResult_t find_primary(int device, void **primary)
{
  CUcontext previous, current = NULL;
  TT_TRY(tt_cuda_driver_check(tt_cuda_driver()->cuCtxGetCurrent(&previous), "asking for the thread's context"));
  ncclResult_t result = tt_cuda_check(cudaSetDevice(device), "choosing the GPU");
  if (result == ncclSuccess)
    result = tt_cuda_driver_check(tt_cuda_driver()->cuCtxGetCurrent(&current), "asking for the GPU's context");
  tt_cuda_driver()->cuCtxSetCurrent(previous);
  *primary = current;
  return result;
}

ncclResult_t tt_cuda_enter_device(int device, struct tt_cuda_enter *enter)
{
  void *primary;
  TT_TRY(find_primary(device, &primary));
  return enter_primary(primary, enter);
}

/* ---- Open and close ---- */

static ncclResult_t init_state(struct tt_device_context *context)
{
  pthread_mutexattr_t recursive;
  TT_TRY(TT_CALLOC(&context->state, 1));
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  int error = pthread_mutex_init(&context->lock, &recursive);
  pthread_mutexattr_destroy(&recursive);
  return error == 0 ? ncclSuccess : TT_FAIL(ncclSystemError, "rank %d: no lock can be made", context->rank);
}

static ncclResult_t open_entered(struct tt_device_context *context, const struct tt_device_config *config)
{
  struct tt_cuda_context_state *state = context->state;
  int least, greatest;
  TT_TRY(tt_cuda_memory_choose(context->device, &state->vmm));
  if (state->vmm)
    TT_TRY(tt_cuda_can(context->device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, &state->nics));
  state->fabric = state->vmm && tt_cuda_in_fabric(context->device);
  TT_CUDA_TRY(cudaDeviceGetAttribute(&context->processors, cudaDevAttrMultiProcessorCount, context->device),
              "asking for the number of multiprocessors");
  TT_TRY(tt_cuda_host_block_take(&state->block));
  context->mapped = &state->block->mapped;
  TT_CUDA_TRY(cudaHostGetDevicePointer((void **)&context->mapped_at, context->mapped, 0),
              "mapping page-locked memory on the GPU");
  /* Streams of one priority may share a queue of the hardware, where our copies could stand behind a kernel that the
   * user has queued behind another one of ours. */
  TT_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for the priorities of streams");
  TT_CUDA_TRY(cudaStreamCreateWithPriority(&context->side, cudaStreamNonBlocking, greatest), "making a stream");
  TT_CUDA_TRY(cudaEventCreateWithFlags(&state->launched, cudaEventDisableTiming), "making an event");
  TT_CUDA_TRY(cudaEventCreateWithFlags(&state->joined, cudaEventDisableTiming), "making an event");
  TT_TRY(tt_cuda_executor_create(context));
  return tt_cuda_attributes_choose(context, config);
}

/* Frees what open_entered made, as far as it came; none of it waits for kernels, but for memory of cudaMalloc. */
static void close_entered(struct tt_device_context *context)
{
  struct tt_cuda_context_state *state = context->state;
  tt_cuda_copies_close(context);
  tt_cuda_window_close(context);
  tt_cuda_executor_destroy(context);
  tt_cuda_small_free_all(context);
  if (state->launched != NULL) cudaEventDestroy(state->launched);
  if (state->joined != NULL) cudaEventDestroy(state->joined);
  tt_cuda_seconds_close(context);
  if (context->side != NULL) cudaStreamDestroy(context->side);
  if (state->block != NULL) tt_cuda_host_block_put(state->block);
}

static void free_context(struct tt_device_context *context)
{
  if (context->state != NULL) pthread_mutex_destroy(&context->lock);
  free(context->state);
  free(context->attributes);
  free(context);
}

ncclResult_t tt_cuda_open(const struct tt_device_config *config, struct tt_device_context **out)
{
  struct tt_device_context *context;
  struct tt_cuda_enter enter;
  ncclResult_t result;
  *out = NULL;
  TT_TRY(TT_CALLOC(&context, 1));
  context->device = config->index;
  context->rank = config->rank;
  context->nranks = config->nranks;
  TT_TRY_GOTO(init_state(context), result, out);
  TT_TRY_GOTO(find_primary(config->index, &context->state->primary), result, out);
  TT_TRY_GOTO(tt_cuda_enter(context, &enter), result, out);
  result = open_entered(context, config);
  if (result != ncclSuccess) close_entered(context);
  tt_cuda_leave(&enter);
  if (result == ncclSuccess) {
    *out = context;
    return ncclSuccess;
  }
out:
  free_context(context);
  return result;
}

static bool is_stopped(const struct tt_device_context *context)
{
  return __atomic_load_n(&context->mapped->abort, __ATOMIC_ACQUIRE) != 0;
}

/* Whether the last launch, and with it all others, is done. */
static ncclResult_t check_launches(struct tt_device_context *context, bool *done)
{
  *done = true;
  if (!context->state->any_launch) return ncclSuccess;
  cudaError_t error = cudaEventQuery(context->state->launched);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    *done = false;
    return ncclSuccess;
  }
  return tt_cuda_check(error, "a kernel of a collective operation");
}

/* Waits for the works, without a limit unless they were stopped. False: they still run. */
static bool outlive_works(struct tt_device_context *context)
{
  bool done = false;
  tt_deadline deadline = TT_DEADLINE_NEVER;
  for (int poll = 0; check_launches(context, &done) == ncclSuccess && !done; poll = TT_MIN(poll + 1, QUICK_POLLS)) {
    if (deadline == TT_DEADLINE_NEVER && is_stopped(context)) deadline = tt_deadline_in_ms(STOPPED_MS);
    if (tt_deadline_passed(deadline)) return false;
    pause_between_polls(poll);
  }
  return true; /* also where the device has failed: nothing runs there any more */
}

void tt_cuda_close(struct tt_device_context *context)
{
  struct tt_cuda_enter enter;
  if (tt_cuda_enter(context, &enter) != ncclSuccess) return;
  bool idle = outlive_works(context) && !context->state->side_stuck;
  if (idle)
    close_entered(context);
  else
    TT_WARN("rank %d: works on GPU %d have not ended a second after they were stopped, most likely since they stand "
            "behind other work in the user's stream. Their memory stays allocated until the process ends",
            context->rank, context->device);
  tt_cuda_leave(&enter);
  if (idle) free_context(context);
}

/* ---- Works as a whole ---- */

ncclResult_t tt_cuda_launched(struct tt_device_context *context, cudaStream_t stream)
{
  TT_CUDA_TRY(cudaEventRecord(context->state->launched, stream), "recording an event behind a launch");
  context->state->any_launch = true;
  return ncclSuccess;
}

void tt_cuda_stop(struct tt_device_context *context)
{
  __atomic_store_n(&context->mapped->abort, 1, __ATOMIC_RELEASE);
}

ncclResult_t tt_cuda_drain(struct tt_device_context *context, int timeout_ms, int *done)
{
  struct tt_cuda_enter enter;
  bool all = false;
  *done = 0;
  TT_TRY(tt_cuda_enter(context, &enter));
  tt_deadline deadline = tt_deadline_in_ms(TT_MAX(timeout_ms, 0));
  ncclResult_t result;
  for (int poll = 0;; poll = TT_MIN(poll + 1, QUICK_POLLS)) {
    result = check_launches(context, &all);
    if (result != ncclSuccess || all || tt_deadline_passed(deadline)) break;
    pause_between_polls(poll);
  }
  tt_cuda_leave(&enter);
  *done = result == ncclSuccess && all;
  return result;
}

/* ---- The side stream ---- */

ncclResult_t tt_cuda_side_wait(struct tt_device_context *context, cudaError_t started, const char *doing)
{
  tt_deadline deadline = tt_deadline_in_ms(TT_CUDA_SIDE_MS);
  TT_TRY(tt_cuda_check(started, doing));
  cudaError_t error;
  for (int poll = 0; (error = cudaStreamQuery(context->side)) == cudaErrorNotReady;
       poll = TT_MIN(poll + 1, QUICK_POLLS)) {
    cudaGetLastError();
    if (context->state->side_stuck || tt_deadline_passed(deadline)) {
      context->state->side_stuck = true;
      return TT_FAIL(ncclSystemError,
                     "rank %d: GPU %d did not do this in %d ms: %s. Kernels that do not end seem to occupy all of it",
                     context->rank, context->device, TT_CUDA_SIDE_MS, doing);
    }
    pause_between_polls(poll);
  }
  return tt_cuda_check(error, doing);
}
