/* What send and receive comms share: rails and queue pairs, and how the two sides' are connected. */
#include "net_ib.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_DEPTH 256   /* requests on a send queue: of data */
#define CLEAR_DEPTH 64   /* and of clear-to-send entries */
#define LOOP_DEPTH 64    /* and of flushes */
#define INLINE_BYTES 256 /* at most; what is larger is as quick by the NIC's own reading */

/* ---- Making and ending ---- */

/* The ports of the device whose NICs are there; the card tells the other side how many these are. */
static ncclResult_t choose_ports(struct tt_ib_link *link)
{
  const struct tt_ib_device *device = link->device;
  bool others = tt_param_int(TT_PARAM_NCCL_IB_RESILIENCY_PORT_FAILOVER) != 0;
  uint32_t gone = 0;
  for (int i = 0; i < device->count; i++) {
    struct tt_ib_port *port = tt_ib_port(device->port[i]);
    if ((others || device->count == 1) && tt_ib_port_gone(port))
      gone |= 1u << i;
    else
      link->rail[link->rails++].port = port;
  }
  if (link->rails == 0)
    return TT_FAIL(ncclSystemError,
                   "net ib: device %s makes no connection: its NIC%s removed or failed, see the system log",
                   device->name, device->count > 1 ? "s were all" : " was");
  for (int i = 0; i < device->count; i++)
    if (gone & 1u << i)
      TT_WARN("net ib: a connection of device %s is made without %s port %d: the NIC was removed or failed; the other "
              "ports do it, with less speed",
              device->name, tt_ib_port(device->port[i])->name, tt_ib_port(device->port[i])->number);
  return ncclSuccess;
}

static ncclResult_t make_rail(struct tt_ib_link *link, struct tt_ib_rail *rail, int entries, void *memory, size_t bytes)
{
  struct tt_ib_port *port = rail->port;
  rail->cq = tt_ib_verbs(NULL)->create_cq(port->nic->context, entries, link, NULL, 0);
  if (!rail->cq)
    return TT_FAIL(ncclSystemError,
                   "net ib: no completion queue of %d entries on %s of device %s: %s; fewer queue pairs need less "
                   "(NCCL_IB_QPS_PER_CONNECTION)",
                   entries, port->name, link->device->name, strerror(errno));
  return tt_ib_register_own(port, memory, bytes, &rail->mr);
}

static ncclResult_t make_qp(struct tt_ib_link *link, int index, uint32_t depth, uint32_t receives)
{
  struct tt_ib_rail *rail = &link->rail[index % link->rails];
  if ((int)receives > rail->port->nic->max_wr)
    return TT_FAIL(ncclInvalidUsage,
                   "net ib: messages in %d pieces need queues of %u receives, and %s has %d at most; lower "
                   "NCCL_IB_QPS_PER_CONNECTION",
                   link->pieces, receives, rail->port->name, rail->port->nic->max_wr);
  TT_TRY(tt_ib_qp_make(&link->qp[index], rail->port, rail->cq, link,
                       (uint32_t)TT_MIN((int)depth, rail->port->nic->max_wr), receives,
                       tt_param_int(TT_PARAM_NCCL_IB_USE_INLINE) ? INLINE_BYTES : 0));
  link->qp[index].rail = index % link->rails;
  link->qps = index + 1;
  return ncclSuccess;
}

static ncclResult_t make_rails(struct tt_ib_link *link, int qps, void *memory, size_t bytes)
{
  uint32_t depth = link->sends ? SEND_DEPTH : CLEAR_DEPTH;
  uint32_t receives = link->sends ? 1 : (uint32_t)(TT_IB_SLOTS * link->pieces);
  TT_TRY(choose_ports(link));
  int on_a_rail = (qps + link->rails - 1) / link->rails;
  for (int i = 0; i < link->rails; i++)
    TT_TRY(make_rail(link, &link->rail[i], on_a_rail * (int)(depth + receives) + LOOP_DEPTH + 1, memory, bytes));
  for (int i = 0; i < qps; i++) TT_TRY(make_qp(link, i, depth, receives));
  return ncclSuccess;
}

static void end_rails(struct tt_ib_link *link)
{
  const struct tt_ib_verbs *verbs = tt_ib_verbs(NULL);
  for (int i = 0; i < link->qps + link->loops; i++) tt_ib_qp_end(&link->qp[i]);
  for (int i = 0; i < link->rails; i++) {
    struct tt_ib_rail *rail = &link->rail[i];
    if (rail->mr) verbs->dereg_mr(rail->mr);
    if (rail->cq) verbs->destroy_cq(rail->cq);
    memset(rail, 0, sizeof *rail);
  }
  link->qps = link->loops = link->rails = 0;
}

ncclResult_t tt_ib_link_make(struct tt_ib_link *link, const struct tt_ib_hooks *hooks, bool sends,
                             const struct tt_ib_device *device, int qps, int pieces, void *memory, size_t bytes)
{
  tt_ib_comm_counts(1);
  link->hooks = hooks;
  link->device = device;
  link->sends = sends;
  link->fd = -1;
  link->pieces = pieces;
  int64_t timeout_us = 4096ll << tt_param_int(TT_PARAM_NCCL_IB_TIMEOUT);
  link->patience_ms =
      (int)TT_MIN(timeout_us / 1000 * (1 + tt_param_int(TT_PARAM_NCCL_IB_RETRY_CNT)) / 1000 + 1, 3600000);
  ncclResult_t result = make_rails(link, qps, memory, bytes);
  for (int i = 1; i < device->count && result != ncclSuccess && tt_ib_makes_anew(link); i++) {
    end_rails(link);
    result = make_rails(link, qps, memory, bytes);
  }
  if (result != ncclSuccess) tt_ib_link_end(link);
  return result;
}

