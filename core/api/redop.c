/* See redop.h.
 *
 * An op's handle is made of its number and of its communicator's mark, so that one of another communicator is found
 * out; the last bits that the enum has are left to NCCL's own. Numbers and marks are used again only when all were.
 * Marks are the process's own: several communicators may be made from one id. */
#include "api/redop.h"

#include <stdlib.h>
#include <string.h>
#include "api/check.h"
#include "api/export.h"
#include "api/handle.h"
#include "base/check.h"
#include "kernels/host/fp8.h"
#include "program/signature.h"

enum { NUMBER_BITS = 12, MOST = 1 << NUMBER_BITS, MARKS = (1 << (31 - NUMBER_BITS)) - 1 };

struct tt_redop {
  bool used;
  ncclDataType_t datatype;
  uint64_t scale; /* bits of struct tt_reduction's */
  /* Where the scalar lies: the host's device has it read at each call, others when the operation runs. NULL: it is in
   * `scale`. */
  const void *pointer;
};

struct tt_redops {
  pthread_mutex_t lock;
  struct tt_redop ops[MOST];
  int next;
  int mark; /* at least 1: what is below 1 << NUMBER_BITS are NCCL's own */
};

static int handle_of(const struct tt_redops *ops, int number)
{
  return ops->mark << NUMBER_BITS | number;
}

/* The scalar as devices take it: nccl.h's types up to 32 bits as float, the others as they are. */
static uint64_t read_scalar(ncclDataType_t datatype, const void *scalar)
{
  struct tt_reduction reduction = {0};
  switch (datatype) {
  case ncclInt8:
    reduction.scale.i64 = *(const int8_t *)scalar;
    break;
  case ncclUint8:
    reduction.scale.i64 = *(const uint8_t *)scalar;
    break;
  case ncclInt32:
    reduction.scale.i64 = *(const int32_t *)scalar;
    break;
  case ncclUint32:
    reduction.scale.i64 = *(const uint32_t *)scalar;
    break;
  case ncclInt64:
  case ncclUint64:
    memcpy(&reduction.scale.i64, scalar, 8);
    break;
  case ncclFloat16:
    reduction.scale.f32 = tt_half_to_float(*(const uint16_t *)scalar);
    break;
  case ncclBfloat16:
    reduction.scale.f32 = tt_bfloat_to_float(*(const uint16_t *)scalar);
    break;
  case ncclFloat8e4m3:
    reduction.scale.f32 = tt_e4m3_to_float(*(const uint8_t *)scalar);
    break;
  case ncclFloat8e5m2:
    reduction.scale.f32 = tt_e5m2_to_float(*(const uint8_t *)scalar);
    break;
  case ncclFloat32:
    reduction.scale.f32 = *(const float *)scalar;
    break;
  case ncclFloat64:
    reduction.scale.f64 = *(const double *)scalar;
    break;
  default: /* check_type has refused it */
    break;
  }
  return reduction.scale.bits;
}

static ncclResult_t check_type(ncclDataType_t datatype)
{
  if ((int)datatype >= 0 && (int)datatype < ncclNumTypes) return ncclSuccess;
  return TT_FAIL(ncclInvalidArgument,
                 "ncclRedOpCreatePreMulSum: datatype is %d (%s); only types that can be reduced can be scaled",
                 (int)datatype, tt_datatype_name(datatype));
}

static ncclResult_t get_ops(struct ncclComm *comm, struct tt_redops **ops)
{
  static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
  static int last_mark;
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&making);
  if (comm->redops == NULL && (result = TT_CALLOC(&comm->redops, 1)) == ncclSuccess) {
    pthread_mutex_init(&comm->redops->lock, NULL);
    comm->redops->mark = last_mark = last_mark % MARKS + 1;
  }
  *ops = comm->redops;
  pthread_mutex_unlock(&making);
  return result;
}

static ncclResult_t create(struct ncclComm *comm, ncclRedOp_t *op, const struct tt_redop *made)
{
  struct tt_redops *ops;
  TT_TRY(get_ops(comm, &ops));
  pthread_mutex_lock(&ops->lock);
  int number = ops->next, tried = 0;
  while (ops->ops[number].used && ++tried < MOST) number = (number + 1) % MOST;
  bool full = ops->ops[number].used;
  if (!full) {
    ops->ops[number] = *made;
    ops->next = (number + 1) % MOST;
    *op = (ncclRedOp_t)handle_of(ops, number);
  }
  pthread_mutex_unlock(&ops->lock);
  if (full)
    return TT_FAIL(ncclInvalidUsage,
                   "ncclRedOpCreatePreMulSum: the communicator has %d operations; destroy some with "
                   "ncclRedOpDestroy",
                   MOST);
  return ncclSuccess;
}

