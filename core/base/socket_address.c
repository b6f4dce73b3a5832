/* Addresses: printing, reading, and what kind they are. */
#include "base/socket.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/socket_internal.h"

#define HOST_BYTES 256 /* a DNS name has at most 253 characters */

const char *tt_address_print(const union tt_address *address, char text[TT_ADDRESS_TEXT])
{
  char host[INET6_ADDRSTRLEN], scope[IF_NAMESIZE + 1] = "";
  if (address->sa.sa_family == AF_INET) {
    inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof(host));
    snprintf(text, TT_ADDRESS_TEXT, "%s<%d>", host, ntohs(address->v4.sin_port));
  } else if (address->sa.sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof(host));
    char name[IF_NAMESIZE];
    if (address->v6.sin6_scope_id && if_indextoname(address->v6.sin6_scope_id, name))
      snprintf(scope, sizeof(scope), "%%%s", name);
    else if (address->v6.sin6_scope_id)
      snprintf(scope, sizeof(scope), "%%%u", address->v6.sin6_scope_id);
    snprintf(text, TT_ADDRESS_TEXT, "[%s%s]<%d>", host, scope, ntohs(address->v6.sin6_port));
  } else {
    snprintf(text, TT_ADDRESS_TEXT, "(no address)");
  }
  return text;
}

socklen_t tt_address_bytes(const union tt_address *address)
{
  return address->sa.sa_family == AF_INET6 ? sizeof(address->v6) : sizeof(address->v4);
}

bool tt_address_is_loopback(const union tt_address *address)
{
  if (address->sa.sa_family == AF_INET) return ntohl(address->v4.sin_addr.s_addr) >> 24 == 127;
  if (address->sa.sa_family != AF_INET6) return false;
  const struct in6_addr *host = &address->v6.sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(host) || (IN6_IS_ADDR_V4MAPPED(host) && host->s6_addr[12] == 127);
}

/* Splits "host:port" or "[host]:port". False if it has neither form. */
static bool split(const char *text, char host[HOST_BYTES], uint16_t *port)
{
  const char *start = text, *end, *colon;
  if (*text == '[') {
    start = text + 1;
    end = strchr(start, ']');
    if (!end || end[1] != ':') return false;
    colon = end + 1;
  } else {
    end = colon = strchr(text, ':');
    /* More colons: a v6 address without brackets, where the port cannot be told from the rest. */
    if (!colon || strchr(colon + 1, ':')) return false;
  }
  size_t bytes = (size_t)(end - start), digits = strlen(colon + 1);
  if (bytes == 0 || bytes >= HOST_BYTES || digits == 0 || digits > 5) return false;
  if (strspn(colon + 1, "0123456789") != digits) return false;
  int number = atoi(colon + 1);
  if (number > 65535) return false;
  memcpy(host, start, bytes);
  host[bytes] = 0;
  *port = (uint16_t)number;
  return true;
}

ncclResult_t tt_address_parse(const char *text, union tt_address *address)
{
  char host[HOST_BYTES];
  uint16_t port;
  int family;
  memset(address, 0, sizeof(*address));
  TT_TRY(tt_socket_family(&family));
  if (!text || !split(text, host, &port))
    return TT_FAIL(ncclInvalidUsage, "\"%s\" is no address: it must be host:port or [v6 address]:port, port 0 to 65535",
                   text ? text : "");
  /* Brackets promise a number; a plain host may be a number or a name. */
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = family}, *found = NULL;
  if (*text == '[') {
    hints.ai_flags = AI_NUMERICHOST;
    hints.ai_family = AF_INET6;
  }
  int error = getaddrinfo(host, NULL, &hints, &found);
  if (error)
    return TT_FAIL(ncclInvalidUsage, "the host of \"%s\" is not known: %s%s", text, gai_strerror(error),
                   family ? " (NCCL_SOCKET_FAMILY restricts the choice)" : "");
  memcpy(address, found->ai_addr, TT_MIN((size_t)found->ai_addrlen, sizeof(*address)));
  freeaddrinfo(found);
  if (address->sa.sa_family == AF_INET)
    address->v4.sin_port = htons(port);
  else
    address->v6.sin6_port = htons(port);
  return ncclSuccess;
}
