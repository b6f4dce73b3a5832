/* See damage.h. Elements are taken to be lines, which is how machines and graphs are written in tests. */
#include "damage.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PIECE = 4000 }; /* bytes by which one damage can lengthen a text */

struct text {
  char *bytes;
  size_t length, room;
};

uint32_t damage_pick(uint64_t *state, uint32_t below)
{
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((*state >> 33) % below);
}

static size_t somewhere(const struct text *t, uint64_t *state)
{
  return t->length ? damage_pick(state, (uint32_t)t->length) : 0;
}

/* Puts `by` where `bytes` bytes were. What would not fit is left out. */
static void replace(struct text *t, size_t at, size_t bytes, const char *by, size_t by_bytes)
{
  if (bytes > t->length - at) bytes = t->length - at;
  if (t->length - bytes + by_bytes > t->room) return;
  memmove(t->bytes + at + by_bytes, t->bytes + at + bytes, t->length - at - bytes);
  memcpy(t->bytes + at, by, by_bytes);
  t->length += by_bytes - bytes;
}

/* The line around a place, with its end. */
static size_t line_at(const struct text *t, size_t at, size_t *bytes)
{
  size_t begin = at, end = at;
  while (begin > 0 && t->bytes[begin - 1] != '\n') begin--;
  while (end < t->length && t->bytes[end] != '\n') end++;
  *bytes = end + (end < t->length) - begin;
  return begin;
}

/* Copies a line to the place of another or before it, or drops one. */
static void move_line(struct text *t, uint64_t *state)
{
  char line[MOST_PIECE];
  size_t bytes, other_bytes;
  size_t from = line_at(t, somewhere(t, state), &bytes), to = line_at(t, somewhere(t, state), &other_bytes);
  if (bytes > sizeof(line)) return;
  memcpy(line, t->bytes + from, bytes);
  uint32_t how = damage_pick(state, 3);
  replace(t, to, how == 0 ? 0 : other_bytes, line, how == 2 ? 0 : bytes);
}

/* The value of the next attribute after a place: *bytes between its quotes. False: there is none. */
static int find_value(const struct text *t, size_t *at, size_t *bytes)
{
  size_t begin = *at;
  while (begin + 1 < t->length && !(t->bytes[begin] == '=' && t->bytes[begin + 1] == '"')) begin++;
  begin += 2;
  size_t end = begin;
  while (end < t->length && t->bytes[end] != '"') end++;
  if (end >= t->length) return 0;
  *at = begin;
  *bytes = end - begin;
  return 1;
}

/* Gives an attribute a value that is at some limit, or that of another one. */
static void change_value(struct text *t, uint64_t *state)
{
  static const char *const values[] = {"",
                                       "-1",
                                       "0",
                                       "1",
                                       "2",
                                       "64",
                                       "65",
                                       "2147483647",
                                       "2147483648",
                                       "-2147483648",
                                       "4294967296",
                                       "9223372036854775808",
                                       "ffffffffffffffff",
                                       "0x",
                                       "0x100000000000000",
                                       "1e39",
                                       "-0.5",
                                       "nan",
                                       "NVL",
                                       "0x068000",
                                       "0x060400",
                                       "ffff:ff:1f.7",
                                       "0000:00:00.0"};
  char other[MOST_PIECE];
  size_t at = somewhere(t, state), from = somewhere(t, state), bytes, other_bytes;
  if (!find_value(t, &at, &bytes)) return;
  if (damage_pick(state, 3) > 0) {
    const char *value = values[damage_pick(state, sizeof(values) / sizeof(values[0]))];
    replace(t, at, bytes, value, strlen(value));
  } else if (find_value(t, &from, &other_bytes) && other_bytes < sizeof(other)) {
    memcpy(other, t->bytes + from, other_bytes);
    replace(t, at, bytes, other, other_bytes);
  }
}

/* Removes an attribute: NAME="VALUE" and the blank before it. */
static void drop_attribute(struct text *t, uint64_t *state)
{
  size_t at = somewhere(t, state), bytes;
  if (!find_value(t, &at, &bytes)) return;
  size_t begin = at;
  while (begin > 0 && t->bytes[begin] != ' ') begin--;
  replace(t, begin, at + bytes + 1 - begin, "", 0);
}

static void damage_once(struct text *t, uint64_t *state)
{
  char piece[40], byte = "<>\"'&/=0-9x \t\n"[damage_pick(state, 15)], any = (char)damage_pick(state, 256);
  size_t at = somewhere(t, state), bytes = damage_pick(state, sizeof(piece)), from = somewhere(t, state);
  if (bytes > t->length - from) bytes = t->length - from;
  memcpy(piece, t->bytes + from, bytes);
  switch (damage_pick(state, 12)) {
  case 0:
    replace(t, at, 1, &any, 1);
    break;
  case 1:
    replace(t, at, 1, &byte, 1);
    break;
  case 2:
    replace(t, at, damage_pick(state, 40), "", 0);
    break;
  case 3:
    replace(t, at, damage_pick(state, 2) * bytes, piece, bytes);
    break;
  case 4:
  case 5:
    drop_attribute(t, state);
    break;
  case 6:
  case 7:
  case 8:
    move_line(t, state);
    break;
  default:
    change_value(t, state);
  }
}

char *damage(const char *text, size_t bytes, uint64_t *state, size_t *damaged)
{
  struct text t = {.length = bytes, .room = bytes + MOST_PIECE};
  t.bytes = malloc(t.room);
  if (!t.bytes) abort();
  memcpy(t.bytes, text, bytes);
  for (uint32_t n = 1 + damage_pick(state, 2) * damage_pick(state, 4); n > 0; n--) damage_once(&t, state);
  char *exact = malloc(t.length ? t.length : 1);
  if (!exact) abort();
  memcpy(exact, t.bytes, t.length);
  free(t.bytes);
  *damaged = t.length;
  return exact;
}
