/* What threads read and write in memory: stores that are under way (stores.h), and lines that a warp reads at once. */
#include <emmintrin.h>
#include <string.h>
#include "block.h"

enum { LINE = 128, MOST_OF_LANE = 6, MOST_OF_BLOCK = 96 };

/* Memory is what the grid before leaves in it, and not before that is over. */
static void check_order(void)
{
  if (emu_current->block->grid->held && !emu_current->awaited)
    emu_die("a thread uses memory, and has not waited for the grid before");
}

void emu_store(void *to, const void *data, uint32_t bytes)
{
  check_order();
  stores_put(&emu_current->stores, to, data, bytes, MOST_OF_LANE);
  emu_moved();
}

static void overlay(const void *from, void *data, uint32_t bytes)
{
  stores_look(&emu_current->block->stores, from, data, bytes);
  stores_look(&emu_current->stores, from, data, bytes);
}

void emu_load(const void *from, void *data, uint32_t bytes)
{
  const volatile uint64_t *words = from;
  check_order();
  if (bytes == 1) {
    *(unsigned char *)data = *(const volatile unsigned char *)from;
  } else if (bytes == 8) {
    *(uint64_t *)data = *words;
  } else {
    _mm_storeu_si128(data, *(const volatile __m128i *)from);
  }
  overlay(from, data, bytes);
}

/* Lines of 128 bytes as the warp found them, since it last began to run. Other processes' GPUs go on meanwhile: so a
 * line is read from its end, where what says that it is there stands, and lanes that read it at once have it from here.
 */
static struct seen_line {
  const unsigned char *at;
  uint32_t lanes; /* that have had theirs */
  _Alignas(16) unsigned char data[LINE];
} seen[8];
static unsigned next_seen;

void emu_forget_lines(void)
{
  for (size_t i = 0; i < sizeof(seen) / sizeof(seen[0]); i++) seen[i].at = NULL;
}

static struct seen_line *find_line(const unsigned char *at, uint32_t lane)
{
  for (size_t i = 0; i < sizeof(seen) / sizeof(seen[0]); i++)
    if (seen[i].at == at && !(seen[i].lanes & lane)) return &seen[i];
  struct seen_line *line = &seen[next_seen++ % (sizeof(seen) / sizeof(seen[0]))];
  line->at = at;
  line->lanes = 0;
  for (int i = LINE - 16; i >= 0; i -= 16)
    _mm_store_si128((__m128i *)(void *)(line->data + i), *(const volatile __m128i *)(const void *)(at + i));
  return line;
}

void emu_load_together(const void *from, void *data)
{
  uint32_t place = (uint32_t)((uintptr_t)from % LINE), lane = 1u << emu_current->place.thread.x % LANES;
  check_order();
  struct seen_line *line = find_line((const unsigned char *)from - place, lane);
  line->lanes |= lane;
  memcpy(data, line->data + place, 16);
  overlay(from, data, 16);
}

void emu_publish(void)
{
  stores_move(&emu_current->stores, &emu_current->block->stores, MOST_OF_BLOCK);
}

void emu_fence(void)
{
  emu_publish();
  stores_arrive_all(&emu_current->block->stores);
}

void emu_settle(const void *at, uint32_t bytes)
{
  if (stores_touch(&emu_current->stores, at, bytes) || stores_touch(&emu_current->block->stores, at, bytes))
    emu_fence();
}
