/* What send and receive comms share: rails, packets in order, completions, and the socket. */
#include "net_ofi.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "base/host.h"

#define BATCH 16                       /* completions in one call */
#define ROUNDS 4                       /* of which so many, so that other comms get their turn */
#define LOOK_EVERY 64                  /* idle rounds after which the clock is looked at */
#define HEAR_NS ((uint64_t)1000000)    /* the socket is heard as often, where something is waited for */
#define GRACE_NS ((uint64_t)200000000) /* how long what a peer sent before it went may be silent on its way */
#define ALIGNMENT 4096                 /* of stripes */

/* ---- Opening and closing ---- */

static size_t smallest_message(const struct tt_ofi_link *link)
{
  size_t smallest = SIZE_MAX;
  for (int i = 0; i < link->rails; i++) smallest = TT_MIN(smallest, link->rail[i].nic->info->ep_attr->max_msg_size);
  return smallest;
}

static ncclResult_t open_rails(struct tt_ofi_link *link)
{
  size_t payload = tt_ofi_nic_eager(link->device->nic[0]);
  size_t large = sizeof(struct tt_ofi_header) + payload, small = sizeof(struct tt_ofi_clear);
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
  for (int i = 0; i < link->rails; i++) tt_ofi_rail_close(&link->rail[i]);
  link->rails = 0;
  tt_socket_close(&link->fd);
}

/* ---- What both sides agree on ---- */

static const char *provider_of(const struct tt_ofi_link *link)
{
  return link->device->nic[0]->info->fabric_attr->prov_name;
}

void tt_ofi_link_greeting(const struct tt_ofi_link *link, struct tt_ofi_greeting *greeting)
{
  memset(greeting, 0, sizeof *greeting);
  greeting->magic = TT_OFI_MAGIC;
  greeting->host = tt_host_hash();
  greeting->piece_max = link->piece_max;
  greeting->rails = (uint32_t)link->rails;
  greeting->eager = link->eager;
  snprintf(greeting->provider, sizeof greeting->provider, "%s", provider_of(link));
  for (int i = 0; i < link->rails; i++) {
    greeting->rail[i].bytes = (uint32_t)link->rail[i].name_bytes;
    memcpy(greeting->rail[i].address, link->rail[i].name, link->rail[i].name_bytes);
  }
}

