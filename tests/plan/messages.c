/* See messages.h. */
#include "messages.h"

#include <check.h>
#include <string.h>

#define GUARD 0x5eadbeefu

/* One in so many is looked at, and written: pages, and neighbours at both ends. */
enum { STEP = 509 };

static uint32_t value(int rank, size_t i, uint32_t time)
{
  return (uint32_t)rank * 2654435761u + (uint32_t)i * 97u + time * 40503u;
}

static size_t next(size_t i, size_t count)
{
  return i < 64 || i + 64 + STEP > count ? i + 1 : i + STEP;
}

void messages_fill(const struct messages *m, uint32_t time)
{
  for (size_t i = 0; m->to >= 0 && i < m->count; i = next(i, m->count)) m->in[i] = value(m->rank, i, time);
  for (size_t i = 0; i < m->count; i = next(i, m->count)) m->out[i] = 0x33333333;
  m->out[m->count] = GUARD;
}

ncclResult_t messages_call(const struct messages *m, ncclComm_t comm, void *stream)
{
  ncclResult_t result = ncclSuccess;
  if (m->to >= 0) result = ncclSend(m->in, m->count, ncclUint32, m->to, comm, stream);
  if (result == ncclSuccess && m->from >= 0) result = ncclRecv(m->out, m->count, ncclUint32, m->from, comm, stream);
  return result;
}

void messages_check(const struct messages *m, uint32_t time)
{
  for (size_t i = 0; i < m->count; i = next(i, m->count)) {
    uint32_t wanted = m->from >= 0 ? value(m->from, i, time) : 0x33333333;
    if (m->out[i] != wanted)
      ck_abort_msg("rank %d from %d, time %u: element %zu is %x, not %x", m->rank, m->from, time, i, m->out[i], wanted);
  }
  ck_assert_uint_eq(m->out[m->count], GUARD);
}

uint64_t messages_random(uint64_t *state)
{
  *state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
  return *state >> 33;
}

void messages_draw(int n, uint64_t *random, int *to, int *from)
{
  for (int r = 0; r < n; r++) to[r] = from[r] = -1;
  for (int tries = 0; tries < 2 * n; tries++) {
    int a = (int)(messages_random(random) % (uint64_t)n), b = (int)(messages_random(random) % (uint64_t)n);
    if (a == b || to[a] >= 0 || from[b] >= 0) continue;
    to[a] = b;
    from[b] = a;
  }
}