static ncclResult_t make_loop(struct tt_ib_link *link, int rail, const struct tt_ib_card *own)
{
  struct tt_ib_qp *qp = &link->qp[link->qps + rail];
  uint32_t depth = (uint32_t)TT_MIN(LOOP_DEPTH, link->rail[rail].port->nic->max_wr);
  struct tt_ib_path path = {.remote = own->rail[rail]};
  TT_TRY(tt_ib_qp_make(qp, link->rail[rail].port, link->rail[rail].cq, link, depth, 1, 0));
  qp->rail = rail;
  qp->remote_number = qp->qp->qp_num;
  return tt_ib_qp_connect(qp, &path);
}

/* A queue pair that is connected with itself on each rail, for reads of the memory here. */
ncclResult_t tt_ib_link_add_loops(struct tt_ib_link *link)
{
  struct tt_ib_card own;
  memset(&own, 0, sizeof own);
  tt_ib_link_card(link, NULL, &own);
  for (int r = 0; r < link->rails; r++) {
    ncclResult_t result = link->rail[r].lost ? ncclSuccess : make_loop(link, r, &own);
    link->loops = r + 1;
    if (result != ncclSuccess && !tt_ib_makes_without(link, r)) return result;
    link->qp[link->qps + r].dead = link->rail[r].lost;
  }
  return tt_ib_give_up_lost(link);
}

void tt_ib_link_end(struct tt_ib_link *link)
{
  tt_counted_close(&link->counted);
  end_rails(link);
  tt_ib_notes_discard(link);
  tt_socket_close(&link->fd);
  free(link->notes);
  link->notes = NULL;
  tt_ib_comm_counts(-1);
}

void tt_ib_link_card(const struct tt_ib_link *link, const void *memory, struct tt_ib_card *card)
{
  card->memory = (uintptr_t)memory;
  card->rails = (uint32_t)link->rails;
  card->qps = (uint32_t)link->qps;
  card->pieces = (uint32_t)link->pieces;
  for (int i = 0; i < link->rails; i++) {
    const struct tt_ib_port *port = link->rail[i].port;
    struct tt_ib_wire_rail *rail = &card->rail[i];
    rail->gid = port->gid;
    rail->rkey = link->rail[i].mr->rkey;
    rail->lid = port->lid;
    rail->link_layer = port->link_layer;
    rail->mtu = port->mtu;
    snprintf(rail->name, sizeof rail->name, "%.26s port %d", port->name, port->number);
  }
  for (int i = 0; i < link->qps; i++) card->qp[i] = link->qp[i].qp->qp_num;
}

void tt_ib_link_met(struct tt_ib_link *link, int fd)
{
  union tt_address address;
  socklen_t bytes = sizeof address;
  link->fd = fd;
  tt_meeting_tune(fd);
  if (getpeername(fd, &address.sa, &bytes) == 0)
    tt_address_print(&address, link->peer);
  else
    strcpy(link->peer, "an unknown address");
}

ncclResult_t tt_ib_link_connect(struct tt_ib_link *link, const struct tt_ib_card *card, uint8_t traffic_class)
{
  link->remote = *card;
  if (card->rails < 1 || card->rails > TT_IB_RAILS || card->qps != (uint32_t)link->qps ||
      card->pieces != (uint32_t)link->pieces)
    return TT_FAIL(
        ncclInternalError,
        "net ib: the peer %s has %u devices in one, %u queue pairs and %u pieces a message, and this side %d, %d "
        "and %d; do both run the same version?",
        link->peer, card->rails, card->qps, card->pieces, link->rails, link->qps, link->pieces);
  for (int i = 0; i < link->qps; i++) {
    struct tt_ib_qp *qp = &link->qp[i];
    qp->remote_rail = i % (int)card->rails;
    qp->remote_number = card->qp[i];
    struct tt_ib_path path = {.traffic_class = traffic_class,
                              .service_level = card->service_level,
                              .flow_label = tt_ib_flow_label(card->connection, i),
                              .remote = card->rail[qp->remote_rail]};
    path.remote.name[sizeof path.remote.name - 1] = 0;
    if (path.remote.link_layer != qp->port->link_layer)
      return TT_FAIL(ncclInvalidUsage,
                     "net ib: %s port %d is %s, and %s of the peer %s is %s; NCCL_IB_HCA chooses devices of one kind",
                     qp->port->name, qp->port->number, tt_ib_link_name(qp->port->link_layer), path.remote.name,
                     link->peer, tt_ib_link_name(path.remote.link_layer));
    ncclResult_t result = link->rail[qp->rail].lost ? ncclSuccess : tt_ib_qp_connect(qp, &path);
    if (result != ncclSuccess && !tt_ib_makes_without(link, qp->rail)) return result;
  }
  /* What NICs send again they do not tell; retries are what went another way after a port had failed. */
  link->counted = (struct tt_counted){
      .sends = link->sends,
      .dev = link->device->index,
      .comm = link,
      .name = link->device->name,
      .peer = link->peer,
      .counts = TT_COUNTS_BYTES | TT_COUNTS_OPERATIONS | TT_COUNTS_RETRIES | TT_COUNTS_REFUSED |
                TT_COUNTS_CLEAR_TO_SENDS | (link->sends ? TT_COUNTS_CLEAR_TO_SEND_WAITS : 0) | TT_COUNTS_QUEUE_DEPTH};
  tt_counted_open(&link->counted);
  return ncclSuccess;
}
