/* What moves data: packets in order, completions, and the socket now and then. */
#include "net_ofi.h"

#include <sched.h>
#include <string.h>

#define BATCH 16                       /* completions in one call */
#define ROUNDS 4                       /* of which so many, so that other comms get their turn */
#define LOOK_EVERY 64                  /* idle rounds after which the clock is looked at */
#define GRACE_NS ((uint64_t)200000000) /* how long what a peer sent before it went may be silent on its way */
#define DRAIN_MS 100

/* ---- Packets ---- */

static void recycle(struct tt_ofi_link *link, struct tt_ofi_rail *rail, struct tt_ofi_packet *packet)
{
  void *owner = packet->owner;
  packet->next = rail->free;
  rail->free = packet;
  if (owner) link->events->sent(link, owner);
}

struct tt_ofi_packet *tt_ofi_link_packet(struct tt_ofi_link *link, int rail)
{
  struct tt_ofi_packet *packet = link->rail[rail].free;
  if (!packet) return NULL;
  link->rail[rail].free = packet->next;
  packet->owner = NULL;
  packet->injects = false;
  return packet;
}

void tt_ofi_link_return(struct tt_ofi_link *link, int rail, struct tt_ofi_packet *packet)
{
  recycle(link, &link->rail[rail], packet);
}

/* A provider has copied what it injects, and reports no completion: two system calls less over sockets. */
static ssize_t post(struct tt_ofi_rail *rail, struct tt_ofi_packet *packet, void *desc)
{
  if (packet->injects) return fi_inject(rail->ep, packet->data, packet->bytes, rail->peer);
  return fi_send(rail->ep, packet->data, packet->bytes, desc, rail->peer, &packet->op);
}

static ncclResult_t post_waiting(struct tt_ofi_link *link, int rail_index)
{
  struct tt_ofi_rail *rail = &link->rail[rail_index];
  void *desc = rail->mr ? fi_mr_desc(rail->mr) : NULL;
  while (rail->waiting.first) {
    struct tt_ofi_packet *packet = rail->waiting.first, *next = packet->next;
    packet->injects = packet->injects && packet->bytes <= rail->inject;
    ssize_t error = post(rail, packet, desc);
    if (error == -FI_EAGAIN) tt_count(&link->counted, TT_COUNT_REFUSED, 1);
    if (error == -FI_EAGAIN) return ncclSuccess;
    if (error) return tt_ofi_link_broken(link, rail_index, "sending a packet", (int)error, NULL);
    rail->waiting.first = next;
    if (!next) rail->waiting.end = &rail->waiting.first;
    if (packet->injects)
      recycle(link, rail, packet);
    else
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
  rail->out_busy--;
  recycle(link, rail, packet);
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

/* ---- Moving ---- */

static ncclResult_t watch(struct tt_ofi_link *link, bool came, bool listen)
{
  if (came) link->idle = 0;
  if (!link->gone && !listen && (came || ++link->idle % LOOK_EVERY)) return ncclSuccess;
  uint64_t now = tt_timer_ns();
  if (!link->gone && (listen || now - link->heard_ns >= TT_OFI_HEAR_NS)) TT_TRY(tt_ofi_link_hear(link, now));
  if (!link->gone) return ncclSuccess;
  if (came) link->arrived_ns = now;
  if (now - link->arrived_ns < GRACE_NS) return ncclSuccess;
  return tt_ofi_link_lost(link, link->sends ? "sending" : "waiting for a message");
}

ncclResult_t tt_ofi_link_move(struct tt_ofi_link *link, bool listen)
{
  bool came = false;
  if (link->failed != ncclSuccess) return link->failed;
  if (link->note_left) tt_ofi_link_finish_saying(link);
  for (int i = 0; i < link->rails; i++) {
    TT_TRY(post_idle(link, i));
    TT_TRY(post_waiting(link, i));
    TT_TRY(read_rail(link, i, &came));
    TT_TRY(post_idle(link, i));
  }
  return watch(link, came, listen);
}

ncclResult_t tt_ofi_link_look(struct tt_ofi_link *link)
{
  bool came = false;
  for (int i = 0; i < link->rails; i++) TT_TRY(read_rail(link, i, &came));
  return ncclSuccess;
}

/* ---- Closing ---- */

static bool drain_rail(struct tt_ofi_rail *rail)
{
  struct fi_cq_data_entry entry;
  while (rail->out_busy && fi_cq_read(rail->cq, &entry, 1) == 1) {
    struct tt_ofi_op *op = entry.op_context;
    rail->out_busy -= (entry.flags & FI_SEND) && op && op->kind == TT_OFI_OP_OUT;
  }
  return rail->out_busy == 0;
}

void tt_ofi_link_drain(struct tt_ofi_link *link)
{
  tt_deadline deadline = tt_deadline_in_ms(DRAIN_MS);
  bool empty = false;
  while (!empty && link->failed == ncclSuccess && !link->gone && !tt_deadline_passed(deadline)) {
    empty = true;
    for (int i = 0; i < link->rails; i++) empty = drain_rail(&link->rail[i]) && empty;
    if (!empty) tt_ofi_link_hear(link, tt_timer_ns());
    if (!empty) sched_yield();
  }
}
