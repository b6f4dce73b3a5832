/* All-gather of blocks of different sizes: the sizes first, then blocks as large as the largest. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "bootstrap/internal.h"

static ncclResult_t gather(struct tt_bootstrap *b, const int *ranks, int me, int nranks, void *data, size_t bytes)
{
  return ranks ? tt_bootstrap_group_all_gather(b, ranks, me, nranks, data, bytes)
               : tt_bootstrap_all_gather(b, data, bytes);
}

/* Moves the blocks together that lie `apart` bytes apart. */
static void pack(unsigned char *blocks, size_t apart, const uint64_t *sizes, int nranks, size_t *offsets)
{
  offsets[0] = 0;
  for (int i = 0; i < nranks; i++) {
    memmove(blocks + offsets[i], blocks + (size_t)i * apart, sizes[i]);
    offsets[i + 1] = offsets[i] + sizes[i];
  }
}

ncclResult_t tt_bootstrap_gather_sized(struct tt_bootstrap *b, const int *ranks, int me, int nranks, const void *mine,
                                       size_t bytes, size_t most, unsigned char **out, size_t *offsets)
{
  ncclResult_t result;
  unsigned char *blocks = NULL;
  uint64_t *sizes = NULL, largest = 0;
  *out = NULL;
  TT_TRY(TT_CALLOC(&sizes, (size_t)nranks));
  sizes[me] = bytes;
  TT_TRY_GOTO(gather(b, ranks, me, nranks, sizes, sizeof(*sizes)), result, out);
  for (int i = 0; i < nranks; i++) {
    largest = TT_MAX(largest, sizes[i]);
    if (sizes[i] <= most) continue;
    result =
        TT_FAIL(i == me ? ncclInvalidUsage : ncclRemoteError,
                "rank %d has %llu bytes to tell the others while the communicator is made; at most %zu are allowed",
                ranks ? ranks[i] : i, (unsigned long long)sizes[i], most);
    goto out;
  }
  TT_TRY_GOTO(TT_CALLOC(&blocks, (size_t)nranks * largest + 1), result, out);
  if (bytes > 0) memcpy(blocks + (size_t)me * largest, mine, bytes);
  TT_TRY_GOTO(gather(b, ranks, me, nranks, blocks, largest), result, out);
  pack(blocks, largest, sizes, nranks, offsets);
  *out = blocks;
  blocks = NULL;
out:
  free(blocks);
  free(sizes);
  return result;
}
