/* What send and receive comms share: opening and closing, and what both sides agree on. */
#include "net_ofi.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "base/host.h"

#define ALIGNMENT 4096 /* of stripes */

/* ---- Opening and closing ---- */

static size_t smallest_message(const struct tt_ofi_link *link)
{
  size_t smallest = SIZE_MAX;
  for (int i = 0; i < link->rails; i++) smallest = TT_MIN(smallest, link->rail[i].nic->info->ep_attr->max_msg_size);
  return smallest;
}

/* What completions tell of a write's immediate data. */
static uint32_t immediate_bytes(const struct tt_ofi_link *link)
{
  size_t least = sizeof(uint64_t);
  for (int i = 0; i < link->rails; i++) least = TT_MIN(least, link->rail[i].nic->info->domain_attr->cq_data_size);
  return (uint32_t)least;
}

static ncclResult_t open_rails(struct tt_ofi_link *link)
{
  size_t payload = tt_ofi_nic_eager(link->device->nic[0]);
  size_t large = sizeof(struct tt_ofi_header) + payload,
         small = TT_OFI_GATHER * tt_ofi_clear_bytes(link->device->count);
  large = TT_MAX(large, small);
  for (int i = 0; i < link->device->count; i++) {
    bool main = i == 0;
    link->rails = i + 1;
    TT_TRY(tt_ofi_rail_open(&link->rail[i], link->device->nic[i], main && !link->sends ? large : small,
                            main && link->sends ? large : small));
  }
  size_t most = smallest_message(link);
  if (most < large)
    return TT_FAIL(ncclInvalidUsage,
                   "net ofi: device %s takes messages of %zu bytes, and TUTTI_OFI_EAGER=%zu needs %zu",
                   link->device->name, most, payload, large);
  link->eager = (uint32_t)payload;
  link->immediate = immediate_bytes(link);
  link->piece_max = most;
  link->stripe = (size_t)tt_param_int(TT_PARAM_TUTTI_OFI_STRIPE);
  return ncclSuccess;
}

ncclResult_t tt_ofi_link_open(struct tt_ofi_link *link, bool sends, int dev, int fd)
{
  struct tt_ofi_device *device;
  union tt_address address;
  socklen_t bytes = sizeof address;
  memset(link, 0, sizeof *link);
  link->sends = sends;
  link->dev = dev;
  link->fd = fd;
  if (getpeername(fd, &address.sa, &bytes) == 0)
    tt_address_print(&address, link->peer);
  else
    strcpy(link->peer, "an unknown address");
  tt_meeting_tune(fd);
  ncclResult_t result = tt_ofi_device(dev, &device);
  link->device = device;
  if (result == ncclSuccess) result = open_rails(link);
  if (result != ncclSuccess) tt_ofi_link_close(link);
  return result;
}

void tt_ofi_link_count(struct tt_ofi_link *link)
{
  link->counted.sends = link->sends;
  link->counted.dev = link->dev;
  link->counted.comm = link; /* which a comm begins with */
  link->counted.name = link->device->name;
  link->counted.peer = link->peer;
  link->counted.counts = TT_COUNTS_BYTES | TT_COUNTS_OPERATIONS | TT_COUNTS_REFUSED | TT_COUNTS_CLEAR_TO_SENDS |
                         TT_COUNTS_QUEUE_DEPTH | (link->sends ? TT_COUNTS_CLEAR_TO_SEND_WAITS : 0);
  tt_counted_open(&link->counted);
}

void tt_ofi_link_close(struct tt_ofi_link *link)
{
  tt_counted_close(&link->counted);
  tt_ofi_link_drain(link);
  for (int i = 0; i < link->rails; i++) tt_ofi_rail_close(&link->rail[i]);
  link->rails = 0;
  tt_socket_close(&link->fd);
}

/* ---- What both sides agree on ---- */

const char *tt_ofi_link_provider(const struct tt_ofi_link *link)
{
  return link->device->nic[0]->info->fabric_attr->prov_name;
}

