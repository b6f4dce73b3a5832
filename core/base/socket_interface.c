/* Which interfaces to use: the filter grammar, the order of preference, and the message when none fits. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/if_addr.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "base/socket.h"
#include "base/socket_internal.h"
#include "base/text.h"

/* Does an entry name[:port] match? A label such as eth0:1 may itself have a colon, so the whole entry counts too. */
static bool entry_matches(const char *entry, size_t bytes, const char *name, bool exact)
{
  const char *colon = memchr(entry, ':', bytes);
  size_t lengths[2] = {bytes, colon ? (size_t)(colon - entry) : bytes};
  for (int i = 0; i < 2; i++) {
    if (lengths[i] == 0 || strncmp(name, entry, lengths[i]) != 0) continue;
    if (!exact || name[lengths[i]] == 0) return true;
  }
  return false;
}

/* Takes the marks off the front of a filter. */
static const char *read_marks(const char *filter, bool *excludes, bool *exact)
{
  *excludes = *exact = false;
  if (!filter) return NULL;
  filter += strspn(filter, " \t");
  if (*filter == '^') {
    *excludes = true;
    filter++;
  }
  filter += strspn(filter, " \t");
  if (*filter == '=') {
    *exact = true;
    filter++;
  }
  return filter;
}

/* Looks `name` up in the list behind the marks; *any tells whether the list has entries at all. Each entry may repeat
 * the marks of the list, since people write "^lo,^docker" and "=eth0,=eth1". */
static bool list_has(const char *list, bool excludes, bool exact, const char *name, bool *any)
{
  const char *piece;
  size_t bytes;
  bool found = false;
  *any = false;
  while (tt_text_next(&list, ',', &piece, &bytes)) {
    bool entry_exact = exact;
    if (bytes && excludes && *piece == '^') {
      piece++;
      bytes--;
    }
    if (bytes && *piece == '=') {
      entry_exact = true;
      piece++;
      bytes--;
    }
    if (!bytes) continue;
    *any = true;
    if (entry_matches(piece, bytes, name, entry_exact)) found = true;
  }
  return found;
}

bool tt_ifname_match(const char *filter, const char *name)
{
  bool excludes, exact, any;
  const char *list = read_marks(filter, &excludes, &exact);
  if (!list) return true;
  bool found = list_has(list, excludes, exact, name, &any);
  if (!any) return true;
  return found != excludes;
}

/* True if the filter names what is wanted, so that the default exclusions do not count. */
static bool filter_includes(const char *filter)
{
  bool excludes, exact, any;
  const char *list = read_marks(filter, &excludes, &exact);
  if (!list || excludes) return false;
  list_has(list, false, exact, "", &any);
  return any;
}

static bool is_link_local(const union tt_address *address)
{
  if (address->sa.sa_family == AF_INET) return ntohl(address->v4.sin_addr.s_addr) >> 16 == 0xa9fe; /* 169.254/16 */
  return IN6_IS_ADDR_LINKLOCAL(&address->v6.sin6_addr);
}

/* Interfaces that serve containers and loopback are for when there is nothing else. */
static int tier(const struct tt_candidate *candidate)
{
  if (candidate->loopback) return 2;
  return strncmp(candidate->interface.name, "docker", 6) == 0 ? 1 : 0;
}

/* Smaller is better; among equals the order of the system counts. */
static int preference(const struct tt_candidate *candidate)
{
  const union tt_address *address = &candidate->interface.address;
  return (candidate->loopback ? 4 : 0) + (is_link_local(address) ? 2 : 0) + (address->sa.sa_family == AF_INET6 ? 1 : 0);
}

static bool usable(const struct tt_candidate *candidate, const char *filter, int family)
{
  int has = candidate->interface.address.sa.sa_family;
  if (!candidate->up || candidate->unready || (has != AF_INET && has != AF_INET6) || (family && has != family))
    return false;
  return tt_ifname_match(filter, candidate->interface.name);
}

/* One entry an interface and family. */
static bool already(const struct tt_interface *chosen, int count, const struct tt_interface *one)
{
  for (int i = 0; i < count; i++)
    if (chosen[i].address.sa.sa_family == one->address.sa.sa_family && strcmp(chosen[i].name, one->name) == 0)
      return true;
  return false;
}

int tt_interface_choose(const struct tt_candidate *candidates, int n, const char *filter, int family,
                        struct tt_interface *chosen)
{
  int best_tier = 2;
  for (int i = 0; i < n; i++)
    if (usable(&candidates[i], filter, family)) best_tier = TT_MIN(best_tier, tier(&candidates[i]));
  if (filter_includes(filter)) best_tier = -1; /* all that are named */
  int count = 0;
  for (int step = 0; step < 8; step++)
    for (int i = 0; i < n; i++) {
      const struct tt_candidate *one = &candidates[i];
      if (!usable(one, filter, family) || preference(one) != step) continue;
      if (best_tier >= 0 && tier(one) != best_tier) continue;
      if (!already(chosen, count, &one->interface)) chosen[count++] = one->interface;
    }
  return count;
}

ncclResult_t tt_socket_family(int *family)
{
  const char *text = tt_param_string(TT_PARAM_NCCL_SOCKET_FAMILY);
  *family = 0;
  if (!text) return ncclSuccess;
  if (tt_text_equal_nocase(text, strlen(text), "AF_INET"))
    *family = AF_INET;
  else if (tt_text_equal_nocase(text, strlen(text), "AF_INET6"))
    *family = AF_INET6;
  else
    return TT_FAIL(ncclInvalidUsage, "NCCL_SOCKET_FAMILY=%s is not allowed: it must be AF_INET or AF_INET6", text);
  return ncclSuccess;
}

