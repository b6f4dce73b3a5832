/* An endpoint, its completion queue, and the packets that it receives and sends. */
#include "net_ofi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PACKETS_IN 64
#define PACKETS_OUT 32
#define SCRATCH 64
#define DEPTH 256 /* operations of an endpoint under way, if the provider does not want fewer */
#define CACHE_LINE 64
/* Endpoints that a process may have left behind. */
#define LEFT_BEHIND 1000

static ncclResult_t failed(const struct tt_ofi_rail *rail, const char *what, int error)
{
  return TT_FAIL(ncclSystemError,
                 "net ofi: device %s (%s): %s failed: %s; the number of endpoints or of open files may be at its limit "
                 "(ulimit -n); FI_LOG_LEVEL=warn makes libfabric tell more",
                 rail->nic->name, rail->nic->info->fabric_attr->prov_name, what, tt_ofi_strerror(error));
}

static size_t depth_of(size_t provider)
{
  int64_t wanted = tt_param_int(TT_PARAM_TUTTI_OFI_DEPTH);
  size_t depth = wanted > 0 ? (size_t)wanted : DEPTH;
  return provider && provider < depth ? provider : depth;
}

/* The endpoint's attributes: no more than what is used. */
static ncclResult_t make_endpoint(struct tt_ofi_rail *rail)
{
  char why[200];
  const struct tt_ofi_fabric *fabric = tt_ofi_fabric(why, sizeof why);
  struct fi_info *info = fabric ? fabric->dupinfo(rail->nic->info) : NULL;
  if (!info) return TT_FAIL(ncclSystemError, "net ofi: no memory for a copy of an fi_info");
  info->tx_attr->size = depth_of(info->tx_attr->size);
  info->rx_attr->size = TT_MIN(depth_of(info->rx_attr->size), (size_t)PACKETS_IN);
  rail->in_count = (int)info->rx_attr->size;
  rail->out_count = (int)TT_MIN(info->tx_attr->size, (size_t)PACKETS_OUT);
  int error = fi_endpoint(rail->nic->domain, info, &rail->ep, NULL);
  /* Nobody could know that they have left before the endpoint is closed: see tt_ofi_link_drain. */
  bool threaded = strcmp(info->fabric_attr->prov_name, "sockets") == 0;
  rail->inject = threaded ? 0 : info->tx_attr->inject_size;
  fabric->freeinfo(info);
  return error ? failed(rail, "fi_endpoint", error) : ncclSuccess;
}

/* Before the endpoint: ofi_rxm cannot close one that has no queue yet. */
static ncclResult_t make_queues(struct tt_ofi_rail *rail)
{
  struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE, .size = 4 * DEPTH};
  struct fi_av_attr av = {.type = FI_AV_UNSPEC, .count = 2};
  int error = fi_cq_open(rail->nic->domain, &cq, &rail->cq, NULL);
  if (error) return failed(rail, "fi_cq_open", error);
  error = fi_av_open(rail->nic->domain, &av, &rail->av, NULL);
  return error ? failed(rail, "fi_av_open", error) : ncclSuccess;
}

/* Providers of one host (shm) name endpoints by the process's number and count them. An earlier process of the same
 * number that was killed has left its names: they are taken, since a process of that number lives. The next endpoint
 * has another one. */
static ncclResult_t enable(struct tt_ofi_rail *rail)
{
  int error;
  for (int left = 0;; left++) {
    TT_TRY(make_endpoint(rail));
    error = fi_ep_bind(rail->ep, &rail->cq->fid, FI_TRANSMIT | FI_RECV);
    if (error == 0) error = fi_ep_bind(rail->ep, &rail->av->fid, 0);
    if (error) return failed(rail, "fi_ep_bind", error);
    error = fi_enable(rail->ep);
    if (error != -FI_EBUSY || left == LEFT_BEHIND) break;
    fi_close(&rail->ep->fid);
    rail->ep = NULL;
  }
  if (error) return failed(rail, "fi_enable", error);
  rail->name_bytes = sizeof rail->name;
  error = fi_getname(&rail->ep->fid, rail->name, &rail->name_bytes);
  return error ? failed(rail, "fi_getname", error) : ncclSuccess;
}