void tt_ofi_link_greeting(const struct tt_ofi_link *link, struct tt_ofi_greeting *greeting)
{
  memset(greeting, 0, sizeof *greeting);
  greeting->magic = TT_OFI_MAGIC;
  greeting->host = tt_host_hash();
  greeting->piece_max = link->piece_max;
  greeting->stripe = link->stripe;
  greeting->rails = (uint32_t)link->rails;
  greeting->eager = link->eager;
  greeting->immediate = link->immediate;
  snprintf(greeting->provider, sizeof greeting->provider, "%s", tt_ofi_link_provider(link));
  for (int i = 0; i < link->rails; i++) {
    greeting->rail[i].bytes = (uint32_t)link->rail[i].name_bytes;
    memcpy(greeting->rail[i].address, link->rail[i].name, link->rail[i].name_bytes);
  }
}

static ncclResult_t check_greeting(const struct tt_ofi_link *link, const struct tt_ofi_greeting *theirs)
{
  size_t length = strnlen(theirs->provider, sizeof theirs->provider);
  if (theirs->magic != TT_OFI_MAGIC || theirs->rails < 1 || theirs->rails > TT_OFI_RAILS || theirs->piece_max < 1 ||
      theirs->immediate < sizeof(uint32_t) || theirs->stripe < 1 || theirs->stripe > NCCL_MAX_NET_SIZE_BYTES ||
      length == sizeof theirs->provider)
    return TT_FAIL(ncclRemoteError,
                   "net ofi: %s greeted in a way that this version does not know; do all ranks use the "
                   "same plugin?",
                   link->peer);
  if (strcmp(theirs->provider, tt_ofi_link_provider(link)) != 0)
    return TT_FAIL(ncclInvalidUsage,
                   "net ofi: %s uses provider %s and this side %s, which do not understand each other; set FI_PROVIDER "
                   "or TUTTI_OFI_PROVIDERS alike on all ranks",
                   link->peer, theirs->provider, tt_ofi_link_provider(link));
  if (strcmp(theirs->provider, "shm") == 0 && theirs->host != tt_host_hash())
    return TT_FAIL(ncclInvalidUsage,
                   "net ofi: provider shm reaches no other host, and %s is one; use another provider (FI_PROVIDER)",
                   link->peer);
  return ncclSuccess;
}

ncclResult_t tt_ofi_link_agree(struct tt_ofi_link *link, const struct tt_ofi_greeting *theirs)
{
  TT_TRY(check_greeting(link, theirs));
  for (; link->rails > (int)theirs->rails; link->rails--) tt_ofi_rail_close(&link->rail[link->rails - 1]);
  for (int i = 0; i < link->rails; i++)
    TT_TRY(tt_ofi_rail_meet(&link->rail[i], theirs->rail[i].address, theirs->rail[i].bytes));
  link->eager = TT_MIN(link->eager, theirs->eager);
  link->wide = TT_MIN(link->immediate, theirs->immediate) >= sizeof(uint64_t);
  link->piece_max = TT_MIN(link->piece_max, theirs->piece_max);
  link->stripe = TT_MAX(link->stripe, (size_t)theirs->stripe); /* both count a message's pieces */
  return ncclSuccess;
}

void tt_ofi_link_stripe(const struct tt_ofi_link *link, size_t bytes, int first, int rail, size_t *at, size_t *part)
{
  size_t each = (bytes + (size_t)link->rails - 1) / (size_t)link->rails;
  each = (TT_MAX(each, link->stripe) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  size_t begin = (size_t)((rail - first + link->rails) % link->rails) * each;
  *at = TT_MIN(begin, bytes);
  *part = TT_MIN(each, bytes - *at);
}

uint32_t tt_ofi_link_pieces(const struct tt_ofi_link *link, size_t bytes)
{
  uint64_t pieces = 0;
  for (int i = 0; i < link->rails; i++) {
    size_t at, part;
    tt_ofi_link_stripe(link, bytes, 0, i, &at, &part);
    pieces += part / link->piece_max + (part % link->piece_max != 0);
  }
  return (uint32_t)TT_MIN(pieces, UINT32_MAX);
}
