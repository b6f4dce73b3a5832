/* The pool of a user's rank, as its relay sees it: slabs in the other's shared memory, mapped when a slot of them is
 * first sent, and until the user closes. */
#include <stdlib.h>
#include "base/check.h"
#include "proxy/pool.h"
#include "transport/relay_internal.h"

/* Far more than pools have: what a user names beyond is an error, so that it cannot make the relay map without end. */
#define SLABS_MOST 8192

struct tt_relay_slab {
  struct tt_relay_slab *next;
  uint64_t offset, bytes;
  unsigned char *memory;
  struct tt_proxy_slab *slab;
};

static void unmap(void *context, void *memory, size_t bytes)
{
  struct tt_relay_user *user = context;
  tt_resources_unmap(user->relay->resources, user->number, memory, bytes);
}

static ncclResult_t map_slab(struct tt_relay_user *user, const struct tt_desk_unit *unit, struct tt_relay_slab **out)
{
  struct tt_relay_slab *slab;
  void *memory;
  if (user->nslabs >= SLABS_MOST)
    return TT_FAIL(ncclRemoteError, "rank %d sends from more than %d pieces of memory", user->rank, SLABS_MOST);
  TT_TRY(TT_CALLOC(&slab, 1));
  ncclResult_t result =
      tt_resources_map(user->relay->resources, user->number, user->rank, unit->slab, unit->slab_bytes, &memory);
  if (result == ncclSuccess) {
    result = tt_proxy_slab_adopt(memory, unit->slab_bytes, unmap, user, &slab->slab);
    if (result != ncclSuccess) unmap(user, memory, unit->slab_bytes);
  }
  if (result != ncclSuccess) {
    free(slab);
    return result;
  }
  slab->offset = unit->slab;
  slab->bytes = unit->slab_bytes;
  slab->memory = memory;
  slab->next = user->slabs;
  user->slabs = slab;
  user->nslabs++;
  *out = slab;
  return ncclSuccess;
}

ncclResult_t tt_relay_slab_find(void *context, uint64_t step, struct tt_proxy_found *found)
{
  struct tt_relay_user *user = context;
  struct tt_desk_unit unit = user->desk->units[step % TT_SLOTS];
  struct tt_relay_slab *slab = user->slabs;
  if (unit.at > unit.slab_bytes || unit.bytes > unit.slab_bytes - unit.at)
    return TT_FAIL(ncclRemoteError, "rank %d names %llu bytes at %llu of a slab of %llu bytes", user->rank,
                   (unsigned long long)unit.bytes, (unsigned long long)unit.at, (unsigned long long)unit.slab_bytes);
  while (slab && (slab->offset != unit.slab || slab->bytes != unit.slab_bytes)) slab = slab->next;
  if (!slab) TT_TRY(map_slab(user, &unit, &slab));
  *found = (struct tt_proxy_found){.data = slab->memory + unit.at, .bytes = unit.bytes, .slab = slab->slab};
  return ncclSuccess;
}

void tt_relay_slabs_free(struct tt_relay_user *user)
{
  while (user->slabs) {
    struct tt_relay_slab *next = user->slabs->next;
    tt_proxy_slab_release(user->slabs->slab);
    free(user->slabs);
    user->slabs = next;
  }
}
