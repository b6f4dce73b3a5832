/* What works say of themselves: the page that kernels write, in words. */
#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "base/timer.h"
#include "kernels/cuda/state.h"
#include "program/signature.h"

/* A thread that waits counts every 50 ms. Between two counts it must not seem to go on, nor long after the last one
 * still to wait. */
#define STALL_LASTS_NS (3ull * TT_CUDA_STALL_NS)
/* Tries to read what another count does not overwrite meanwhile. */
#define READS 3

#define SAME_CALLS "All ranks must make the same calls in the same order"

/* In LL and LL128 a hash tells that ranks disagree, and the header with the peer's signature comes about when the hash
 * does: what was read may be what an earlier operation left there, or a mixture. A connection has one protocol. */
static bool is_plausible(const struct tt_signature *mine, const struct tt_signature *got)
{
  static const uint8_t none[sizeof(got->reserved)];
  char fields[8];
  tt_signature_differences(mine, got, fields, sizeof(fields));
  return fields[0] != '\0' && got->collective < TT_NUM_FUNCS && tt_datatype_bytes(got->datatype) != 0 &&
         got->algorithm < TT_NUM_ALGORITHMS && got->protocol == mine->protocol && got->nchannels != 0 &&
         memcmp(got->reserved, none, sizeof(none)) == 0;
}

static void describe_mismatch(const struct tt_device_context *context, const struct tt_cuda_mapped *page,
                              struct tt_device_status *status)
{
  char mine[130], got[130], fields[64]; /* so that all fits */
  int rank = context->rank, peer = page->error_peer;
  status->result = ncclInvalidUsage;
  tt_signature_describe(&page->mine, mine, sizeof(mine));
  if (page->mine.protocol != TT_PROTO_SIMPLE && !is_plausible(&page->mine, &page->got)) {
    status->unexplained = 1;
    snprintf(status->text, sizeof(status->text),
             "ranks %d and %d do not execute the same operation. Rank %d: %s. " SAME_CALLS, rank, peer, rank, mine);
    return;
  }
  tt_signature_describe(&page->got, got, sizeof(got));
  tt_signature_differences(&page->mine, &page->got, fields, sizeof(fields));
  snprintf(status->text, sizeof(status->text),
           "ranks %d and %d do not execute the same operation: they differ in %s. Rank %d: %s. Rank %d: %s. %s", rank,
           peer, fields[0] ? fields : "fields without a name", rank, mine, peer, got, SAME_CALLS);
}

static void describe_failure(const struct tt_device_context *context, uint32_t error, struct tt_device_status *status)
{
  const struct tt_cuda_mapped *page = context->mapped; /* complete, and written no more */
  char mine[200];
  status->peer = page->error_peer;
  status->signature = page->mine;
  if (error == TT_CUDA_WRONG_SIGNATURE) {
    describe_mismatch(context, page, status);
    return;
  }
  status->result = ncclInternalError;
  tt_signature_describe(&page->mine, mine, sizeof(mine));
  if (error == TT_CUDA_WRONG_BYTES)
    snprintf(status->text, sizeof(status->text),
             "rank %d expected a message of %llu bytes from rank %d on channel %u and got one of %llu, in %s",
             context->rank, (unsigned long long)page->expected_bytes, page->error_peer, page->error_channel,
             (unsigned long long)page->got_bytes, mine);
  else
    snprintf(status->text, sizeof(status->text), "rank %d: a kernel reports the unknown failure %u with rank %d, in %s",
             context->rank, error, page->error_peer, mine);
}

/* Word by word, each read after the one before it. */
static void copy_signature(struct tt_signature *to, const struct tt_signature *from)
{
  const uint64_t *words = (const uint64_t *)from;
  uint64_t copy[sizeof(*to) / sizeof(*words)];
  for (size_t i = 0; i < TT_COUNT(copy); i++) copy[i] = __atomic_load_n(&words[i], __ATOMIC_ACQUIRE);
  memcpy(to, copy, sizeof(*to));
}

/* Several threads may wait, for different peers: any of them is as good as another. */
static void describe_stall(const struct tt_cuda_mapped *page, struct tt_device_status *status)
{
  status->stalled = 1;
  for (int read = 0; read < READS; read++) {
    uint32_t before = __atomic_load_n(&page->stalls, __ATOMIC_ACQUIRE);
    status->peer = __atomic_load_n(&page->stall_peer, __ATOMIC_ACQUIRE);
    status->sending = __atomic_load_n(&page->stall_sending, __ATOMIC_ACQUIRE);
    copy_signature(&status->signature, &page->stalled);
    if (__atomic_load_n(&page->stalls, __ATOMIC_ACQUIRE) == before) break;
  }
}

static bool is_stalled(struct tt_device_context *context)
{
  struct tt_cuda_context_state *state = context->state;
  uint64_t now = tt_timer_ns();
  uint32_t stalls = __atomic_load_n(&context->mapped->stalls, __ATOMIC_ACQUIRE);
  if (stalls != atomic_load(&state->stalls)) { /* several threads may see it, all at about the same time */
    atomic_store(&state->stalled_at, now);
    atomic_store(&state->stalls, stalls);
  }
  uint64_t at = atomic_load(&state->stalled_at);
  return at != 0 && (at >= now || now - at < STALL_LASTS_NS);
}

ncclResult_t tt_cuda_status(struct tt_device_context *context, struct tt_device_status *out)
{
  struct tt_device_status status = {.size = out->size, .result = ncclSuccess, .peer = -1};
  uint32_t error = __atomic_load_n(&context->mapped->error, __ATOMIC_ACQUIRE);
  if (error != TT_CUDA_NO_ERROR)
    describe_failure(context, error, &status);
  else if (is_stalled(context))
    describe_stall(context->mapped, &status);
  memcpy(out, &status, TT_MIN(out->size, sizeof(status)));
  return ncclSuccess;
}
