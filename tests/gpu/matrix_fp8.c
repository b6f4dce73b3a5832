/* See matrix.h: the GPU's conversions against the host's. Rank 0 has code i mod 256 in element i, rank 1 has i / 256.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kernels/host/fp8.h"
#include "matrix.h"

enum { PAIRS = 65536 };

static float widen(const struct perf_type *type, uint8_t code)
{
  return type->type == ncclFloat8e4m3 ? tt_e4m3_to_float(code) : tt_e5m2_to_float(code);
}

static uint8_t narrow(const struct perf_type *type, float value)
{
  return type->type == ncclFloat8e4m3 ? tt_float_to_e4m3(value) : tt_float_to_e5m2(value);
}

/* A number that stays one against a NaN. */
static float extreme(float a, float b, bool larger)
{
  if (isnan(a)) return b;
  if (isnan(b)) return a;
  return (larger ? b > a : b < a) ? b : a;
}

static uint8_t expected(const struct perf_type *type, ncclRedOp_t op, uint8_t first, uint8_t second)
{
  float a = widen(type, first), b = widen(type, second);
  if (op == ncclProd) return narrow(type, a * b);
  if (op == ncclMax || op == ncclMin) return narrow(type, extreme(a, b, op == ncclMax));
  if (op == ncclAvg) a = widen(type, narrow(type, a * 0.5f)), b = widen(type, narrow(type, b * 0.5f));
  return narrow(type, a + b);
}

/* Zeros of either sign are one extreme, and any NaN is a NaN. */
static bool is_same(const struct perf_type *type, ncclRedOp_t op, uint8_t wanted, uint8_t found)
{
  float a = widen(type, wanted), b = widen(type, found);
  if (wanted == found || (isnan(a) && isnan(b))) return true;
  return (op == ncclMax || op == ncclMin) && a == b;
}

uint64_t matrix_fp8(struct perf_worker *worker, int rank, const struct perf_type *type, const struct perf_op *op,
                    char *first, size_t first_size)
{
  const struct perf_backend *backend = worker->team->backend;
  char *send = worker->send[0].base, *recv = worker->recv[0].base;
  uint8_t codes[PAIRS];
  uint64_t wrong = 0;
  for (int i = 0; i < PAIRS; i++) codes[i] = (uint8_t)(rank == 0 ? i : i >> 8);
  perf_worker_must(worker, 0, "filling its buffers", backend->copy_in(send, codes, PAIRS));
  perf_worker_try(worker, rank, "ncclAllReduce",
                  ncclAllReduce(send, recv, PAIRS, type->type, op->op, worker->comms[0], worker->streams[0]));
  perf_worker_wait(worker);
  perf_worker_must(worker, 0, "reading its buffers", backend->copy_out(codes, recv, PAIRS));
  for (int i = 0; i < PAIRS; i++) {
    uint8_t a = (uint8_t)i, b = (uint8_t)(i >> 8), wanted = expected(type, op->op, a, b);
    if (is_same(type, op->op, wanted, codes[i])) continue;
    if (wrong++ == 0)
      snprintf(first, first_size, "0x%02x and 0x%02x give 0x%02x (%g) instead of 0x%02x (%g)", a, b, codes[i],
               (double)widen(type, codes[i]), wanted, (double)widen(type, wanted));
  }
  return wrong;
}
