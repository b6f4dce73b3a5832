/* See kept.h. */
#include "plan/kept.h"

#include <stdlib.h>
#include "base/check.h"
#include "plan/exchange.h"
#include "plan/plan.h"
#include "program/emit.h"

/* Calls that are kept: a guess at what a training step makes, and at the messages of an all-to-all that is made of
 * sends. Who makes more has the oldest planned anew. */
#define KEPT 256
#define BUCKETS 64

struct entry {
  struct entry *next; /* of its bucket, or of those that are free */
  struct tt_work *work;
  uint64_t given; /* when, in the order of these */
};

struct tt_kept {
  struct entry entries[KEPT];
  struct entry *buckets[BUCKETS], *idle;
  uint64_t gives, last; /* last: number that a work was given (tt_work.repeat) */
};

/* What tells most calls apart. */
struct key {
  uint64_t count; /* of sends and receives: bytes, since both sides may see these as different types */
  int collective, root;
};

static bool is_message(const struct tt_task *task)
{
  return tt_collective_is_message(task->collective);
}

static struct key key_of(const struct tt_task *task)
{
  size_t unit = is_message(task) ? tt_datatype_bytes(task->datatype) : 1;
  return (struct key){.count = task->count * unit, .collective = task->collective, .root = task->root};
}

static struct key key_of_work(const struct tt_work *work)
{
  const struct tt_signature *s = &work->signature;
  const struct tt_program *program = work->channels[0].program;
  if (program->collective == TT_FUNC_SEND_RECV)
    return (struct key){.count = s->count,
                        .collective = program->collective,
                        .root = tt_programs_pair(tt_exchange_to(work), tt_exchange_from(work), program->nranks)};
  if (s->collective == TT_FUNC_SEND_RECV) /* a message to oneself has no peer */
    return (struct key){.count = s->count,
                        .collective = program->collective,
                        .root = program->npeers > 0 ? program->peers[0] : work->rank};
  return (struct key){.count = s->count, .collective = s->collective, .root = s->root};
}

static struct entry **bucket_of(struct tt_kept *kept, const struct key *key)
{
  uint64_t mixed = key->count ^ (uint64_t)key->collective << 56 ^ (uint64_t)key->root << 40;
  mixed *= UINT64_C(0x9e3779b97f4a7c15); /* 2^64 divided by the golden ratio: its upper bits depend on all of `mixed` */
  return &kept->buckets[mixed >> 58];
}
_Static_assert(BUCKETS == 1 << (64 - 58), "the upper bits choose the bucket");

/* Works whose memory may change hands are planned each time, and what a rank without others copies, which is quickly
 * planned. */
static bool can_keep(const struct ncclComm *comm, const struct tt_work *work)
{
  if (work->repeat != 0) return true; /* it was */
  if (!(comm->device->features & TT_DEVICE_STREAMS)) return false;
  if (work->channels[0].program->npeers == 0 && work->signature.collective != TT_FUNC_SEND_RECV) return false;
  for (uint32_t c = 0; c < work->nchannels; c++)
    if (work->channels[c].program->nscratch > 0 || work->channels[c].program->shared_blocks > 0) return false;
  return true;
}

static bool is_like(const struct tt_work *work, const struct tt_task *task, const struct key *key)
{
  const struct tt_signature *s = &work->signature;
  struct key own = key_of_work(work);
  if (own.count != key->count || own.collective != key->collective || own.root != key->root) return false;
  return is_message(task) ||
         (s->datatype == (int)task->datatype && s->op == tt_plan_op(task) &&
          (!task->scaled || (work->reduction.scale.bits == task->scale && work->scale_at == task->scale_at)));
}

/* Takes an entry off its bucket. */
static void make_idle(struct tt_kept *kept, struct entry **place)
{
  struct entry *entry = *place;
  *place = entry->next;
  *entry = (struct entry){.next = kept->idle};
  kept->idle = entry;
}

/* All-to-all has a program with an order, for buffers that are not apart, and one without. */
static bool has_order(const struct ncclComm *comm, const struct tt_work *work, const struct tt_task *task)
{
  if (task->collective != TT_FUNC_ALL_TO_ALL || comm->nranks == 1) return true;
  return (work->channels[0].program->nsemaphores == 0) == tt_plan_apart(comm, task);
}

struct tt_work *tt_kept_take(struct ncclComm *comm, const struct tt_task *task, bool mapped, uint64_t answer)
{
  if (comm->kept == NULL || tt_log_enabled(TT_LOG_INFO, TT_TUNING)) return NULL; /* each choice is to be logged */
  struct key key = key_of(task);
  for (struct entry **place = bucket_of(comm->kept, &key); *place != NULL; place = &(*place)->next) {
    struct entry *entry = *place;
    struct tt_work *work = entry->work;
    if (!is_like(work, task, &key) || (work->member_inputs != NULL) != mapped || work->answer != answer) continue;
    if (!has_order(comm, work, task)) continue;
    make_idle(comm->kept, place);
    work->input = task->input;
    work->output = task->output;
    work->op_count = task->op_count;
    work->complete = 0;
    return work;
  }
  return NULL;
}

static ncclResult_t make(struct ncclComm *comm)
{
  if (comm->kept != NULL) return ncclSuccess;
  TT_TRY(TT_CALLOC(&comm->kept, 1));
  for (int e = KEPT; e-- > 0;) {
    comm->kept->entries[e].next = comm->kept->idle;
    comm->kept->idle = &comm->kept->entries[e];
  }
  return ncclSuccess;
}

/* Frees the oldest; all entries are in use. */
static void drop_oldest(struct tt_kept *kept)
{
  struct entry *oldest = kept->entries;
  for (int e = 1; e < KEPT; e++)
    if (kept->entries[e].given < oldest->given) oldest = &kept->entries[e];
  struct key key = key_of_work(oldest->work);
  struct entry **place = bucket_of(kept, &key);
  while (*place != oldest) place = &(*place)->next;
  tt_pool_give(oldest->work);
  make_idle(kept, place);
}

void tt_kept_give(struct ncclComm *comm, struct tt_work *work)
{
  if (!can_keep(comm, work) || make(comm) != ncclSuccess) {
    tt_pool_give(work);
    return;
  }
  struct tt_kept *kept = comm->kept;
  if (kept->idle == NULL) drop_oldest(kept);
  struct key key = key_of_work(work);
  struct entry *entry = kept->idle, **bucket = bucket_of(kept, &key);
  kept->idle = entry->next;
  if (work->repeat == 0) work->repeat = ++kept->last;
  *entry = (struct entry){.next = *bucket, .work = work, .given = ++kept->gives};
  *bucket = entry;
}

void tt_kept_free(struct ncclComm *comm)
{
  for (int e = 0; comm->kept != NULL && e < KEPT; e++) tt_pool_give(comm->kept->entries[e].work);
  free(comm->kept);
  comm->kept = NULL;
}