static ncclResult_t check_greeting(const struct tt_ofi_link *link, const struct tt_ofi_greeting *theirs)
{
  size_t length = strnlen(theirs->provider, sizeof theirs->provider);
  if (theirs->magic != TT_OFI_MAGIC || theirs->rails < 1 || theirs->rails > TT_OFI_RAILS || theirs->piece_max < 1 ||
      length == sizeof theirs->provider)
    return TT_FAIL(ncclRemoteError,
                   "net ofi: %s greeted in a way that this version does not know; do all ranks use the "
                   "same plugin?",
                   link->peer);
  if (strcmp(theirs->provider, provider_of(link)) != 0)
    return TT_FAIL(ncclInvalidUsage,
                   "net ofi: %s uses provider %s and this side %s, which do not understand each other; set FI_PROVIDER "
                   "or TUTTI_OFI_PROVIDERS alike on all ranks",
                   link->peer, theirs->provider, provider_of(link));
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
  link->piece_max = TT_MIN(link->piece_max, theirs->piece_max);
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

/* ---- Errors ---- */

ncclResult_t tt_ofi_link_fail(struct tt_ofi_link *link, ncclResult_t result)
{
  link->failed = result;
  return result;
}

ncclResult_t tt_ofi_link_lost(struct tt_ofi_link *link, const char *doing)
{
  return tt_ofi_link_fail(link, TT_FAIL(ncclRemoteError,
                                        "net ofi: device %s (%s): lost the peer %s while %s: %s; its process ended or "
                                        "the network between failed, see its log",
                                        link->device->name, provider_of(link), link->peer, doing,
                                        link->bye ? "it closed the connection" : "the connection was closed"));
}

static const char *remedy_for(int error)
{
  switch (error < 0 ? -error : error) {
  case FI_EACCES:
  case FI_EPERM:
    return "the provider was not allowed to; look at permissions, security groups and limits of locked memory";
  case FI_ENOMEM:
  case FI_ENOSPC:
    return "a resource ran out; look at ulimit -l and -n, /dev/shm, and lower TUTTI_OFI_DEPTH";
  case FI_EMSGSIZE:
  case FI_ETRUNC:
  case FI_ETOOSMALL:
    return "sizes disagree; do all ranks have the same TUTTI_OFI_EAGER and libfabric?";
  case FI_EKEYREJECTED:
  case FI_ENOKEY:
    return "the peer's memory is not registered any more; did it end the operation early?";
  default:
    return "look whether the peer runs, at its log, and at the network between; FI_LOG_LEVEL=warn makes libfabric tell "
           "more";
  }
}

ncclResult_t tt_ofi_link_broken(struct tt_ofi_link *link, int rail, const char *doing, int error, const char *detail)
{
  return tt_ofi_link_fail(link, TT_FAIL(ncclRemoteError, "net ofi: device %s (%s): %s %s %s failed: %s%s%s; %s",
                                        link->rail[rail].nic->name, provider_of(link), doing,
                                        link->sends ? "to" : "from", link->peer, tt_ofi_strerror(error),
                                        detail && *detail ? ", " : "", detail ? detail : "", remedy_for(error)));
}

/* ---- Packets ---- */

struct tt_ofi_packet *tt_ofi_link_packet(struct tt_ofi_link *link, int rail)
{
  struct tt_ofi_packet *packet = link->rail[rail].free;
  if (!packet) return NULL;
  link->rail[rail].free = packet->next;
  packet->owner = NULL;
  return packet;
}

static ncclResult_t post_waiting(struct tt_ofi_link *link, int rail_index)
{
  struct tt_ofi_rail *rail = &link->rail[rail_index];
  void *desc = rail->mr ? fi_mr_desc(rail->mr) : NULL;
  while (rail->waiting.first) {
    struct tt_ofi_packet *packet = rail->waiting.first, *next = packet->next;
    ssize_t error = fi_send(rail->ep, packet->data, packet->bytes, desc, rail->peer, &packet->op);
    if (error == -FI_EAGAIN) tt_count(&link->counted, TT_COUNT_REFUSED, 1);
    if (error == -FI_EAGAIN) return ncclSuccess;
    if (error) return tt_ofi_link_broken(link, rail_index, "sending a packet", (int)error, NULL);
    rail->waiting.first = next;
    if (!next) rail->waiting.end = &rail->waiting.first;
    rail->out_busy++;
  }
  return ncclSuccess;
}

static ncclResult_t post_idle(struct tt_ofi_link *link, int rail_index)
{
  struct tt_ofi_rail *rail = &link->rail[rail_index];
  void *desc = rail->mr ? fi_mr_desc(rail->mr) : NULL;
  while (rail->idle.first) {
    struct tt_ofi_packet *packet = rail->idle.first, *next = packet->next;
    ssize_t error = fi_recv(rail->ep, packet->data, packet->bytes, desc, FI_ADDR_UNSPEC, &packet->op);
    if (error == -FI_EAGAIN) return ncclSuccess;
    if (error) return tt_ofi_link_broken(link, rail_index, "receiving a packet", (int)error, NULL);
    rail->idle.first = next;
    if (!next) rail->idle.end = &rail->idle.first;
  }
  return ncclSuccess;
}

ncclResult_t tt_ofi_link_send(struct tt_ofi_link *link, int rail, struct tt_ofi_packet *packet)
{
  struct tt_ofi_packets *waiting = &link->rail[rail].waiting;
  packet->next = NULL;
  *waiting->end = packet;
  waiting->end = &packet->next;
  return post_waiting(link, rail);
}

/* ---- Completions ---- */

static ncclResult_t packet_came(struct tt_ofi_link *link, struct tt_ofi_rail *rail, struct tt_ofi_packet *packet,
                                size_t bytes)
{
  const struct tt_ofi_header *header = (const struct tt_ofi_header *)packet->data;
  ncclResult_t result = ncclSuccess;
  if (bytes >= sizeof *header && header->kind == TT_OFI_HELLO && link->hellos < link->rails)
    link->hellos++;
  else if (bytes < sizeof *header || bytes > packet->bytes)
    result = tt_ofi_link_fail(link, TT_FAIL(ncclRemoteError,
                                            "net ofi: device %s: %s sent a packet of %zu bytes; the "
                                            "stream is corrupt",
                                            link->device->name, link->peer, bytes));
  else
    result = link->events->packet(link, header, bytes);
  packet->next = NULL;
  *rail->idle.end = packet;
  rail->idle.end = &packet->next;
  return result;
}

static void packet_left(struct tt_ofi_link *link, struct tt_ofi_rail *rail, struct tt_ofi_packet *packet)
{
  void *owner = packet->owner;
  rail->out_busy--;
  packet->next = rail->free;
  rail->free = packet;
  if (owner) link->events->sent(link, owner);
}

static ncclResult_t complete(struct tt_ofi_link *link, struct tt_ofi_rail *rail, const struct fi_cq_data_entry *entry)
{
  /* Some providers give the immediate data's flag to the writing side as well. */
  bool here = entry->flags & (FI_SEND | FI_RECV | FI_WRITE | FI_READ);
  if ((entry->flags & FI_REMOTE_WRITE) || ((entry->flags & FI_REMOTE_CQ_DATA) && !here))
    return link->events->written(link, entry->data);
  struct tt_ofi_op *op = entry->op_context;
  switch (op->kind) {
  case TT_OFI_OP_IN:
    return packet_came(link, rail, (struct tt_ofi_packet *)op, entry->len);
  case TT_OFI_OP_OUT:
    packet_left(link, rail, (struct tt_ofi_packet *)op);
    return ncclSuccess;
  default:
    link->events->done(link, op);
    return ncclSuccess;
  }
}

static const char *words_for(const struct tt_ofi_op *op)
{
  if (!op) return "a write";
  switch (op->kind) {
  case TT_OFI_OP_IN:
    return "receiving a packet";
  case TT_OFI_OP_OUT:
    return "sending a packet";
  case TT_OFI_OP_READ:
    return "flushing what came";
  default:
    return "writing a part of a message";
  }
}

static ncclResult_t read_error(struct tt_ofi_link *link, int rail_index)
{
  struct tt_ofi_rail *rail = &link->rail[rail_index];
  struct fi_cq_err_entry entry;
  char text[128] = "";
  memset(&entry, 0, sizeof entry);
  ssize_t got = fi_cq_readerr(rail->cq, &entry, 0);
  if (got == 0 || got == -FI_EAGAIN) return ncclSuccess;
  if (got < 0) return tt_ofi_link_broken(link, rail_index, "reading an error of", (int)got, NULL);
  const char *detail = fi_cq_strerror(rail->cq, entry.prov_errno, entry.err_data, text, sizeof text);
  return tt_ofi_link_broken(link, rail_index, words_for(entry.op_context), entry.err, detail);
}

/* *came: at least one completion. */
static ncclResult_t read_rail(struct tt_ofi_link *link, int rail_index, bool *came)
{
  struct tt_ofi_rail *rail = &link->rail[rail_index];
  for (int round = 0; round < ROUNDS; round++) {
    struct fi_cq_data_entry entries[BATCH];
    ssize_t count = fi_cq_read(rail->cq, entries, BATCH);
    if (count == -FI_EAGAIN || count == 0) return ncclSuccess;
    if (count == -FI_EAVAIL) return read_error(link, rail_index);
    if (count < 0) return tt_ofi_link_broken(link, rail_index, "reading completions of", (int)count, NULL);
    *came = true;
    for (ssize_t i = 0; i < count; i++) TT_TRY(complete(link, rail, &entries[i]));
    if (count < BATCH) return ncclSuccess;
  }
  return ncclSuccess;
}

/* ---- The socket ---- */

static ncclResult_t note_came(struct tt_ofi_link *link)
{
  if (link->note.kind == TT_OFI_BYE && !link->sends) {
    link->bye = true;
    link->bye_count = link->note.value;
    return ncclSuccess;
  }
  if (link->note.kind == TT_OFI_ACK && link->sends) return link->events->note(link, &link->note);
  return tt_ofi_link_fail(
      link, TT_FAIL(ncclRemoteError, "net ofi: device %s: %s sent a note of unknown kind 0x%x; the stream is corrupt",
                    link->device->name, link->peer, link->note.kind));
}

static ncclResult_t hear(struct tt_ofi_link *link, uint64_t now)
{
  link->heard_ns = now;
  while (!link->gone) {
    ssize_t n = recv(link->fd, (char *)&link->note + link->note_got, sizeof link->note - link->note_got, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) {
      link->gone = true;
      link->arrived_ns = now;
      break;
    }
    link->note_got += (size_t)n;
    if (link->note_got < sizeof link->note) continue;
    link->note_got = 0;
    TT_TRY(note_came(link));
  }
  return ncclSuccess;
}

/* False: there is still something that could not be said. */
static bool finish_saying(struct tt_ofi_link *link)
{
  while (link->note_left && !link->gone) {
    const char *rest = (const char *)&link->saying + sizeof link->saying - link->note_left;
    ssize_t n = send(link->fd, rest, link->note_left, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    link->note_left = n < 0 ? 0 : link->note_left - (size_t)n;
  }
  return true;
}

bool tt_ofi_link_say(struct tt_ofi_link *link, enum tt_ofi_note_kind kind, int32_t tag, uint64_t value)
{
  if (!finish_saying(link)) return false;
  link->saying = (struct tt_ofi_note){.kind = kind, .tag = tag, .value = value};
  link->note_left = sizeof link->saying;
  finish_saying(link);
  return true;
}

/* ---- Moving ---- */

static ncclResult_t watch(struct tt_ofi_link *link, bool came, bool listen)
{
  if (came) link->idle = 0;
  if (!link->gone && !listen && (came || ++link->idle % LOOK_EVERY)) return ncclSuccess;
  uint64_t now = tt_timer_ns();
  if (!link->gone && (listen || now - link->heard_ns >= HEAR_NS)) TT_TRY(hear(link, now));
  if (!link->gone) return ncclSuccess;
  if (came) link->arrived_ns = now;
  if (now - link->arrived_ns < GRACE_NS) return ncclSuccess;
  return tt_ofi_link_lost(link, link->sends ? "sending" : "waiting for a message");
}

ncclResult_t tt_ofi_link_move(struct tt_ofi_link *link, bool listen)
{
  bool came = false;
  if (link->failed != ncclSuccess) return link->failed;
  if (link->note_left) finish_saying(link);
  for (int i = 0; i < link->rails; i++) {
    TT_TRY(post_idle(link, i));
    TT_TRY(post_waiting(link, i));
    TT_TRY(read_rail(link, i, &came));
    TT_TRY(post_idle(link, i));
  }
  return watch(link, came, listen);
}
