/* Completion queues and queue pairs: creation, states, posting, polling. */
#include "fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_qp *fake_qps;
int fake_live_cqs;
static uint64_t last_serial;
static uint64_t coin;

static bool is_gone(struct ibv_context *context)
{
  return fake_context(context)->device->removed;
}

/* ---- Completion queues ---- */

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *user, struct ibv_comp_channel *channel,
                             int vector)
{
  pthread_mutex_lock(&fake_lock);
  int error = fake_should_fail("create_cq");
  if (!error && (entries < 1 || entries > fake_limits.cqe)) error = EINVAL;
  if (!error && is_gone(context)) error = EIO;
  if (channel || vector) fake_misuse("completion channels are not faked");
  struct fake_cq *cq = error ? NULL : calloc(1, sizeof *cq);
  if (cq) {
    cq->ring = calloc((size_t)entries, sizeof *cq->ring);
    cq->capacity = entries;
    cq->cq.context = context;
    cq->cq.cq_context = user;
    cq->cq.cqe = entries;
    fake_context(context)->cqs++;
    fake_live_cqs++;
  }
  pthread_mutex_unlock(&fake_lock);
  errno = error;
  return cq ? &cq->cq : NULL;
}

int ibv_destroy_cq(struct ibv_cq *visible)
{
  struct fake_cq *cq = CONTAINER(visible, struct fake_cq, cq);
  pthread_mutex_lock(&fake_lock);
  if (cq->users) fake_misuse("ibv_destroy_cq that %d queues use", cq->users);
  fake_wait_acknowledged(fake_context(visible->context), visible);
  fake_context(visible->context)->cqs--;
  fake_live_cqs--;
  pthread_mutex_unlock(&fake_lock);
  free(cq->ring);
  free(cq);
  return 0;
}

/* Completions of one queue keep their order; those of different ones have none among themselves. */
static void add_completion(struct ibv_cq *visible, struct fake_cqe entry)
{
  struct fake_cq *cq = CONTAINER(visible, struct fake_cq, cq);
  if (cq->dead) return;
  if (cq->count == cq->capacity) {
    cq->dead = true;
    fake_count("cq_overrun");
    fake_raise(fake_context(visible->context)->device, IBV_EVENT_CQ_ERR, visible);
    return;
  }
  entry.ready_ns = fake_now_ns() + fake_delay_ns();
  int at = cq->count++;
  while (fake_reorders() && at > 0) {
    const struct fake_cqe *before = &cq->ring[at - 1];
    coin = coin * 6364136223846793005ull + 1442695040888963407ull;
    if ((before->qp == entry.qp && before->sends == entry.sends) || coin >> 63) break;
    cq->ring[at] = *before;
    at--;
  }
  cq->ring[at] = entry;
}

int fake_poll_cq(struct ibv_cq *visible, int entries, struct ibv_wc *wc)
{
  struct fake_cq *cq = CONTAINER(visible, struct fake_cq, cq);
  int got = 0;
  pthread_mutex_lock(&fake_lock);
  uint64_t now = cq->count && fake_delay_ns() ? fake_now_ns() : UINT64_MAX;
  while (got < entries && got < cq->count && cq->ring[got].ready_ns <= now) {
    struct fake_cqe *entry = &cq->ring[got];
    if (entry->qp && entry->sends)
      entry->qp->retired = entry->retires;
    else if (entry->qp)
      entry->qp->returned = entry->retires;
    wc[got++] = entry->wc;
  }
  cq->count -= got;
  memmove(cq->ring, cq->ring + got, (size_t)cq->count * sizeof *cq->ring);
  pthread_mutex_unlock(&fake_lock);
  return got;
}

