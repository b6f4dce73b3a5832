/* See stores.h. */
#include "stores.h"

#include <emmintrin.h>
#include <stdlib.h>
#include <string.h>
#include "grid.h"

enum { MOST_STORES = 128 };

static bool overlap(const struct store *a, const unsigned char *at, uint32_t bytes)
{
  return a->to < at + bytes && at < a->to + a->bytes;
}

/* In one piece, as an instruction stores it. */
static void write_out(const struct store *store)
{
  uint64_t word;
  if (store->bytes == 16) {
    _mm_store_si128((__m128i *)(void *)store->to, _mm_loadu_si128((const __m128i *)(const void *)store->data));
  } else if (store->bytes == 8) {
    memcpy(&word, store->data, 8);
    __atomic_store_n((uint64_t *)(void *)store->to, word, __ATOMIC_RELAXED);
  } else {
    memcpy(store->to, store->data, store->bytes);
  }
}

/* Number `i`, after those before it that go to the same place, and those that these have to wait for. */
static void let_arrive(struct stores *stores, uint32_t i)
{
  struct store *list = stores->list;
  uint32_t arriving[MOST_STORES], count = 0, kept;
  arriving[count++] = i;
  for (uint32_t k = i; k-- > 0;) {
    bool waits = false;
    for (uint32_t a = 0; a < count && !waits; a++)
      waits = overlap(&list[k], list[arriving[a]].to, list[arriving[a]].bytes);
    if (waits) arriving[count++] = k;
  }
  while (count > 0) {
    struct store *store = &list[arriving[--count]];
    write_out(store);
    store->bytes = 0;
  }
  kept = 0;
  for (uint32_t k = 0; k < stores->count; k++)
    if (list[k].bytes > 0) list[kept++] = list[k];
  stores->count = kept;
}

void stores_arrive(struct stores *stores)
{
  if (stores->count > 0) let_arrive(stores, emu_random(stores->count));
}

void stores_put(struct stores *stores, void *to, const void *data, uint32_t bytes, uint32_t most)
{
  while (stores->count >= most) stores_arrive(stores);
  if (stores->count == stores->room) {
    stores->room = 2 * stores->room + 4;
    if (most > MOST_STORES) abort();
    stores->list = realloc(stores->list, stores->room * sizeof(*stores->list));
    if (stores->list == NULL) abort();
  }
  struct store *store = &stores->list[stores->count++];
  store->to = to;
  store->bytes = bytes;
  memcpy(store->data, data, bytes);
}

void stores_look(const struct stores *stores, const void *from, void *data, uint32_t bytes)
{
  const unsigned char *at = from;
  for (uint32_t i = 0; i < stores->count; i++) {
    const struct store *store = &stores->list[i];
    if (!overlap(store, at, bytes)) continue;
    for (uint32_t b = 0; b < bytes; b++)
      if (at + b >= store->to && at + b < store->to + store->bytes)
        ((unsigned char *)data)[b] = store->data[at + b - store->to];
  }
}

bool stores_touch(const struct stores *stores, const void *at, uint32_t bytes)
{
  for (uint32_t i = 0; i < stores->count; i++)
    if (overlap(&stores->list[i], at, bytes)) return true;
  return false;
}

void stores_move(struct stores *from, struct stores *to, uint32_t most)
{
  for (uint32_t i = 0; i < from->count; i++)
    stores_put(to, from->list[i].to, from->list[i].data, from->list[i].bytes, most);
  from->count = 0;
}

void stores_arrive_all(struct stores *stores)
{
  for (uint32_t i = 0; i < stores->count; i++) write_out(&stores->list[i]);
  stores->count = 0;
}

void stores_free(struct stores *stores)
{
  free(stores->list);
  *stores = (struct stores){0};
}
