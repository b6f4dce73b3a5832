/* From a collective's task to its work: choice, programs, geometry, scaling. */
#include "plan/plan.h"

#include "base/check.h"
#include "plan/agreed.h"
#include "plan/geometry.h"
#include "plan/kept.h"
#include "plan/mapped.h"
#include "plan/shared.h"
#include "program/emit.h"
#include "program/signature.h"

static bool is_float(int datatype)
{
  return datatype == ncclFloat16 || datatype == ncclBfloat16 || datatype == ncclFloat32 || datatype == ncclFloat64 ||
         datatype == ncclFloat8e4m3 || datatype == ncclFloat8e5m2;
}

/* How the average is made is nccl.h's rule: floats scale each input, integers divide the sum. */
static void set_reduction(struct tt_reduction *reduction, const struct tt_task *task, int nranks)
{
  reduction->datatype = (uint8_t)task->datatype;
  reduction->op = (uint8_t)task->op;
  if (task->scaled) {
    reduction->scale_inputs = 1;
    reduction->scale.bits = task->scale;
  }
  if (task->op != ncclAvg) return;
  reduction->op = ncclSum;
  if (task->datatype == ncclFloat64) {
    reduction->scale_inputs = 1;
    reduction->scale.f64 = 1.0 / nranks;
  } else if (is_float(task->datatype)) {
    reduction->scale_inputs = 1;
    reduction->scale.f32 = 1.0f / (float)nranks;
  } else {
    reduction->divide_result = 1;
    reduction->divisor = nranks;
  }
}

int tt_plan_op(const struct tt_task *task)
{
  if (!tt_collective_reduces(task->collective)) return 0;
  return task->scaled ? TT_OP_PREMULSUM : (int)task->op;
}

static void set_signature(struct tt_signature *signature, struct ncclComm *comm, const struct tt_task *task,
                          const struct tt_choice *choice)
{
  *signature = (struct tt_signature){
      .sequence = comm->collectives++,
      .count = task->count,
      .root = task->root,
      .collective = (uint8_t)task->collective,
      .datatype = (uint8_t)task->datatype,
      .op = (uint8_t)tt_plan_op(task),
      .algorithm = (uint8_t)choice->algorithm,
      .protocol = (uint8_t)choice->protocol,
      .nchannels = (uint8_t)choice->nchannels,
  };
}

/* What cannot be used for a task, and what can be. */
static uint32_t without_of(const struct ncclComm *comm, const struct tt_task *task, bool mapped)
{
  const bool reduces = tt_collective_reduces(task->collective);
  const int op = task->op == ncclAvg ? (int)ncclSum : (int)task->op;
  bool unreduced = comm->collnet != NULL && reduces &&
                   (task->scaled || !tt_collnet_reduces(&comm->collnet_offer, task->datatype, task->op));
  bool unread = comm->multicast.possible && reduces && !tt_multicast_reduces(&comm->multicast, task->datatype, op);
  return (unreduced ? TT_WITHOUT_COLLNET : 0) | (unread ? TT_WITHOUT_NVLS : 0) | (mapped ? TT_WITH_MAPPED : 0);
}

ncclResult_t tt_plan_choose(const struct ncclComm *comm, const struct tt_task *task, size_t bytes, bool mapped,
                            struct tt_choice *choice)
{
  const uint32_t without = without_of(comm, task, mapped);
  const int op = task->op == ncclAvg ? (int)ncclSum : (int)task->op;
  if (without & TT_WITHOUT_NVLS)
    TT_INFO(TT_TUNING, "%s: NVLS is out, as multicast memory does not reduce %s by %s",
            tt_collective_name(task->collective), tt_datatype_name(task->datatype), tt_op_name(op));
  if (without & TT_WITHOUT_COLLNET)
    TT_INFO(TT_TUNING, "%s: CollNet is out, as network %s does not reduce %s by %s",
            tt_collective_name(task->collective), tt_collnet_name(comm->collnet), tt_datatype_name(task->datatype),
            tt_op_name(tt_plan_op(task)));
  if (comm->agreed != NULL && task->collective <= TT_FUNC_ALL_REDUCE) {
    const struct tt_tuner_query query = {.collective = task->collective, .without = without, .bytes = bytes};
    TT_TRY(tt_agreed_choose(comm->agreed, &query, choice));
  } else {
    TT_TRY(tt_tuning_choose_without(comm->tuning, task->collective, bytes, without, choice));
  }
  tt_tuning_use_engines(comm->tuning, task->collective, bytes, choice);
  TT_INFO(TT_TUNING, "%s: %zu bytes -> algorithm %s protocol %s channels %d: %s", tt_collective_name(task->collective),
          bytes, tt_algorithm_name(choice->algorithm), tt_protocol_name(choice->protocol), choice->nchannels,
          choice->reason);
  return ncclSuccess;
}