static void push(struct tt_ofi_packets *list, struct tt_ofi_packet *packet)
{
  packet->next = NULL;
  *list->end = packet;
  list->end = &packet->next;
}

static size_t rounded(size_t bytes)
{
  return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static ncclResult_t make_packets(struct tt_ofi_rail *rail, size_t in_bytes, size_t out_bytes)
{
  size_t in = rounded(in_bytes), out = rounded(out_bytes);
  size_t bytes = (size_t)rail->in_count * in + (size_t)rail->out_count * out + SCRATCH;
  TT_TRY(TT_CALLOC(&rail->packets, (size_t)(rail->in_count + rail->out_count)));
  rail->memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!rail->memory) return TT_FAIL(ncclSystemError, "net ofi: no memory for packets (%zu bytes)", bytes);
  memset(rail->memory, 0, bytes);
  TT_TRY(tt_ofi_memory_own(rail->nic, rail->ep, rail->memory, bytes, &rail->mr));
  char *at = rail->memory + SCRATCH;
  rail->waiting.end = &rail->waiting.first;
  rail->idle.end = &rail->idle.first;
  for (int i = 0; i < rail->in_count + rail->out_count; i++) {
    struct tt_ofi_packet *packet = &rail->packets[i];
    bool incoming = i < rail->in_count;
    packet->op.kind = incoming ? TT_OFI_OP_IN : TT_OFI_OP_OUT;
    packet->data = at;
    packet->bytes = incoming ? in_bytes : 0;
    at += incoming ? in : out;
    if (incoming) {
      push(&rail->idle, packet);
    } else {
      packet->next = rail->free;
      rail->free = packet;
    }
  }
  return ncclSuccess;
}

ncclResult_t tt_ofi_rail_open(struct tt_ofi_rail *rail, struct tt_ofi_nic *nic, size_t in_bytes, size_t out_bytes)
{
  memset(rail, 0, sizeof *rail);
  rail->nic = nic;
  rail->peer = rail->self = FI_ADDR_UNSPEC;
  TT_TRY(tt_ofi_nic_open(nic));
  rail->is_open = true;
  TT_TRY(make_queues(rail));
  TT_TRY(enable(rail));
  return make_packets(rail, in_bytes, out_bytes);
}

void tt_ofi_rail_close(struct tt_ofi_rail *rail)
{
  if (rail->ep) fi_close(&rail->ep->fid);
  if (rail->mr) fi_close(&rail->mr->fid);
  if (rail->cq) fi_close(&rail->cq->fid);
  if (rail->av) fi_close(&rail->av->fid);
  if (rail->is_open) tt_ofi_nic_close(rail->nic);
  free(rail->memory);
  free(rail->packets);
  memset(rail, 0, sizeof *rail);
}

static ncclResult_t insert(struct tt_ofi_rail *rail, const char *name, fi_addr_t *out)
{
  int count = fi_av_insert(rail->av, name, 1, out, 0, NULL);
  if (count == 1) return ncclSuccess;
  return failed(rail, "fi_av_insert of an endpoint's address", count < 0 ? count : -FI_EADDRNOTAVAIL);
}

ncclResult_t tt_ofi_rail_meet(struct tt_ofi_rail *rail, const char *name, size_t bytes)
{
  if (bytes == 0 || bytes > TT_OFI_NAME_BYTES)
    return TT_FAIL(ncclRemoteError, "net ofi: device %s: the peer's endpoint has an address of %zu bytes",
                   rail->nic->name, bytes);
  TT_TRY(insert(rail, name, &rail->peer));
  return rail->nic->hmem ? insert(rail, rail->name, &rail->self) : ncclSuccess;
}

void *tt_ofi_rail_scratch(const struct tt_ofi_rail *rail)
{
  return rail->memory;
}
