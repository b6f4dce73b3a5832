/* See counts.h. */
#include "counts.h"

#include <stdlib.h>
#include "base/check.h"

#define FIRST_SIZE 16u

static struct tt_ofi_count *search(const struct tt_ofi_counts *counts, int32_t tag)
{
  uint32_t at = (uint32_t)tag * 2654435769u; /* Knuth's multiplier: 2^32 / golden ratio */
  at = (at >> 8) & (counts->size - 1);
  while (counts->entries[at].used && counts->entries[at].tag != tag) at = (at + 1) & (counts->size - 1);
  return &counts->entries[at];
}

static ncclResult_t grow(struct tt_ofi_counts *counts)
{
  struct tt_ofi_counts larger = {.size = counts->size ? 2 * counts->size : FIRST_SIZE, .used = counts->used};
  TT_TRY(TT_CALLOC(&larger.entries, larger.size));
  for (uint32_t i = 0; i < counts->size; i++)
    if (counts->entries[i].used) *search(&larger, counts->entries[i].tag) = counts->entries[i];
  free(counts->entries);
  *counts = larger;
  return ncclSuccess;
}

ncclResult_t tt_ofi_counts_get(struct tt_ofi_counts *counts, int32_t tag, struct tt_ofi_count **out)
{
  struct tt_ofi_count *entry = counts->size ? &counts->entries[counts->last] : NULL;
  *out = entry;
  if (entry && entry->used && entry->tag == tag) return ncclSuccess;
  if (2 * counts->used >= counts->size) TT_TRY(grow(counts));
  entry = search(counts, tag);
  if (!entry->used) {
    *entry = (struct tt_ofi_count){.tag = tag, .used = true, .large = true, .promised = UINT64_MAX};
    counts->used++;
  }
  counts->last = (uint32_t)(entry - counts->entries);
  *out = entry;
  return ncclSuccess;
}

struct tt_ofi_count *tt_ofi_counts_find(const struct tt_ofi_counts *counts, int32_t tag)
{
  if (!counts->size) return NULL;
  struct tt_ofi_count *entry = &counts->entries[counts->last];
  if (!entry->used || entry->tag != tag) entry = search(counts, tag);
  return entry->used ? entry : NULL;
}

void tt_ofi_counts_free(struct tt_ofi_counts *counts)
{
  free(counts->entries);
  *counts = (struct tt_ofi_counts){0};
}
