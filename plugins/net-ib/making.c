/* What is lost while a connection is made: a NIC that is removed, or a port whose link goes down. The connection is
 * made without it where others are left, as it goes on without it later (failover.c). Before the queue pairs are there,
 * all begins anew; then their rail is given up, and the peer is told once the two sides are connected. */
#include "net_ib.h"

#include <errno.h>

bool tt_ib_port_gone(const struct tt_ib_port *port)
{
  struct ibv_port_attr attr;
  return atomic_load(&port->nic->fatal) || tt_ib_query_port(port->nic->context, (uint8_t)port->number, &attr) == EIO;
}

static bool has_no_link(const struct tt_ib_port *port)
{
  struct ibv_port_attr attr;
  return tt_ib_query_port(port->nic->context, (uint8_t)port->number, &attr) == 0 && attr.state != IBV_PORT_ACTIVE;
}

static bool others_may(void)
{
  return tt_param_int(TT_PARAM_NCCL_IB_RESILIENCY_PORT_FAILOVER) != 0;
}

bool tt_ib_makes_anew(const struct tt_ib_link *link)
{
  bool gone = false;
  for (int r = 0; r < link->rails; r++) gone |= tt_ib_port_gone(link->rail[r].port);
  return gone && link->rails > 1 && others_may();
}

bool tt_ib_makes_without(struct tt_ib_link *link, int rail)
{
  const struct tt_ib_port *port = link->rail[rail].port;
  bool others = false;
  for (int r = 0; r < link->rails; r++) others |= r != rail && !link->rail[r].lost;
  if (!others || !others_may() || (!tt_ib_port_gone(port) && !has_no_link(port))) return false;
  link->rail[rail].lost = true;
  return true;
}

ncclResult_t tt_ib_give_up_lost(struct tt_ib_link *link)
{
  bool saved;
  for (int r = 0; r < link->rails; r++)
    if (link->rail[r].lost) TT_TRY(tt_ib_fail_over_rail(link, r, "it was lost while the connection was made", &saved));
  return ncclSuccess;
}
