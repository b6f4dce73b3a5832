/* Choosing a GID. */
#include "gid.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include "base/text.h"

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

const char *tt_ib_gid_print(const union ibv_gid *gid, char text[TT_IB_GID_TEXT])
{
  if (!inet_ntop(AF_INET6, gid->raw, text, TT_IB_GID_TEXT)) text[0] = 0;
  return text;
}

int tt_ib_gid_family(const union ibv_gid *gid)
{
  return memcmp(gid->raw, mapped, sizeof mapped) == 0 ? AF_INET : AF_INET6;
}

bool tt_ib_gid_is_empty(const union ibv_gid *gid)
{
  static const uint8_t none[16], prefix_only[16] = {0xfe, 0x80};
  return memcmp(gid->raw, none, 16) == 0 || memcmp(gid->raw, prefix_only, 16) == 0;
}

uint16_t tt_ib_gid_flid(const union ibv_gid *gid)
{
  return (uint16_t)(gid->raw[4] << 8 | gid->raw[5]);
}

uint16_t tt_ib_gid_subnet(const union ibv_gid *gid)
{
  return (uint16_t)(gid->raw[6] << 8 | gid->raw[7]);
}

bool tt_ib_gid_wish(const char *family, const char *range, int version, struct tt_ib_gid_wish *wish, char *why,
                    size_t size)
{
  *wish = (struct tt_ib_gid_wish){.family = AF_INET, .version = version, .bits = -1};
  if (family && strcmp(family, "AF_INET6") == 0) {
    wish->family = AF_INET6;
  } else if (family && strcmp(family, "AF_INET") != 0) {
    snprintf(why, size, "NCCL_IB_ADDR_FAMILY=%s is not allowed: it must be AF_INET or AF_INET6", family);
    return false;
  }
  if (!range) return true;
  const char *family_name = wish->family == AF_INET ? "AF_INET" : "AF_INET6";
  char address[64] = "";
  const char *slash = strchr(range, '/');
  int64_t bits = 0, most = wish->family == AF_INET ? 32 : 128;
  bool good = slash && slash != range && (size_t)(slash - range) < sizeof address && tt_text_int(slash + 1, &bits) &&
              bits >= 0 && bits <= most;
  if (good) {
    memcpy(address, range, (size_t)(slash - range));
    if (wish->family == AF_INET) memcpy(wish->range, mapped, sizeof mapped);
    good = inet_pton(wish->family, address, wish->range + (wish->family == AF_INET ? 12 : 0)) == 1;
  }
  if (!good) {
    snprintf(why, size,
             "NCCL_IB_ADDR_RANGE=%s is not allowed: it must be address/bits, with an address of NCCL_IB_ADDR_FAMILY "
             "(%s) and "
             "0 to %d bits",
             range, family_name, (int)most);
    return false;
  }
  wish->bits = (int)bits + (wish->family == AF_INET ? 96 : 0);
  return true;
}

static bool in_range(const union ibv_gid *gid, const struct tt_ib_gid_wish *wish)
{
  for (int bit = 0; bit < wish->bits; bit++)
    if ((gid->raw[bit / 8] ^ wish->range[bit / 8]) & (0x80 >> bit % 8)) return false;
  return true;
}

static bool is_link_local(const union ibv_gid *gid)
{
  return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

int tt_ib_gid_choose(const struct tt_ib_gid *table, int count, const struct tt_ib_gid_wish *wish)
{
  int best = -1, best_score = -1;
  for (int i = 0; i < count; i++) {
    const struct tt_ib_gid *entry = &table[i];
    if (tt_ib_gid_is_empty(&entry->gid) || !in_range(&entry->gid, wish)) continue;
    int score = (tt_ib_gid_family(&entry->gid) == wish->family ? 4 : 0) + (is_link_local(&entry->gid) ? 0 : 2) +
                (entry->version == wish->version ? 1 : 0);
    if (score > best_score) {
      best = i;
      best_score = score;
    }
  }
  return best;
}
