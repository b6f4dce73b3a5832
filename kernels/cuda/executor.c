/* What a context needs to launch: see executor.h. */
#include "kernels/cuda/executor.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/stream.h"

tt_cuda_kernel tt_cuda_kernel_0, tt_cuda_kernel_1, tt_cuda_kernel_2, tt_cuda_kernel_3, tt_cuda_kernel_4,
    tt_cuda_kernel_5, tt_cuda_kernel_6, tt_cuda_kernel_7, tt_cuda_kernel_8, tt_cuda_kernel_9, tt_cuda_kernel_10,
    tt_cuda_kernel_11;

tt_cuda_kernel *const tt_cuda_kernels[12] = {
    [ncclInt8] = tt_cuda_kernel_0,     [ncclUint8] = tt_cuda_kernel_1,       [ncclInt32] = tt_cuda_kernel_2,
    [ncclUint32] = tt_cuda_kernel_3,   [ncclInt64] = tt_cuda_kernel_4,       [ncclUint64] = tt_cuda_kernel_5,
    [ncclFloat16] = tt_cuda_kernel_6,  [ncclFloat32] = tt_cuda_kernel_7,     [ncclFloat64] = tt_cuda_kernel_8,
    [ncclBfloat16] = tt_cuda_kernel_9, [ncclFloat8e4m3] = tt_cuda_kernel_10, [ncclFloat8e5m2] = tt_cuda_kernel_11,
};

/* ---- Life ---- */

/* Asking for a kernel's attributes loads its code. One that was compiled for GPUs before 9.0 does not wait for the grid
 * before it (ptx.cuh), on whatever GPU it runs. */
static ncclResult_t load_kernels(struct tt_cuda_executor *executor)
{
  executor->can_begin_early = true;
  for (size_t type = 0; type < TT_COUNT(tt_cuda_kernels); type++)
    for (int k = 0; k < TT_CUDA_FORMS * TT_NUM_PROTOCOLS; k++) {
      struct cudaFuncAttributes attributes;
      const void *kernel = tt_cuda_kernels[type](k / TT_CUDA_FORMS, k % TT_CUDA_FORMS);
      TT_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel");
      if (attributes.ptxVersion < TT_CUDA_EARLY_CAPABILITY) executor->can_begin_early = false;
    }
  return ncclSuccess;
}

ncclResult_t tt_cuda_executor_create(struct tt_device_context *context)
{
  struct tt_cuda_executor *executor;
  void *claim, *conns;
  TT_TRY(TT_CALLOC(&executor, 1));
  context->executor = executor;
  executor->launched_end = &executor->launched;
  TT_TRY(TT_CALLOC(&executor->free_conns, TT_CUDA_CONTEXT_CONNS));
  TT_TRY(tt_cuda_small_alloc(context, sizeof(*executor->claim), &claim));
  TT_TRY(tt_cuda_small_alloc(context, TT_CUDA_CONTEXT_CONNS * sizeof(*executor->conns), &conns));
  executor->claim = claim;
  executor->conns = conns;
  return load_kernels(executor);
}

/* ---- Programs ---- */

/* A program that was asked for, and what it became. Programs of equal content share their packed form: those of a
 * ring's channels, for example. */
struct tt_cuda_program_entry {
  struct tt_cuda_program_entry *next;
  const struct tt_program *program;
  struct tt_cuda_program *packed;
  void *on_device;
  bool owner; /* of `packed` */
};

static struct tt_cuda_program_entry **bucket(struct tt_cuda_executor *executor, const struct tt_program *program)
{
  return &executor->programs[(uintptr_t)program / 64 % TT_COUNT(executor->programs)];
}

static struct tt_cuda_program_entry *find_equal(struct tt_cuda_executor *executor, const struct tt_cuda_program *packed)
{
  for (size_t b = 0; b < TT_COUNT(executor->programs); b++)
    for (struct tt_cuda_program_entry *e = executor->programs[b]; e != NULL; e = e->next)
      if (e->packed->bytes == packed->bytes && memcmp(e->packed, packed, packed->bytes) == 0) return e;
  return NULL;
}

static ncclResult_t add_program(struct tt_device_context *context, const struct tt_program *program,
                                struct tt_cuda_program_entry **out)
{
  struct tt_cuda_executor *executor = context->executor;
  struct tt_cuda_program_entry *entry;
  struct tt_cuda_program *packed;
  ncclResult_t result = ncclSuccess;
  TT_TRY(tt_cuda_pack(program, &packed));
  TT_TRY_GOTO(TT_CALLOC(&entry, 1), result, out);
  struct tt_cuda_program_entry *equal = find_equal(executor, packed);
  if (equal != NULL) {
    *entry = *equal;
    entry->owner = false;
  } else {
    result = tt_cuda_small_alloc(context, packed->bytes, &entry->on_device);
    if (result == ncclSuccess) result = tt_cuda_upload(context, entry->on_device, packed, packed->bytes);
    entry->packed = packed;
    entry->owner = true;
    packed = NULL;
  }
  entry->program = program;
  if (result != ncclSuccess) {
    if (entry->owner) free(entry->packed);
    free(entry);
    goto out;
  }
  entry->next = *bucket(executor, program);
  *bucket(executor, program) = entry;
  *out = entry;
out:
  free(packed);
  return result;
}