void fake_complete_send(struct fake_qp *qp, enum ibv_wc_status status)
{
  struct fake_send *send = &qp->sends[qp->acked % qp->cap.max_send_wr];
  static const enum ibv_wc_opcode opcodes[] = {[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
                                               [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
                                               [IBV_WR_SEND] = IBV_WC_SEND,
                                               [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ};
  struct fake_cqe entry = {.qp = qp, .sends = true, .retires = qp->acked + 1};
  entry.wc.wr_id = send->wr_id;
  entry.wc.status = status;
  entry.wc.qp_num = qp->qp.qp_num;
  /* Of a failure only these and the vendor's code are valid; the rest is rubbish, as it may be. */
  entry.wc.opcode = status ? (enum ibv_wc_opcode)0x55 : opcodes[send->opcode];
  entry.wc.byte_len = status ? 0x55555555 : (uint32_t)send->bytes;
  entry.wc.vendor_err = status ? 0x80u + status : 0;
  bool signaled = status || qp->all_signaled || (send->flags & IBV_SEND_SIGNALED);
  qp->acked++;
  if (status == IBV_WC_SUCCESS) fake_count("sent");
  qp->progress_ns = fake_now_ns();
  if (signaled) add_completion(qp->qp.send_cq, entry);
}

void fake_complete_receive(struct fake_qp *qp, uint32_t imm, uint32_t bytes)
{
  struct fake_cqe entry = {.qp = qp, .retires = qp->consumed + 1};
  entry.wc.wr_id = qp->receives[qp->consumed++ % qp->cap.max_recv_wr].wr_id;
  entry.wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  entry.wc.wc_flags = IBV_WC_WITH_IMM;
  entry.wc.imm_data = imm;
  entry.wc.byte_len = bytes;
  entry.wc.qp_num = qp->qp.qp_num;
  entry.wc.src_qp = qp->attr.dest_qp_num;
  add_completion(qp->qp.recv_cq, entry);
}

void fake_to_error(struct fake_qp *qp)
{
  if (qp->qp.state == IBV_QPS_ERR || qp->qp.state == IBV_QPS_RESET) return;
  qp->qp.state = IBV_QPS_ERR;
  while (qp->acked < qp->posted) fake_complete_send(qp, IBV_WC_WR_FLUSH_ERR);
  qp->sent = qp->posted;
  while (qp->consumed < qp->offered) {
    struct fake_cqe entry = {.qp = qp, .retires = qp->consumed + 1};
    entry.wc.wr_id = qp->receives[qp->consumed++ % qp->cap.max_recv_wr].wr_id;
    entry.wc.status = IBV_WC_WR_FLUSH_ERR;
    entry.wc.opcode = (enum ibv_wc_opcode)0x55;
    entry.wc.vendor_err = 0x80u + IBV_WC_WR_FLUSH_ERR;
    entry.wc.qp_num = qp->qp.qp_num;
    add_completion(qp->qp.recv_cq, entry);
  }
}

void fake_fail_send(struct fake_qp *qp, enum ibv_wc_status status)
{
  fake_complete_send(qp, status);
  fake_to_error(qp);
}

/* ---- Queue pairs ---- */

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
  pthread_mutex_lock(&fake_lock);
  int error = fake_should_fail("create_qp"), live = 0;
  for (struct fake_qp *qp = fake_qps; qp; qp = qp->next) live++;
  if (init->qp_type != IBV_QPT_RC || init->srq) fake_misuse("only RC queue pairs without SRQ are faked");
  if (!error && live >= fake_limits.qp) error = ENOMEM;
  if (!error && ((int)init->cap.max_send_wr > fake_limits.wr || (int)init->cap.max_recv_wr > fake_limits.wr ||
                 (int)init->cap.max_send_sge > fake_limits.sge || (int)init->cap.max_recv_sge > fake_limits.sge ||
                 (int)init->cap.max_inline_data > fake_limits.inline_bytes))
    error = EINVAL;
  if (!error && is_gone(pd->context)) error = EIO;
  struct fake_qp *qp = error ? NULL : calloc(1, sizeof *qp);
  if (qp) {
    if (init->cap.max_send_wr == 0) init->cap.max_send_wr = 1;
    if (init->cap.max_recv_wr == 0) init->cap.max_recv_wr = 1;
    qp->cap = init->cap;
    qp->all_signaled = init->sq_sig_all;
    qp->sends = calloc(init->cap.max_send_wr, sizeof *qp->sends);
    qp->receives = calloc(init->cap.max_recv_wr, sizeof *qp->receives);
    qp->qp.context = pd->context;
    qp->qp.qp_context = init->qp_context;
    qp->qp.pd = pd;
    qp->qp.send_cq = init->send_cq;
    qp->qp.recv_cq = init->recv_cq;
    qp->qp.qp_type = init->qp_type;
    qp->qp.state = IBV_QPS_RESET;
    qp->serial = ++last_serial;
    if (fake_wire_open(qp)) {
      CONTAINER(pd, struct fake_pd, pd)->users++;
      CONTAINER(init->send_cq, struct fake_cq, cq)->users++;
      CONTAINER(init->recv_cq, struct fake_cq, cq)->users++;
      qp->next = fake_qps;
      fake_qps = qp;
    } else {
      error = errno;
      free(qp->sends);
      free(qp->receives);
      free(qp);
      qp = NULL;
    }
  }
  pthread_mutex_unlock(&fake_lock);
  errno = error;
  return qp ? &qp->qp : NULL;
}

static void forget_completions(struct ibv_cq *visible, struct fake_qp *qp)
{
  struct fake_cq *cq = CONTAINER(visible, struct fake_cq, cq);
  for (int i = 0; i < cq->count;) {
    if (cq->ring[i].qp != qp) {
      i++;
      continue;
    }
    cq->count--;
    memmove(&cq->ring[i], &cq->ring[i + 1], (size_t)(cq->count - i) * sizeof *cq->ring);
  }
}

int ibv_destroy_qp(struct ibv_qp *visible)
{
  struct fake_qp *qp = CONTAINER(visible, struct fake_qp, qp);
  pthread_mutex_lock(&fake_lock);
  fake_wait_acknowledged(fake_context(visible->context), visible);
  struct fake_qp **at = &fake_qps;
  while (*at && *at != qp) at = &(*at)->next;
  if (!*at) fake_misuse("ibv_destroy_qp of no queue pair");
  *at = qp->next;
  forget_completions(visible->send_cq, qp);
  forget_completions(visible->recv_cq, qp);
  CONTAINER(visible->pd, struct fake_pd, pd)->users--;
  CONTAINER(visible->send_cq, struct fake_cq, cq)->users--;
  CONTAINER(visible->recv_cq, struct fake_cq, cq)->users--;
  fake_wire_close(qp);
  pthread_mutex_unlock(&fake_lock);
  free(qp->sends);
  free(qp->receives);
  free(qp);
  return 0;
}

static void check_address(struct fake_qp *qp, const struct ibv_qp_attr *attr)
{
  struct fake_port *port = fake_port(qp->qp.context, attr->ah_attr.port_num);
  static const union ibv_gid none;
  if (attr->ah_attr.port_num != qp->attr.port_num || !port)
    fake_misuse("RTR with port %d of a queue pair on port %d", attr->ah_attr.port_num, qp->attr.port_num);
  if (port->ethernet && !attr->ah_attr.is_global) fake_misuse("RTR on Ethernet without a GRH");
  if (!port->ethernet && !attr->ah_attr.is_global && attr->ah_attr.dlid == 0) fake_misuse("RTR with LID 0");
  if (attr->ah_attr.is_global) {
    int index = attr->ah_attr.grh.sgid_index;
    if (index >= port->gids || memcmp(&port->gid[index], &none, sizeof none) == 0)
      fake_misuse("RTR with source GID %d, which is empty", index);
    if (attr->ah_attr.grh.hop_limit < 1) fake_misuse("RTR with a hop limit of 0");
    if (attr->ah_attr.grh.flow_label >> 20) fake_misuse("RTR with a flow label of more than 20 bits");
  }
  if (attr->ah_attr.sl > 15) fake_misuse("RTR with service level %d", attr->ah_attr.sl);
  if (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > IBV_MTU_4096)
    fake_misuse("RTR with path MTU %d", attr->path_mtu);
}

int ibv_modify_qp(struct ibv_qp *visible, struct ibv_qp_attr *attr, int mask)
{
  enum {
    TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_MIN_RNR_TIMER,
    TO_RTS =
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
  };
  struct fake_qp *qp = CONTAINER(visible, struct fake_qp, qp);
  pthread_mutex_lock(&fake_lock);
  int error = fake_should_fail("modify_qp"), state = attr->qp_state, want = 0;
  if (!error && is_gone(visible->context)) error = EIO;
  if (!(mask & IBV_QP_STATE)) fake_misuse("ibv_modify_qp without a state");
  bool next = (state == IBV_QPS_INIT && visible->state == IBV_QPS_RESET) ||
              (state == IBV_QPS_RTR && visible->state == IBV_QPS_INIT) ||
              (state == IBV_QPS_RTS && visible->state == IBV_QPS_RTR);
  /* Who modifies one of a device that is just being removed cannot know its state. */
  if (state != IBV_QPS_ERR && !next && !is_gone(visible->context))
    fake_misuse("a queue pair cannot go from state %d to %d", visible->state, state);
  if (state == IBV_QPS_INIT) want = TO_INIT;
  if (state == IBV_QPS_RTR) want = TO_RTR;
  if (state == IBV_QPS_RTS) want = TO_RTS;
  if (state != IBV_QPS_ERR && mask != want)
    fake_misuse("state %d needs the attributes 0x%x, not 0x%x", state, want, mask);
  if (!error) {
    switch (state) {
    case IBV_QPS_INIT:
      if (!fake_port(visible->context, attr->port_num)) fake_misuse("INIT with port %d", attr->port_num);
      if (attr->pkey_index > 1) error = EINVAL;
      qp->attr.port_num = attr->port_num;
      qp->attr.pkey_index = attr->pkey_index;
      qp->attr.qp_access_flags = attr->qp_access_flags;
      break;
    case IBV_QPS_RTR:
      check_address(qp, attr);
      qp->attr.ah_attr = attr->ah_attr;
      qp->attr.path_mtu = attr->path_mtu;
      qp->attr.dest_qp_num = attr->dest_qp_num;
      qp->attr.rq_psn = attr->rq_psn;
      break;
    case IBV_QPS_RTS:
      if (attr->timeout > 31 || attr->retry_cnt > 7 || attr->rnr_retry > 7)
        fake_misuse("RTS with timeout %d, retry_cnt %d, rnr_retry %d", attr->timeout, attr->retry_cnt, attr->rnr_retry);
      qp->attr.timeout = attr->timeout;
      qp->attr.retry_cnt = attr->retry_cnt;
      qp->attr.rnr_retry = attr->rnr_retry;
      qp->attr.sq_psn = attr->sq_psn;
      break;
    default:
      fake_to_error(qp);
    }
  }
  if (!error && state != IBV_QPS_ERR) visible->state = (enum ibv_qp_state)state;
  pthread_mutex_unlock(&fake_lock);
  fake_wire_wake();
  return error;
}

int ibv_query_qp(struct ibv_qp *visible, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
  struct fake_qp *qp = CONTAINER(visible, struct fake_qp, qp);
  (void)mask;
  pthread_mutex_lock(&fake_lock);
  *attr = qp->attr;
  attr->qp_state = visible->state;
  memset(init, 0, sizeof *init);
  init->cap = qp->cap;
  pthread_mutex_unlock(&fake_lock);
  return 0;
}

/* ---- Posting ---- */

/* Copies one request; an errno. */
static int take_send(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
  int error = fake_should_fail("post_send");
  if (error) return error;
  if (is_gone(qp->qp.context)) return EIO;
  if (qp->qp.state != IBV_QPS_RTS && qp->qp.state != IBV_QPS_ERR) fake_misuse("post_send in state %d", qp->qp.state);
  if (qp->posted - qp->retired >= qp->cap.max_send_wr)
    fake_misuse("the send queue of %u is full: %llu posted, and a completion was polled for %llu", qp->cap.max_send_wr,
                (unsigned long long)qp->posted, (unsigned long long)qp->retired);
  if (wr->num_sge < 0 || wr->num_sge > (int)qp->cap.max_send_sge)
    fake_misuse("%d pieces in a send queue for %u", wr->num_sge, qp->cap.max_send_sge);
  if (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM && wr->opcode != IBV_WR_RDMA_READ)
    fake_misuse("opcode %d is not faked", wr->opcode);
  struct fake_send *send = &qp->sends[qp->posted % qp->cap.max_send_wr];
  *send = (struct fake_send){.wr_id = wr->wr_id,
                             .opcode = wr->opcode,
                             .flags = wr->send_flags,
                             .imm = wr->imm_data,
                             .remote = wr->wr.rdma.remote_addr,
                             .rkey = wr->wr.rdma.rkey,
                             .sges = wr->num_sge};
  for (int i = 0; i < wr->num_sge; i++) {
    send->sge[i] = wr->sg_list[i];
    if (wr->send_flags & IBV_SEND_INLINE) {
      if (send->bytes + wr->sg_list[i].length > qp->cap.max_inline_data)
        fake_misuse("%zu bytes inline in a send queue for %u", send->bytes + wr->sg_list[i].length,
                    qp->cap.max_inline_data);
      memcpy(send->inlined + send->bytes, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
    }
    send->bytes += wr->sg_list[i].length;
  }
  if (send->bytes > (size_t)fake_limits.msg_bytes)
    fake_misuse("a message of %zu bytes on a port for %d", send->bytes, fake_limits.msg_bytes);
  if (wr->send_flags & IBV_SEND_INLINE) fake_count("inline");
  fake_count(wr->opcode == IBV_WR_RDMA_READ ? "read" : wr->opcode == IBV_WR_RDMA_WRITE ? "write" : "write_imm");
  if (wr->opcode != IBV_WR_RDMA_READ && send->bytes && wr->wr.rdma.remote_addr % 128) fake_count("inside_a_line");
  if (qp->acked == qp->posted) qp->progress_ns = fake_now_ns();
  qp->posted++;
  if (qp->qp.state == IBV_QPS_ERR) {
    qp->sent = qp->posted;
    fake_complete_send(qp, IBV_WC_WR_FLUSH_ERR);
  }
  return 0;
}

int fake_post_send(struct ibv_qp *visible, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
  struct fake_qp *qp = CONTAINER(visible, struct fake_qp, qp);
  int error = 0;
  pthread_mutex_lock(&fake_lock);
  for (; wr && !error; wr = wr->next) {
    error = take_send(qp, wr);
    if (error) *bad = wr;
  }
  pthread_mutex_unlock(&fake_lock);
  fake_wire_wake();
  return error;
}

int fake_post_recv(struct ibv_qp *visible, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
  struct fake_qp *qp = CONTAINER(visible, struct fake_qp, qp);
  int error = 0;
  bool waited = false;
  pthread_mutex_lock(&fake_lock);
  for (; wr && !error; wr = wr->next) {
    error = fake_should_fail("post_recv");
    if (!error && is_gone(visible->context)) error = EIO;
    if (error) {
      *bad = wr;
      break;
    }
    if (visible->state == IBV_QPS_RESET) fake_misuse("post_recv in state RESET");
    if (qp->offered - qp->returned >= qp->cap.max_recv_wr)
      fake_misuse("the receive queue of %u is full", qp->cap.max_recv_wr);
    if (wr->num_sge) fake_misuse("receives with buffers are not faked");
    qp->receives[qp->offered++ % qp->cap.max_recv_wr].wr_id = wr->wr_id;
    waited |= qp->in_stalled;
    if (visible->state == IBV_QPS_ERR) {
      visible->state = IBV_QPS_RTS; /* so that it is flushed */
      fake_to_error(qp);
    }
  }
  pthread_mutex_unlock(&fake_lock);
  if (waited) fake_wire_wake();
  return error;
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
  static const char *const names[] = {[IBV_WC_SUCCESS] = "success",
                                      [IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
                                      [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
                                      [IBV_WC_REM_ACCESS_ERR] = "remote access error"};
  const char *name = (size_t)status < sizeof names / sizeof names[0] ? names[status] : NULL;
  return name ? name : "unknown";
}

/* ---- For tests ---- */

int fake_verbs_qps(uint32_t *numbers, int most)
{
  int count = 0;
  pthread_mutex_lock(&fake_lock);
  for (struct fake_qp *qp = fake_qps; qp && count < most; qp = qp->next) numbers[count++] = qp->qp.qp_num;
  pthread_mutex_unlock(&fake_lock);
  return count;
}

long fake_verbs_qp(uint32_t number, const char *what)
{
  long value = -1;
  pthread_mutex_lock(&fake_lock);
  struct fake_qp *qp = fake_qps;
  while (qp && qp->qp.qp_num != number) qp = qp->next;
  const struct ibv_qp_attr *attr = qp ? &qp->attr : NULL;
  if (attr && !strcmp(what, "flow_label")) value = attr->ah_attr.grh.flow_label;
  if (attr && !strcmp(what, "traffic_class")) value = attr->ah_attr.grh.traffic_class;
  if (attr && !strcmp(what, "sgid_index")) value = attr->ah_attr.grh.sgid_index;
  if (attr && !strcmp(what, "sl")) value = attr->ah_attr.sl;
  if (attr && !strcmp(what, "dlid")) value = attr->ah_attr.dlid;
  if (attr && !strcmp(what, "is_global")) value = attr->ah_attr.is_global;
  if (attr && !strcmp(what, "timeout")) value = attr->timeout;
  if (attr && !strcmp(what, "retry_cnt")) value = attr->retry_cnt;
  if (attr && !strcmp(what, "pkey_index")) value = attr->pkey_index;
  if (attr && !strcmp(what, "port")) value = attr->port_num;
  if (attr && !strcmp(what, "device")) value = fake_context(qp->qp.context)->device->index;
  if (attr && !strcmp(what, "posted")) value = (long)qp->posted;
  if (attr && !strcmp(what, "acked")) value = (long)qp->acked;
  pthread_mutex_unlock(&fake_lock);
  return value;
}