/* getifaddrs() does not tell which addresses are unready; the system's list of IPv6 addresses does. */
static void mark_unready(struct tt_candidate *candidates, int n)
{
  FILE *file = fopen("/proc/net/if_inet6", "re");
  char hex[33], name[32];
  unsigned flags;
  if (file == NULL) return; /* no IPv6 */
  while (fscanf(file, "%32s %*x %*x %*x %x %31s", hex, &flags, name) == 3) {
    for (int i = 0; flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) && !(flags & IFA_F_OPTIMISTIC) && i < n; i++) {
      const union tt_address *address = &candidates[i].interface.address;
      char own[33];
      for (int b = 0; b < 16; b++) snprintf(own + 2 * b, 3, "%02x", address->v6.sin6_addr.s6_addr[b]);
      if (address->sa.sa_family == AF_INET6 && strcmp(own, hex) == 0 && strcmp(candidates[i].interface.name, name) == 0)
        candidates[i].unready = true;
    }
  }
  fclose(file);
}

static ncclResult_t read_candidates(struct tt_candidate **candidates, int *n)
{
  struct ifaddrs *all;
  char hint[100];
  *n = 0;
  *candidates = NULL;
  if (getifaddrs(&all) != 0)
    return TT_FAIL(ncclSystemError, "the network interfaces cannot be listed: %s%s", strerror(errno),
                   tt_host_file_hint(errno, hint, sizeof(hint)));
  int count = 0;
  for (struct ifaddrs *at = all; at; at = at->ifa_next) count++;
  ncclResult_t result = TT_CALLOC(candidates, (size_t)count);
  for (struct ifaddrs *at = all; at && result == ncclSuccess; at = at->ifa_next) {
    struct tt_candidate *one = &(*candidates)[(*n)++];
    snprintf(one->interface.name, sizeof(one->interface.name), "%s", at->ifa_name);
    one->up = (at->ifa_flags & IFF_UP) && (at->ifa_flags & IFF_RUNNING);
    one->loopback = at->ifa_flags & IFF_LOOPBACK;
    int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
    if (family == AF_INET) memcpy(&one->interface.address, at->ifa_addr, sizeof(struct sockaddr_in));
    if (family == AF_INET6) memcpy(&one->interface.address, at->ifa_addr, sizeof(struct sockaddr_in6));
  }
  freeifaddrs(all);
  mark_unready(*candidates, *n);
  return result;
}

/* "eth0 192.0.2.1, eth1 (down)" and so on, cut where `text` ends. */
static void list_candidates(const struct tt_candidate *candidates, int n, char *text, size_t size)
{
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < n && used + 1 < size; i++) {
    const struct tt_candidate *one = &candidates[i];
    char address[TT_ADDRESS_TEXT] = "";
    bool has_address = one->interface.address.sa.sa_family != AF_UNSPEC, elsewhere = false;
    if (has_address) tt_address_print(&one->interface.address, address);
    address[strcspn(address, "<")] = 0;
    /* The system lists an interface once more for its hardware address: shown only if it has no other. */
    for (int j = 0; j < n && !has_address; j++)
      elsewhere |= candidates[j].interface.address.sa.sa_family != AF_UNSPEC &&
                   strcmp(candidates[j].interface.name, one->interface.name) == 0;
    if (elsewhere) continue;
    int put = snprintf(text + used, size - used, "%s%s %s%s", used ? ", " : "", one->interface.name,
                       has_address ? address : "(no address)",
                       !one->up       ? " (down)"
                       : one->unready ? " (not ready)"
                                      : "");
    used += put > 0 ? (size_t)put : 0;
  }
}

static ncclResult_t none_found(const struct tt_candidate *candidates, int n)
{
  const char *filter = tt_param_string(TT_PARAM_NCCL_SOCKET_IFNAME);
  const char *family = tt_param_string(TT_PARAM_NCCL_SOCKET_FAMILY);
  char list[768];
  list_candidates(candidates, n, list, sizeof(list));
  if (!filter && !family)
    return TT_FAIL(ncclSystemError, "no network interface is up with an address; there are: %s",
                   list[0] ? list : "none");
  return TT_FAIL(
      ncclInvalidUsage,
      "no usable network interface matches NCCL_SOCKET_IFNAME=%s%s%s; there are: %s. Names are prefixes, = in "
      "front means exactly, ^ excludes",
      filter ? filter : "", family ? " and NCCL_SOCKET_FAMILY=" : "", family ? family : "", list[0] ? list : "none");
}

ncclResult_t tt_socket_interfaces(struct tt_interface **list, int *count)
{
  struct tt_candidate *candidates;
  int n, family;
  *list = NULL;
  *count = 0;
  TT_TRY(tt_socket_family(&family));
  TT_TRY(read_candidates(&candidates, &n));
  ncclResult_t result = TT_CALLOC(list, (size_t)n);
  if (result == ncclSuccess) {
    *count = tt_interface_choose(candidates, n, tt_param_string(TT_PARAM_NCCL_SOCKET_IFNAME), family, *list);
    if (*count == 0) result = none_found(candidates, n);
  }
  if (result != ncclSuccess) {
    free(*list);
    *list = NULL;
  }
  free(candidates);
  return result;
}
