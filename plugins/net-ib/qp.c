/* Queue pairs: making them, and taking them through their states. */
#include "net_ib.h"

#include <errno.h>
#include <string.h>
#include "gid.h"

/* What the receiver of a message may take in time before the sender asks again: 0.64 ms (code 12 of the specification).
 * It never happens, since receives are posted first. */
#define RNR_TIMER 12
#define RNR_FOR_EVER 7
#define HOPS 255

static const char *remedy(int error)
{
  if (error == ENOMEM || error == EINVAL || error == ENOSPC)
    return "; the NIC may be out of queue pairs or memory, or the limit of locked memory (ulimit -l) be too low: "
           "NCCL_IB_QPS_PER_CONNECTION and fewer channels (NCCL_MAX_NCHANNELS) take less";
  return error == EIO ? "; the NIC was removed or failed, see the system log" : "";
}

static ncclResult_t to_init(struct tt_ib_qp *qp)
{
  struct ibv_qp_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = (uint16_t)tt_param_int(TT_PARAM_NCCL_IB_PKEY);
  attr.port_num = (uint8_t)qp->port->number;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  int error =
      tt_ib_verbs(NULL)->modify_qp(qp->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (!error) return ncclSuccess;
  return TT_FAIL(error == EINVAL && attr.pkey_index ? ncclInvalidUsage : ncclSystemError,
                 "net ib: %s port %d does not take a queue pair with NCCL_IB_PKEY=%d: %s%s", qp->port->name,
                 qp->port->number, attr.pkey_index, strerror(error),
                 attr.pkey_index ? "; it is an index in the port's table of partition keys" : remedy(error));
}

ncclResult_t tt_ib_qp_make(struct tt_ib_qp *qp, struct tt_ib_port *port, struct ibv_cq *cq, void *user, uint32_t depth,
                           uint32_t receives, uint32_t max_inline)
{
  struct ibv_qp_init_attr init;
  memset(qp, 0, sizeof *qp);
  qp->port = port;
  /* Not every NIC can take so much inline; what it can is not told, so less is tried. */
  for (uint32_t bytes = max_inline; !qp->qp; bytes /= 2) {
    memset(&init, 0, sizeof init);
    init.qp_context = user;
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = depth;
    init.cap.max_recv_wr = receives;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = bytes;
    qp->qp = tt_ib_verbs(NULL)->create_qp(port->pd, &init);
    if (qp->qp || bytes == 0 || errno != EINVAL) break;
  }
  if (!qp->qp) {
    int error = errno;
    return TT_FAIL(ncclSystemError, "net ib: no queue pair on %s port %d (%u sends, %u receives): %s%s", port->name,
                   port->number, depth, receives, strerror(error), remedy(error));
  }
  qp->depth = depth;
  qp->max_inline = TT_MIN(init.cap.max_inline_data, max_inline);
  ncclResult_t result = to_init(qp);
  if (result != ncclSuccess) tt_ib_qp_end(qp);
  return result;
}

static void fill_address(const struct tt_ib_qp *qp, const struct tt_ib_path *path, struct ibv_ah_attr *address)
{
  const struct tt_ib_port *port = qp->port;
  bool far = tt_ib_gid_subnet(&port->gid) != tt_ib_gid_subnet(&path->remote.gid);
  address->port_num = (uint8_t)port->number;
  address->sl = path->service_level;
  if (port->link_layer == IBV_LINK_LAYER_INFINIBAND) {
    uint16_t router = tt_ib_gid_flid(&path->remote.gid);
    address->dlid = far && router ? router : path->remote.lid;
    if (!far && !(port->flags & IBV_QPF_GRH_REQUIRED)) return;
  }
  address->is_global = 1;
  address->grh.dgid = path->remote.gid;
  address->grh.sgid_index = (uint8_t)port->gid_index;
  address->grh.hop_limit = HOPS;
  address->grh.traffic_class = path->traffic_class;
  address->grh.flow_label = port->link_layer == IBV_LINK_LAYER_ETHERNET ? path->flow_label : 0;
}

static ncclResult_t failed(const struct tt_ib_qp *qp, const struct tt_ib_path *path, const char *state, int error)
{
  char here[TT_IB_GID_TEXT], there[TT_IB_GID_TEXT];
  return TT_FAIL(
      ncclSystemError,
      "net ib: queue pair %u of %s port %d (GID %d %s) cannot reach %s (GID %s) in state %s: %s; check that both "
      "GIDs are of one kind and have a way between them (NCCL_IB_GID_INDEX, NCCL_IB_ADDR_RANGE)%s",
      qp->qp->qp_num, qp->port->name, qp->port->number, qp->port->gid_index, tt_ib_gid_print(&qp->port->gid, here),
      path->remote.name, tt_ib_gid_print(&path->remote.gid, there), state, strerror(error),
      error == EIO ? remedy(error) : "");
}

ncclResult_t tt_ib_qp_connect(struct tt_ib_qp *qp, const struct tt_ib_path *path)
{
  const struct tt_ib_verbs *verbs = tt_ib_verbs(NULL);
  struct ibv_qp_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = (enum ibv_mtu)TT_MIN(qp->port->mtu, path->remote.mtu);
  attr.dest_qp_num = qp->remote_number;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = RNR_TIMER;
  fill_address(qp, path, &attr.ah_attr);
  int error = verbs->modify_qp(qp->qp, &attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error) return failed(qp, path, "RTR", error);
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = (uint8_t)tt_param_int(TT_PARAM_NCCL_IB_TIMEOUT);
  attr.retry_cnt = (uint8_t)tt_param_int(TT_PARAM_NCCL_IB_RETRY_CNT);
  attr.rnr_retry = RNR_FOR_EVER;
  attr.max_rd_atomic = 1;
  error = verbs->modify_qp(qp->qp, &attr,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                               IBV_QP_MAX_QP_RD_ATOMIC);
  return error ? failed(qp, path, "RTS", error) : ncclSuccess;
}

void tt_ib_qp_stop(struct tt_ib_qp *qp)
{
  struct ibv_qp_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_ERR;
  /* It fails where the NIC is gone, and then there is nothing to stop. */
  tt_ib_verbs(NULL)->modify_qp(qp->qp, &attr, IBV_QP_STATE);
}

void tt_ib_qp_end(struct tt_ib_qp *qp)
{
  if (qp->qp) tt_ib_verbs(NULL)->destroy_qp(qp->qp);
  qp->qp = NULL;
}

/* Drivers fold the label's 20 bits into the port's 14 by XOR of the low 14 with the high 6
 * (rdma_flow_label_to_udp_sport); with the high ones alike, labels that differ in the low ones give different ports. 0
 * means that the driver chooses. */
uint32_t tt_ib_flow_label(uint64_t connection, int index)
{
  uint32_t low = (uint32_t)((connection + (uint64_t)index * 2654435761u) & 0x3fff);
  return 0x40000u | low;
}
