/* Which GID of a port to use. On RoCE the table has one for each address of the interface and version of RoCE, and both
 * ends must use the same kind. On InfiniBand it is the first, unless a router's (FLID) is there. */
#ifndef TT_IB_GID_H
#define TT_IB_GID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <infiniband/verbs.h>

struct tt_ib_gid {
  int index;
  union ibv_gid gid;
  int version; /* of RoCE: 1 or 2; 0 if not known */
};

/* What the environment asks for. */
struct tt_ib_gid_wish {
  int family;        /* AF_INET or AF_INET6 */
  int version;       /* of RoCE */
  int bits;          /* of `range` that count; -1: no range */
  uint8_t range[16]; /* an IPv4 address as the GID has it, ::ffff:a.b.c.d; bits then count from 96 on */
};

#define TT_IB_GID_TEXT 48
/* "::ffff:10.0.0.1"; returns text. */
const char *tt_ib_gid_print(const union ibv_gid *gid, char text[TT_IB_GID_TEXT]);
/* AF_INET for an IPv4 address, else AF_INET6. */
int tt_ib_gid_family(const union ibv_gid *gid);
bool tt_ib_gid_is_empty(const union ibv_gid *gid);
/* The router's part of an InfiniBand GID, 0 if it has none. */
uint16_t tt_ib_gid_flid(const union ibv_gid *gid);
uint16_t tt_ib_gid_subnet(const union ibv_gid *gid);
/* Reads family and address/bits; either may be NULL. False, with a phrase in `why`, for what is none, or for a range of
 * the other family. */
bool tt_ib_gid_wish(const char *family, const char *range, int version, struct tt_ib_gid_wish *wish, char *why,
                    size_t size);
/* The position in `table` of the GID to use on RoCE: of those in the range, one of the family before others, then not
 * link-local before others, then of the version before others, then the lowest index. -1 if none is in the range. */
int tt_ib_gid_choose(const struct tt_ib_gid *table, int count, const struct tt_ib_gid_wish *wish);

#endif