static size_t bytes_of(const struct ncclComm *comm, const struct tt_task *task)
{
  size_t blocks = tt_collective_has_blocks(task->collective) ? (size_t)comm->nranks : 1;
  return task->count * tt_datatype_bytes(task->datatype) * blocks;
}

bool tt_plan_apart(const struct ncclComm *comm, const struct tt_task *task)
{
  uintptr_t input = (uintptr_t)task->input, output = (uintptr_t)task->output, bytes = bytes_of(comm, task);
  return task->collective == TT_FUNC_ALL_TO_ALL && (input + bytes <= output || output + bytes <= input);
}

bool tt_plan_prefers_mapped(struct ncclComm *comm, const struct tt_task *task)
{
  const size_t bytes = bytes_of(comm, task);
  const bool message = tt_collective_is_message(task->collective); /* both of its ends ask the same */
  const int collective = message ? TT_FUNC_SEND_RECV : task->collective;
  const uint32_t without = without_of(comm, task, true), question = without << 8 | (uint32_t)collective;
  struct tt_preference *known = &comm->preferences[(bytes / 64 + question) % TT_COUNT(comm->preferences)];
  struct tt_choice choice;
  if (comm->agreed != NULL && !message) return true;
  if (known->question == question && known->bytes == bytes) return known->mapped;
  tt_log_hush(true);
  ncclResult_t result = tt_tuning_choose_without(comm->tuning, collective, bytes, without, &choice);
  tt_log_hush(false);
  *known = (struct tt_preference){
      .bytes = bytes, .question = question, .mapped = result == ncclSuccess && choice.algorithm == TT_ALGO_MAPPED};
  return known->mapped;
}

/* For a tuner that asks to be asked again. */
static ncclResult_t count_call(struct ncclComm *comm, const struct tt_task *task, size_t bytes, bool mapped,
                               uint64_t *answer)
{
  const struct tt_tuner_query kind = {
      .collective = task->collective, .without = without_of(comm, task, mapped), .bytes = bytes};
  if (comm->nranks == 1 || task->collective > TT_FUNC_ALL_REDUCE) return ncclSuccess;
  return tt_agreed_count(comm->agreed, &kind, answer);
}

/* A communicator of one rank needs no choice: every collective is a local copy. */
static ncclResult_t choose(struct ncclComm *comm, const struct tt_task *task, size_t bytes, bool mapped,
                           struct tt_choice *choice)
{
  if (comm->nranks > 1) return tt_plan_choose(comm, task, bytes, mapped, choice);
  int algorithm = tt_program_supports(task->collective, TT_ALGO_RING) ? TT_ALGO_RING : TT_ALGO_DIRECT;
  *choice = (struct tt_choice){.algorithm = algorithm,
                               .protocol = TT_PROTO_SIMPLE,
                               .nchannels = tt_plan_copy_channels(comm, bytes),
                               .smallest_chunk = bytes,
                               .chunks = 1};
  return ncclSuccess;
}

static ncclResult_t no_memory(size_t bytes)
{
  return TT_FAIL(ncclSystemError, "no memory for an operation of %zu bytes", bytes);
}

/* A work that was kept, for the same operation on other memory. */
static ncclResult_t use_again(struct tt_plan *plan, const struct tt_task *task, const struct tt_mapped_buffers *mapped,
                              struct tt_work *kept)
{
  struct ncclComm *comm = plan->comm;
  tt_mapped_place(mapped, kept);
  if (!tt_plan_append(plan, kept)) {
    tt_pool_give(kept);
    return no_memory(bytes_of(comm, task));
  }
  kept->signature.sequence = comm->collectives++;
  return ncclSuccess;
}

