/* See verify.h. */
#include "verify.h"

#include <stdio.h>
#include <string.h>

#define BLOCK 2048 /* elements moved between host and device memory at once */

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

static void fill(const struct perf_case *c, int rank, size_t first, size_t count, char *device)
{
  struct perf_pattern pattern = pattern_of(c);
  char block[BLOCK * 8];
  size_t bytes = (size_t)c->type->bytes;
  for (size_t done = 0; done < count; done += BLOCK) {
    size_t n = count - done < BLOCK ? count - done : BLOCK;
    perf_pattern_fill(&pattern, rank, first + done, n, block);
    c->recv->memory->copy_in(device + done * bytes, block, n * bytes);
  }
}

/* Compares device memory with a pattern; reports as `what`. */
static void compare(const struct perf_case *c, const char *what, int origin, bool reduced, size_t source, size_t count,
                    const char *device, size_t index, struct perf_verdict *verdict)
{
  struct perf_pattern pattern = pattern_of(c);
  char block[BLOCK * 8];
  size_t bytes = (size_t)c->type->bytes;
  for (size_t done = 0; done < count; done += BLOCK) {
    size_t n = count - done < BLOCK ? count - done : BLOCK, where = 0;
    c->recv->memory->copy_out(block, device + done * bytes, n * bytes);
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
}

void perf_check_prepare(const struct perf_case *c)
{
  size_t bytes = (size_t)c->type->bytes;
  if (c->in_place) {
    fill(c, PERF_POISON, 0, area_elements(c), c->recv->data);
    perf_buffer_guard(c->recv, area_elements(c) * bytes);
  } else {
    fill(c, PERF_POISON, 0, c->shape.recv, c->recv->data);
    perf_buffer_guard(c->recv, c->shape.recv * bytes);
    perf_buffer_guard(c->send, c->shape.send * bytes);
  }
  fill(c, c->rank, 0, c->shape.send, perf_case_send(c));
}

static void check_output(const struct perf_case *c, struct perf_verdict *verdict)
{
  struct perf_segment s;
  for (int i = 0; c->collective->segment(&s, i, &c->shape, c->rank, c->nranks, c->root); i++) {
    const char *at = perf_case_recv(c) + s.first * (size_t)c->type->bytes;
    if (s.origin == PERF_REDUCED)
      compare(c, "output", 0, true, s.source, s.count, at, s.first, verdict);
    else if (s.origin != PERF_UNTOUCHED)
      compare(c, "output", s.origin, false, s.source, s.count, at, s.first, verdict);
    else /* in place, what was there before is this rank's input */
      compare(c, "output, which this rank does not have,", c->in_place ? c->rank : PERF_POISON, false, s.first, s.count,
              at, s.first, verdict);
  }
}

/* The input must be as it was, except where the output lies on it. */
static void check_input(const struct perf_case *c, struct perf_verdict *verdict)
{
  size_t bytes = (size_t)c->type->bytes;
  const char *send = perf_case_send(c), *recv = perf_case_recv(c);
  const char *end = send + c->shape.send * bytes;
  if (!c->in_place) {
    compare(c, "input", c->rank, false, 0, c->shape.send, send, 0, verdict);
    return;
  }
  /* In place, the output starts before the input, with it, or inside it. */
  if (recv > send) compare(c, "input", c->rank, false, 0, (size_t)(recv - send) / bytes, send, 0, verdict);
  const char *after = recv + c->shape.recv * bytes;
  if (after < end) {
    size_t first = (size_t)(after - send) / bytes;
    compare(c, "input", c->rank, false, first, c->shape.send - first, after, first, verdict);
  }
}

static void check_guards(const struct perf_case *c, const struct perf_buffer *buffer, size_t elements, const char *what,
                         struct perf_verdict *verdict)
{
  size_t damage = perf_buffer_damage(buffer, elements * (size_t)c->type->bytes);
  if (damage && !verdict->wrong)
    snprintf(verdict->first, sizeof(verdict->first), "%zu bytes next to the %s buffer were overwritten", damage, what);
  verdict->wrong += damage;
}

void perf_check_verify(const struct perf_case *c, struct perf_verdict *verdict)
{
  *verdict = (struct perf_verdict){0};
  check_output(c, verdict);
  check_input(c, verdict);
  if (c->in_place) {
    check_guards(c, c->recv, area_elements(c), "in-place", verdict);
  } else {
    check_guards(c, c->recv, c->shape.recv, "receive", verdict);
    check_guards(c, c->send, c->shape.send, "send", verdict);
  }
}

void perf_check_ones(const struct perf_case *c)
{
  char block[BLOCK * 8];
  size_t bytes = (size_t)c->type->bytes, count = area_elements(c);
  for (size_t i = 0; i < BLOCK; i++) {
    uint64_t one = 1;
    if (c->type->kind == PERF_FLOATING)
      perf_pattern_encode(c->type, 1.0, block + i * bytes);
    else
      memcpy(block + i * bytes, &one, bytes);
  }
  for (size_t done = 0; done < count; done += BLOCK) {
    size_t n = (count - done < BLOCK ? count - done : BLOCK) * bytes;
    c->recv->memory->copy_in(c->recv->data + done * bytes, block, n);
    c->send->memory->copy_in(c->send->data + done * bytes, block, n);
  }
}
