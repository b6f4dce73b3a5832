/* Little-endian fields of byte strings that ranks exchange. A reader past the end, or that found a text without its
 * end, is marked bad and yields zeroes, so that a parser checks once, at its end. */
#ifndef TT_TRANSPORT_WIRE_H
#define TT_TRANSPORT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct tt_wire_writer {
  unsigned char *data;
  size_t size, at;
  bool full; /* something did not fit and was left out */
};

struct tt_wire_reader {
  const unsigned char *data;
  size_t size, at;
  bool bad;
};

static inline void tt_wire_put(struct tt_wire_writer *w, const void *data, size_t bytes)
{
  if (w->full || bytes > w->size - w->at) {
    w->full = true;
    return;
  }
  memcpy(w->data + w->at, data, bytes);
  w->at += bytes;
}

static inline void tt_wire_put_int(struct tt_wire_writer *w, uint64_t value, size_t bytes)
{
  unsigned char le[8];
  for (size_t i = 0; i < bytes; i++) le[i] = (unsigned char)(value >> (8 * i));
  tt_wire_put(w, le, bytes);
}

static inline const unsigned char *tt_wire_get(struct tt_wire_reader *r, size_t bytes)
{
  if (r->bad || bytes > r->size - r->at) {
    r->bad = true;
    return NULL;
  }
  r->at += bytes;
  return r->data + r->at - bytes;
}

static inline uint64_t tt_wire_get_int(struct tt_wire_reader *r, size_t bytes)
{
  const unsigned char *le = tt_wire_get(r, bytes);
  uint64_t value = 0;
  for (size_t i = 0; le && i < bytes; i++) value |= (uint64_t)le[i] << (8 * i);
  return value;
}

/* A text in a field of fixed size, which includes its NUL. */
static inline void tt_wire_get_text(struct tt_wire_reader *r, char *text, size_t bytes)
{
  const unsigned char *from = tt_wire_get(r, bytes);
  text[0] = '\0';
  if (!from) return;
  if (!memchr(from, '\0', bytes)) {
    r->bad = true;
    return;
  }
  memcpy(text, from, bytes);
}

#endif