/* Where some ranks are connected by a network, by smaller slots for all-to-all and the like, chunks fit these. */
static size_t slot_bytes(const struct ncclComm *comm, int collective, int protocol)
{
  size_t bytes = tt_plan_slot_bytes(comm, protocol);
  bool small = comm->far != NULL && protocol == TT_PROTO_SIMPLE && tt_plan_exchanges(collective);
  return small ? TT_MIN(bytes, tt_transport_far_slot_bytes(protocol)) : bytes;
}

ncclResult_t tt_plan_collective(struct tt_plan *plan, const struct tt_task *task)
{
  struct ncclComm *comm = plan->comm;
  size_t element = tt_datatype_bytes(task->datatype), bytes = bytes_of(comm, task);

  struct tt_mapped_buffers mapped;
  TT_TRY(tt_mapped_find(plan, task, &mapped));
  uint64_t answer = 0;
  if (comm->agreed != NULL) TT_TRY(count_call(comm, task, bytes, mapped.all, &answer));
  struct tt_work *kept = tt_kept_take(comm, task, mapped.all, answer);
  if (kept != NULL) return use_again(plan, task, &mapped, kept);

  struct tt_choice choice;
  TT_TRY(choose(comm, task, bytes, mapped.all, &choice));
  const struct tt_program *programs[TT_MAX_CHANNELS];
  const struct tt_programs_key key = {task->collective, choice.algorithm, task->root, tt_plan_apart(comm, task)};
  for (int c = 0; c < choice.nchannels; c++) TT_TRY(tt_programs_get(comm->programs, &key, c, &programs[c]));

  struct tt_work *work = tt_plan_new_work(plan, programs, choice.nchannels, mapped.all ? comm->nranks : 0);
  if (work == NULL) return no_memory(bytes);
  tt_mapped_place(&mapped, work);
  work->input = task->input;
  work->output = task->output;
  work->protocol = choice.protocol;
  work->engines = choice.engines;
  work->order = 0;
  work->answer = answer;
  work->op_count = task->op_count;
  set_signature(&work->signature, comm, task, &choice);
  set_reduction(&work->reduction, task, comm->nranks);
  work->scale_at = task->scaled ? task->scale_at : NULL;

  size_t count = task->count;
  if (!tt_collective_reduces(task->collective)) { /* bytes will do, and any type then moves at full width */
    work->reduction = (struct tt_reduction){.op = ncclSum, .datatype = ncclUint8};
    count *= element;
    element = 1;
  }
  size_t capacity = bytes, scratch = 0; /* capacity of a local copy; else of a slot */
  if (comm->nranks > 1)
    capacity = tt_conn_capacity(slot_bytes(comm, task->collective, choice.protocol), choice.protocol);
  if (choice.largest_chunk > 0) capacity = TT_MIN(capacity, choice.largest_chunk);
  if (tt_mapped_is(programs[0])) { /* no slots to fit: a single loop */
    capacity = bytes + 64;
    choice.smallest_chunk = capacity;
  }
  for (int c = 0; c < choice.nchannels; c++) {
    struct tt_geometry *geometry = &work->channels[c].geometry;
    const struct tt_geometry_cut cut = {
        .count = count,
        .element_bytes = element,
        .parts = programs[c]->parts,
        .nchannels = choice.nchannels,
        .capacity =
            tt_shared_chunk(comm, programs[c], tt_geometry_piece(capacity, tt_program_most_pieces(programs[c]))),
        .smallest = choice.smallest_chunk,
        .chunks = choice.chunks,
    };
    tt_geometry_cut(&cut, c, geometry);
    geometry->input_stride = geometry->output_stride = count;
    geometry->scratch_stride = programs[c]->parts * geometry->chunk;
    geometry->scratch_lo = scratch;
    scratch += programs[c]->scratch_blocks * geometry->scratch_stride;
    TT_TRY(tt_shared_place(comm, work, c, element));
  }
  return comm->nranks == 1 ? ncclSuccess : tt_plan_need(comm, work);
}