ncclResult_t tt_cuda_program_get(struct tt_device_context *context, const struct tt_program *program,
                                 const struct tt_cuda_program **packed, const struct tt_cuda_program **on_device)
{
  struct tt_cuda_program_entry *entry = *bucket(context->executor, program);
  while (entry != NULL && entry->program != program) entry = entry->next;
  if (entry == NULL) TT_TRY(add_program(context, program, &entry));
  *packed = entry->packed;
  *on_device = entry->on_device;
  return ncclSuccess;
}

/* ---- Connections ---- */

static ncclResult_t take_index(struct tt_device_context *context, uint32_t *index)
{
  struct tt_cuda_executor *executor = context->executor;
  if (executor->nfree > 0)
    *index = executor->free_conns[--executor->nfree];
  else if (executor->nconns < TT_CUDA_CONTEXT_CONNS)
    *index = executor->nconns++;
  else
    return TT_FAIL(ncclInvalidUsage,
                   "rank %d has %d ends of connections, and can have no more; use fewer channels "
                   "(NCCL_MAX_NCHANNELS)",
                   context->rank, TT_CUDA_CONTEXT_CONNS);
  return ncclSuccess;
}

ncclResult_t tt_cuda_conn_open(struct tt_device_context *context, struct tt_conn *conn)
{
  struct tt_cuda_conn end = {.head = (uint64_t *)conn->head,
                             .tail = (uint64_t *)conn->tail,
                             .step = conn->step,
                             .peer = conn->peer,
                             .protocol = -1};
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (conn->slots[p] == NULL) continue;
    if (end.protocol >= 0)
      return TT_FAIL(ncclInternalError, "a connection of rank %d to rank %d has slots of two protocols", context->rank,
                     conn->peer);
    end.protocol = p;
    end.slots = conn->slots[p];
    end.slot_bytes = (uint32_t)conn->slot_bytes[p];
  }
  end.seen = end.step;
  bool lines = (conn->flags & TT_CONN_LINES) != 0, proxied = lines || (conn->flags & TT_CONN_PROXIED);
  if (proxied && end.protocol != (lines ? TT_PROTO_LL : TT_PROTO_SIMPLE))
    return TT_FAIL(ncclInternalError, "a connection of rank %d to rank %d over a network is not for %s", context->rank,
                   conn->peer, lines ? "LL" : "Simple");
  if (proxied && !lines) end.fifo = conn->fifo;
  if (conn->flags & TT_CONN_POOLED) end.slots = NULL;
  /* Both ends write what both counters start from, where memory's zero is not it. A proxy's are set already. */
  if (end.step != 0 && !proxied) {
    TT_TRY(tt_cuda_upload(context, end.head, &end.step, sizeof(end.step)));
    TT_TRY(tt_cuda_upload(context, end.tail, &end.step, sizeof(end.step)));
  }
  uint32_t index;
  pthread_mutex_lock(&context->lock);
  ncclResult_t result = take_index(context, &index);
  if (result == ncclSuccess) {
    result = tt_cuda_upload(context, context->executor->conns + index, &end, sizeof(end));
    if (result != ncclSuccess) context->executor->free_conns[context->executor->nfree++] = index;
  }
  pthread_mutex_unlock(&context->lock);
  if (result == ncclSuccess) conn->twin = (void *)(uintptr_t)(index + 1);
  return result;
}

void tt_cuda_conn_close(struct tt_device_context *context, struct tt_conn *conn)
{
  if (conn->twin == NULL) return;
  pthread_mutex_lock(&context->lock);
  context->executor->free_conns[context->executor->nfree++] = tt_cuda_conn_index(conn);
  pthread_mutex_unlock(&context->lock);
  conn->twin = NULL;
}

void tt_cuda_executor_destroy(struct tt_device_context *context)
{
  struct tt_cuda_executor *executor = context->executor;
  if (executor == NULL) return;
  for (size_t b = 0; b < TT_COUNT(executor->programs); b++)
    for (struct tt_cuda_program_entry *e = executor->programs[b], *next; e != NULL; e = next) {
      next = e->next;
      if (e->owner) free(e->packed);
      free(e);
    }
  tt_cuda_repeats_free(context);
  tt_cuda_blobs_free(context);
  tt_cuda_graphs_forget(context);
  free(executor->free_conns);
  free(executor);
  context->executor = NULL;
}
