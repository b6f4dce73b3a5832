/* See verify.h. */
#include "verify.h"

#include <stdio.h>
#include <string.h>

/* Elements moved between host and device memory at once: to a GPU, less would cost more calls than copying. */
#define BLOCK 32768
static _Thread_local char block[BLOCK * 8];

static size_t area_elements(const struct perf_case *c)
{
  return c->shape.send > c->shape.recv ? c->shape.send : c->shape.recv;
}

char *perf_case_send(const struct perf_case *c)
{
  return c->in_place ? c->recv->data + c->shape.send_offset * (size_t)c->type->bytes : c->send->data;
}

char *perf_case_recv(const struct perf_case *c)
{
  return c->in_place ? c->recv->data + c->shape.recv_offset * (size_t)c->type->bytes : c->recv->data;
}

static struct perf_pattern pattern_of(const struct perf_case *c)
{
  return (struct perf_pattern){c->type, c->op, c->nranks, c->epoch};
}

static bool fill(const struct perf_case *c, int rank, size_t first, size_t count, char *device)
{
  struct perf_pattern pattern = pattern_of(c);
  size_t bytes = (size_t)c->type->bytes;
  for (size_t done = 0; done < count; done += BLOCK) {
    size_t n = count - done < BLOCK ? count - done : BLOCK;
    perf_pattern_fill(&pattern, rank, first + done, n, block);
    if (!c->recv->backend->copy_in(device + done * bytes, block, n * bytes)) return false;
  }
  return true;
}

/* Compares device memory with a pattern; reports as `what`. */
static bool compare(const struct perf_case *c, const char *what, int origin, bool reduced, size_t source, size_t count,
                    const char *device, size_t index, struct perf_verdict *verdict)
{
  struct perf_pattern pattern = pattern_of(c);
  size_t bytes = (size_t)c->type->bytes;
  for (size_t done = 0; done < count; done += BLOCK) {
    size_t n = count - done < BLOCK ? count - done : BLOCK, where = 0;
    if (!c->recv->backend->copy_out(block, device + done * bytes, n * bytes)) return false;
    size_t wrong = perf_pattern_compare(&pattern, origin, reduced, source + done, n, block, &where);
    if (wrong && !verdict->wrong) {
      char expected[32], actual[32];
      perf_pattern_explain(&pattern, origin, reduced, source + done + where, block + where * bytes, expected, actual,
                           sizeof(expected));
      snprintf(verdict->first, sizeof(verdict->first), "%s element %zu is %s instead of %s", what, index + done + where,
               actual, expected);
    }
    verdict->wrong += wrong;
  }
  return true;
}

bool perf_check_prepare(const struct perf_case *c)
{
  size_t bytes = (size_t)c->type->bytes, output = c->in_place ? area_elements(c) : c->shape.recv;
  return fill(c, PERF_POISON, 0, output, c->recv->data) && perf_buffer_guard(c->recv, output * bytes) &&
         (c->in_place || perf_buffer_guard(c->send, c->shape.send * bytes)) &&
         fill(c, c->rank, 0, c->shape.send, perf_case_send(c));
}

static bool check_segment(const struct perf_case *c, const struct perf_segment *s, struct perf_verdict *verdict)
{
  const char *at = perf_case_recv(c) + s->first * (size_t)c->type->bytes;
  if (s->origin == PERF_REDUCED) return compare(c, "output", 0, true, s->source, s->count, at, s->first, verdict);
  if (s->origin != PERF_UNTOUCHED)
    return compare(c, "output", s->origin, false, s->source, s->count, at, s->first, verdict);
  /* In place, what was there before is this rank's input. */
  return compare(c, "output, which this rank does not have,", c->in_place ? c->rank : PERF_POISON, false, s->first,
                 s->count, at, s->first, verdict);
}

static bool check_output(const struct perf_case *c, struct perf_verdict *verdict)
{
  struct perf_segment s;
  for (int i = 0; c->collective->segment(&s, i, &c->shape, c->rank, c->nranks, c->root); i++)
    if (!check_segment(c, &s, verdict)) return false;
  return true;
}

/* The input must be as it was, except where the output lies on it. */
static bool check_input(const struct perf_case *c, struct perf_verdict *verdict)
{
  size_t bytes = (size_t)c->type->bytes;
  const char *send = perf_case_send(c), *recv = perf_case_recv(c);
  const char *end = send + c->shape.send * bytes;
  if (!c->in_place) return compare(c, "input", c->rank, false, 0, c->shape.send, send, 0, verdict);
  /* In place, the output starts before the input, with it, or inside it. */
  if (recv > send && !compare(c, "input", c->rank, false, 0, (size_t)(recv - send) / bytes, send, 0, verdict))
    return false;
  const char *after = recv + c->shape.recv * bytes;
  if (after >= end) return true;
  size_t first = (size_t)(after - send) / bytes;
  return compare(c, "input", c->rank, false, first, c->shape.send - first, after, first, verdict);
}

static bool check_guards(const struct perf_case *c, const struct perf_buffer *buffer, size_t elements, const char *what,
                         struct perf_verdict *verdict)
{
  size_t damage;
  if (!perf_buffer_damage(buffer, elements * (size_t)c->type->bytes, &damage)) return false;
  if (damage && !verdict->wrong)
    snprintf(verdict->first, sizeof(verdict->first), "%zu bytes next to the %s buffer were overwritten", damage, what);
  verdict->wrong += damage;
  return true;
}

bool perf_check_verify(const struct perf_case *c, struct perf_verdict *verdict)
{
  *verdict = (struct perf_verdict){0};
  if (!check_output(c, verdict) || !check_input(c, verdict)) return false;
  if (c->in_place) return check_guards(c, c->recv, area_elements(c), "in-place", verdict);
  return check_guards(c, c->recv, c->shape.recv, "receive", verdict) &&
         check_guards(c, c->send, c->shape.send, "send", verdict);
}

bool perf_check_ones(const struct perf_case *c)
{
  size_t bytes = (size_t)c->type->bytes, count = area_elements(c);
  for (size_t i = 0; i < BLOCK && i < count; i++) {
    uint64_t one = 1;
    if (c->type->kind == PERF_FLOATING)
      perf_pattern_encode(c->type, 1.0, block + i * bytes);
    else
      memcpy(block + i * bytes, &one, bytes);
  }
  for (size_t done = 0; done < count; done += BLOCK) {
    size_t n = (count - done < BLOCK ? count - done : BLOCK) * bytes;
    if (!c->recv->backend->copy_in(c->recv->data + done * bytes, block, n) ||
        !c->send->backend->copy_in(c->send->data + done * bytes, block, n))
      return false;
  }
  return true;
}
