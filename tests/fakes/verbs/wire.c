/* The network: each queue pair has a Unix socket whose name is its number, so that the kernel keeps the register of
 * all processes and forgets who dies. Requests go over a connection that the sender makes, answers come back over it.
 * One thread a process sends, executes what arrives, and knows when patience is over.
 *
 * A port without a link sends nothing and reads nothing; what lies in the socket then stands for what is sent again. */
#include "fake.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>
#include <signal.h>

#define FRAGMENT ((size_t)64 << 10)
#define WINDOW 32 /* messages on their way */

enum kind { REQUEST, ACK, NAK, RNR };

struct packet {
  uint32_t kind, from, to;
  uint32_t opcode, imm;
  uint32_t rkey;
  uint64_t remote, bytes, offset; /* of the message; of this piece in it */
  uint32_t piece;                 /* bytes that follow */
  uint32_t status;                /* of NAK */
  uint32_t is_global, dlid;
  union ibv_gid dgid;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int wake_fd = -1;
static _Atomic uint32_t asleep;
static char piece_in[sizeof(struct packet) + FRAGMENT], piece_out[FRAGMENT];

static void close_fd(int *fd)
{
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

static socklen_t name_of(uint32_t number, struct sockaddr_un *name)
{
  const char *scope = getenv("FAKE_VERBS_SCOPE");
  memset(name, 0, sizeof *name);
  name->sun_family = AF_UNIX;
  int length =
      snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "fake-verbs/%s/%06x", scope ? scope : "", number);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* ---- Requests ---- */

static bool passes(struct fake_qp *qp)
{
  struct fake_port *port = fake_port(qp->qp.context, qp->attr.port_num);
  return port && port->up && !fake_context(qp->qp.context)->device->removed;
}

static bool call_peer(struct fake_qp *qp)
{
  struct sockaddr_un name;
  socklen_t bytes = name_of(qp->attr.dest_qp_num, &name);
  qp->out_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (qp->out_fd >= 0 && connect(qp->out_fd, (struct sockaddr *)&name, bytes) == 0) return true;
  if (errno != EAGAIN) qp->out_lost = true;
  close_fd(&qp->out_fd);
  return false;
}

/* The part of the message at `offset`, put together; false if the memory is not ours to read. */
static bool gather(struct fake_qp *qp, const struct fake_send *send, size_t offset, size_t bytes, char *to)
{
  if (send->flags & IBV_SEND_INLINE) {
    memcpy(to, send->inlined + offset, bytes);
    return true;
  }
  size_t start = 0;
  for (int i = 0; i < send->sges && bytes; i++) {
    size_t length = send->sge[i].length;
    /* All of each piece must be registered, not only what is sent now. */
    char *from = fake_memory(qp->qp.pd, send->sge[i].lkey, send->sge[i].addr, length, 0);
    if (!from && length) return false;
    if (offset < start + length) {
      size_t skip = offset - start, part = length - skip < bytes ? length - skip : bytes;
      memcpy(to, from + skip, part);
      to += part;
      offset += part;
      bytes -= part;
    }
    start += length;
  }
  return true;
}

/* One packet; false if nothing can be sent now. */
static bool send_packet(struct fake_qp *qp)
{
  if (qp->qp.state != IBV_QPS_RTS || qp->sent == qp->posted || qp->out_lost || qp->sent - qp->acked >= WINDOW)
    return false;
  if (!passes(qp) || (qp->out_fd < 0 && !call_peer(qp))) return false;
  const struct fake_send *send = &qp->sends[qp->sent % qp->cap.max_send_wr];
  struct packet packet = {.kind = REQUEST,
                          .from = qp->qp.qp_num,
                          .to = qp->attr.dest_qp_num,
                          .opcode = send->opcode,
                          .imm = send->imm,
                          .rkey = send->rkey,
                          .remote = send->remote,
                          .bytes = send->bytes,
                          .offset = qp->out_offset,
                          .is_global = qp->attr.ah_attr.is_global,
                          .dlid = qp->attr.ah_attr.dlid,
                          .dgid = qp->attr.ah_attr.grh.dgid};
  if (send->opcode != IBV_WR_RDMA_READ) {
    size_t left = send->bytes - qp->out_offset;
    packet.piece = (uint32_t)(left < FRAGMENT ? left : FRAGMENT);
    if (!gather(qp, send, qp->out_offset, packet.piece, piece_out)) {
      if (qp->acked == qp->sent) fake_fail_send(qp, IBV_WC_LOC_PROT_ERR);
      return false;
    }
  } else if (send->bytes > FRAGMENT) {
    fake_misuse("reads of more than %zu bytes are not faked", FRAGMENT);
  }
  struct iovec parts[2] = {{&packet, sizeof packet}, {piece_out, packet.piece}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  if (sendmsg(qp->out_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    qp->out_blocked = errno == EAGAIN;
    if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS) qp->out_lost = true;
    return false;
  }
  qp->out_blocked = false;
  qp->out_offset += packet.piece;
  if (send->opcode == IBV_WR_RDMA_READ || qp->out_offset == send->bytes) {
    qp->sent++;
    qp->out_offset = 0;
  }
  return true;
}

/* What is read comes to where the request says. */
static void take_read(struct fake_qp *qp, const struct fake_send *send, const char *data)
{
  for (int i = 0; i < send->sges; i++) {
    char *to =
        fake_memory(qp->qp.pd, send->sge[i].lkey, send->sge[i].addr, send->sge[i].length, IBV_ACCESS_LOCAL_WRITE);
    if (!to) {
      fake_fail_send(qp, IBV_WC_LOC_PROT_ERR);
      return;
    }
    fake_store(to, data, send->sge[i].length);
    data += send->sge[i].length;
  }
  fake_complete_send(qp, IBV_WC_SUCCESS);
}

static bool take_answer(struct fake_qp *qp)
{
  if (qp->out_fd < 0 || qp->out_lost || !passes(qp)) return false;
  ssize_t got = recv(qp->out_fd, piece_in, sizeof piece_in, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got < (ssize_t)sizeof(struct packet)) {
    qp->out_lost = true;
    return false;
  }
  struct packet packet;
  memcpy(&packet, piece_in, sizeof packet);
  if (qp->qp.state != IBV_QPS_RTS || qp->acked == qp->sent) return true;
  qp->rnr = packet.kind == RNR;
  enum ibv_wc_status wanted = packet.kind == RNR ? IBV_WC_SUCCESS : fake_send_status();
  if (packet.kind == RNR && qp->attr.rnr_retry != 7)
    fake_fail_send(qp, IBV_WC_RNR_RETRY_EXC_ERR);
  else if (packet.kind == NAK)
    fake_fail_send(qp, (enum ibv_wc_status)packet.status);
  else if (wanted != IBV_WC_SUCCESS)
    fake_fail_send(qp, wanted);
  else if (packet.kind == ACK && qp->sends[qp->acked % qp->cap.max_send_wr].opcode == IBV_WR_RDMA_READ)
    take_read(qp, &qp->sends[qp->acked % qp->cap.max_send_wr], piece_in + sizeof packet);
  else if (packet.kind == ACK)
    fake_complete_send(qp, IBV_WC_SUCCESS);
  return true;
}

/* ---- Answers ---- */

static void answer(struct fake_qp *qp, struct packet packet, const char *data, size_t bytes)
{
  struct iovec parts[2] = {{&packet, sizeof packet}, {(void *)(uintptr_t)data, bytes}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = data ? 2 : 1};
  if (sendmsg(qp->in_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EAGAIN) fake_misuse("answers pile up");
}

static void refuse(struct fake_qp *qp, enum ibv_wc_status status)
{
  answer(qp, (struct packet){.kind = NAK, .status = status}, NULL, 0);
  fake_count("nak");
  fake_raise(fake_context(qp->qp.context)->device, IBV_EVENT_QP_ACCESS_ERR, &qp->qp);
  fake_to_error(qp);
}

/* Did it come to the right place? What did not is dropped, as by a switch. */
static bool is_for(struct fake_qp *qp, const struct packet *packet)
{
  struct fake_port *port = fake_port(qp->qp.context, qp->attr.port_num);
  if (packet->from != qp->attr.dest_qp_num || packet->to != qp->qp.qp_num) return false;
  if (!packet->is_global) return packet->dlid == port->lid;
  for (int i = 0; i < port->gids; i++)
    if (memcmp(&port->gid[i], &packet->dgid, sizeof packet->dgid) == 0) return true;
  return false;
}

/* False if it has to wait for a receive. */
static bool execute(struct fake_qp *qp, const struct packet *packet, const char *data)
{
  bool reads = packet->opcode == IBV_WR_RDMA_READ;
  unsigned right = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  if (qp->qp.state != IBV_QPS_RTR && qp->qp.state != IBV_QPS_RTS) return true;
  if (!is_for(qp, packet)) {
    fake_count("dropped");
    return true;
  }
  char *memory = NULL;
  if (packet->bytes) {
    memory = fake_memory(qp->qp.pd, packet->rkey, packet->remote, packet->bytes, right);
    if (!memory || !(qp->attr.qp_access_flags & right)) {
      refuse(qp, IBV_WC_REM_ACCESS_ERR);
      return true;
    }
  }
  bool last = reads || packet->offset + packet->piece == packet->bytes;
  bool takes_receive = last && packet->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (takes_receive && qp->consumed == qp->offered) {
    if (!qp->in_stalled) {
      fake_count("rnr");
      answer(qp, (struct packet){.kind = RNR}, NULL, 0);
    }
    return false;
  }
  if (reads) {
    char *copy = piece_out;
    fake_load(copy, memory, packet->bytes);
    answer(qp, (struct packet){.kind = ACK}, copy, packet->bytes);
    return true;
  }
  if (packet->piece) fake_store(memory + packet->offset, data, packet->piece);
  if (takes_receive) fake_complete_receive(qp, packet->imm, (uint32_t)packet->bytes);
  if (last) {
    fake_count("stored");
    answer(qp, (struct packet){.kind = ACK}, NULL, 0);
  }
  return true;
}

static bool take_request(struct fake_qp *qp)
{
  if (qp->in_fd < 0) {
    qp->in_fd = accept4(qp->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (qp->in_fd < 0) return false;
  }
  bool ready = qp->qp.state == IBV_QPS_RTR || qp->qp.state == IBV_QPS_RTS || qp->qp.state == IBV_QPS_ERR;
  if (!ready || !passes(qp) || qp->in_lost) return false;
  struct packet packet;
  if (qp->in_stalled) {
    memcpy(&packet, qp->held, sizeof packet);
    if (!execute(qp, &packet, qp->held + sizeof packet)) return false;
    qp->in_stalled = false;
    return true;
  }
  ssize_t got = recv(qp->in_fd, piece_in, sizeof piece_in, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got < (ssize_t)sizeof packet) {
    qp->in_lost = true;
    return false;
  }
  memcpy(&packet, piece_in, sizeof packet);
  if (execute(qp, &packet, piece_in + sizeof packet)) return true;
  if (!qp->held) qp->held = malloc(sizeof piece_in);
  if (!qp->held) fake_misuse("no memory");
  memcpy(qp->held, piece_in, (size_t)got);
  qp->in_stalled = true;
  return false;
}

/* ---- The thread ---- */

/* Nanoseconds until the queue pair gives up on its oldest request, UINT64_MAX if it does not wait. */
static uint64_t patience(struct fake_qp *qp, uint64_t now)
{
  if (qp->qp.state != IBV_QPS_RTS || qp->acked == qp->posted || qp->attr.timeout == 0 || qp->rnr) return UINT64_MAX;
  uint64_t limit = (4096ull << qp->attr.timeout) * (qp->attr.retry_cnt + 1u), spent = now - qp->progress_ns;
  return spent >= limit ? 0 : limit - spent;
}

/* All that can be done now; returns the milliseconds that the thread may sleep. */
static int work(void)
{
  int sleep_ms = fake_script_run();
  bool busy = true;
  for (int round = 0; busy && round < 64; round++) {
    busy = false;
    for (struct fake_qp *qp = fake_qps; qp; qp = qp->next) {
      busy |= take_request(qp);
      busy |= take_answer(qp);
      busy |= send_packet(qp);
    }
  }
  /* Nobody is given up while there is something to do: then it is this thread that is late, and no answer. */
  if (busy) return 0;
  uint64_t now = fake_now_ns();
  for (struct fake_qp *qp = fake_qps; qp; qp = qp->next) {
    uint64_t left = patience(qp, now);
    if (left == 0) {
      fake_count("retry_exceeded");
      fake_fail_send(qp, IBV_WC_RETRY_EXC_ERR);
    } else if (left != UINT64_MAX && (sleep_ms < 0 || left / 1000000 < (uint64_t)sleep_ms)) {
      sleep_ms = (int)(left / 1000000) + 1;
    }
  }
  return sleep_ms;
}

#define POLLED 4096
static int list_fds(struct pollfd *fds)
{
  int count = 0;
  fds[count++] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
  for (struct fake_qp *qp = fake_qps; qp && count + 2 < POLLED; qp = qp->next) {
    if (!passes(qp)) continue;
    if (qp->in_fd < 0)
      fds[count++] = (struct pollfd){.fd = qp->listen_fd, .events = POLLIN};
    else if (!qp->in_stalled && !qp->in_lost && qp->qp.state != IBV_QPS_INIT)
      fds[count++] = (struct pollfd){.fd = qp->in_fd, .events = POLLIN};
    if (qp->out_fd >= 0 && !qp->out_lost)
      fds[count++] = (struct pollfd){.fd = qp->out_fd, .events = (short)(POLLIN | (qp->out_blocked ? POLLOUT : 0))};
  }
  return count;
}

static void *run(void *unused)
{
  static struct pollfd fds[POLLED];
  (void)unused;
  prctl(PR_SET_NAME, "fake-verbs");
  for (;;) {
    eventfd_t ignored;
    pthread_mutex_lock(&fake_lock);
    int sleep_ms = work();
    int count = list_fds(fds);
    __atomic_store_n(&asleep, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&fake_lock);
    poll(fds, (nfds_t)count, sleep_ms);
    __atomic_store_n(&asleep, 0, __ATOMIC_SEQ_CST);
    eventfd_read(wake_fd, &ignored);
  }
  return NULL;
}

static void start(void)
{
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0 || pthread_create(&thread, NULL, run, NULL) != 0) fake_misuse("no thread");
  pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void fake_wire_wake(void)
{
  pthread_once(&once, start);
  if (__atomic_exchange_n(&asleep, 0, __ATOMIC_SEQ_CST)) eventfd_write(wake_fd, 1);
}

bool fake_wire_open(struct fake_qp *qp)
{
  struct sockaddr_un name;
  pthread_once(&once, start);
  qp->in_fd = qp->out_fd = -1;
  qp->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (qp->listen_fd < 0) return false;
  for (int i = 0; i < 100; i++) {
    uint32_t number = 0;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) break;
    number &= 0xffffff;
    if (number < 2) continue;
    if (bind(qp->listen_fd, (struct sockaddr *)&name, name_of(number, &name)) != 0) continue;
    if (listen(qp->listen_fd, 1) != 0) break;
    qp->qp.qp_num = number;
    return true;
  }
  close_fd(&qp->listen_fd);
  return false;
}

void fake_wire_close(struct fake_qp *qp)
{
  close_fd(&qp->listen_fd);
  close_fd(&qp->in_fd);
  close_fd(&qp->out_fd);
  free(qp->held);
}