/* The op of a handle; NULL if it is none of this communicator. Locked. */
static struct tt_redop *find(struct ncclComm *comm, ncclRedOp_t op)
{
  int number = (int)op & (MOST - 1);
  if (comm->redops == NULL || handle_of(comm->redops, number) != (int)op) return NULL;
  return comm->redops->ops[number].used ? &comm->redops->ops[number] : NULL;
}

static ncclResult_t unknown(const char *function, ncclRedOp_t op)
{
  return TT_FAIL(
      ncclInvalidArgument,
      "%s: op is %d; allowed are ncclSum (0) to ncclAvg (4), and what ncclRedOpCreatePreMulSum made for this "
      "communicator and was not destroyed",
      function, (int)op);
}

ncclResult_t tt_redop_resolve(const char *function, struct ncclComm *comm, struct tt_task *task)
{
  if ((int)task->op < ncclNumOps) return (int)task->op >= 0 ? ncclSuccess : unknown(function, task->op);
  struct tt_redops *ops;
  struct tt_redop op = {0};
  TT_TRY(get_ops(comm, &ops));
  pthread_mutex_lock(&ops->lock);
  struct tt_redop *found = find(comm, task->op);
  if (found != NULL) op = *found;
  pthread_mutex_unlock(&ops->lock);
  if (found == NULL) return unknown(function, task->op);
  if (op.datatype != task->datatype)
    return TT_FAIL(ncclInvalidArgument, "%s: the op was made for %s, and is used with %s", function,
                   tt_datatype_name(op.datatype), tt_datatype_name(task->datatype));
  bool host = !(comm->device->features & TT_DEVICE_MEMORY);
  task->op = ncclSum;
  task->scaled = true;
  task->scale = host && op.pointer != NULL ? read_scalar(op.datatype, op.pointer) : op.scale;
  task->scale_at = host ? NULL : op.pointer;
  return ncclSuccess;
}

void tt_redop_free(struct ncclComm *comm)
{
  if (comm->redops == NULL) return;
  pthread_mutex_destroy(&comm->redops->lock);
  free(comm->redops);
  comm->redops = NULL;
}

static ncclResult_t create_premulsum(struct ncclComm *comm, ncclRedOp_t *op, const void *scalar,
                                     ncclDataType_t datatype, ncclScalarResidence_t residence)
{
  struct tt_redop made = {.used = true, .datatype = datatype};
  TT_TRY(tt_api_check_ready("ncclRedOpCreatePreMulSum", comm));
  if (residence != ncclScalarHostImmediate && residence != ncclScalarDevice)
    return TT_FAIL(ncclInvalidArgument,
                   "ncclRedOpCreatePreMulSum: residence is %d; allowed are ncclScalarDevice (0) and "
                   "ncclScalarHostImmediate (1)",
                   (int)residence);
  TT_TRY(check_type(datatype));
  if (residence == ncclScalarHostImmediate)
    made.scale = read_scalar(datatype, scalar);
  else if ((comm->device->features & TT_DEVICE_MEMORY) && !(comm->device->features & TT_DEVICE_SCALARS))
    return TT_FAIL(ncclInvalidUsage,
                   "ncclRedOpCreatePreMulSum: this library of the %s device reads no scalars from its memory; use "
                   "ncclScalarHostImmediate",
                   comm->device->name);
  else
    made.pointer = scalar;
  return create(comm, op, &made);
}

TT_EXPORT(ncclResult_t, ncclRedOpCreatePreMulSum,
          (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence, ncclComm_t comm))
{
  TT_TRY(tt_api_check_pointer("ncclRedOpCreatePreMulSum", "op", op));
  TT_TRY(tt_api_check_pointer("ncclRedOpCreatePreMulSum", "scalar", scalar));
  TT_TRY(tt_handle_hold_own("ncclRedOpCreatePreMulSum", comm));
  ncclResult_t result = create_premulsum(comm, op, scalar, datatype, residence);
  tt_handle_let_go(comm);
  return result;
}

TT_EXPORT(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))
{
  struct tt_redops *ops;
  TT_TRY(tt_handle_hold_own("ncclRedOpDestroy", comm));
  ncclResult_t result = tt_api_check_ready("ncclRedOpDestroy", comm);
  if (result == ncclSuccess) result = get_ops(comm, &ops);
  if (result == ncclSuccess) {
    pthread_mutex_lock(&ops->lock);
    struct tt_redop *found = find(comm, op);
    if (found != NULL) found->used = false;
    pthread_mutex_unlock(&ops->lock);
    if (found == NULL)
      result =
          TT_FAIL(ncclInvalidArgument,
                  "ncclRedOpDestroy: op is %d, which ncclRedOpCreatePreMulSum did not make for this communicator, or "
                  "which was destroyed before",
                  (int)op);
  }
  tt_handle_let_go(comm);
  return result;
}
