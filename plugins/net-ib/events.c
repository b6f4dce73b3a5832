/* A thread a NIC that reads asynchronous events. It does nothing with them itself, but leaves a mark at the port, the
 * NIC or the comm that they are about; whoever drives the comm finds it in its next call. */
#include "net_ib.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/host.h"

/* Events of ports concern each of our ports with that number of that NIC. */
static void port_changed(struct tt_ib_nic *nic, int number, bool up)
{
  for (int i = 0; i < TT_IB_PORTS; i++) {
    struct tt_ib_port *port = tt_ib_port(i);
    if (!port || port->nic != nic || port->number != number) continue;
    uint64_t since = atomic_load(&port->down_since_ns);
    if (up && since) atomic_store(&port->up_since_ns, tt_timer_ns());
    if (up || !since) atomic_store(&port->down_since_ns, up ? 0 : tt_timer_ns());
    if (up && since)
      TT_INFO(TT_NET, "NET/IB : %s port %d is up again after %llu ms", nic->name, number,
              (unsigned long long)((tt_timer_ns() - since) / 1000000));
    if (!up && !since)
      TT_INFO(TT_NET,
              "NET/IB : %s port %d is down; connections wait for it as long as NCCL_IB_TIMEOUT and "
              "NCCL_IB_RETRY_CNT say",
              nic->name, number);
  }
}

static void mark(struct tt_ib_link *link, int type)
{
  if (link && tt_param_int(TT_PARAM_NCCL_IB_RETURN_ASYNC_EVENTS)) atomic_store(&link->event, type + 1);
}

static void take_event(struct tt_ib_nic *nic, const struct ibv_async_event *event)
{
  const char *words = tt_ib_verbs(NULL)->event_type_str(event->event_type);
  switch (event->event_type) {
  case IBV_EVENT_PORT_ERR:
  case IBV_EVENT_PORT_ACTIVE:
    port_changed(nic, event->element.port_num, event->event_type == IBV_EVENT_PORT_ACTIVE);
    break;
  case IBV_EVENT_DEVICE_FATAL:
    if (tt_param_int(TT_PARAM_NCCL_IB_RETURN_ASYNC_EVENTS)) atomic_store(&nic->fatal, event->event_type + 1);
    TT_INFO(TT_NET, "NET/IB : %s reports a fatal error: %s", nic->name, words);
    break;
  /* The object stays until its event is acknowledged, and the comm is what it was made for. */
  case IBV_EVENT_CQ_ERR:
    TT_INFO(TT_NET, "NET/IB : %s reports of a completion queue: %s", nic->name, words);
    mark(event->element.cq->cq_context, event->event_type);
    break;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
    TT_INFO(TT_NET, "NET/IB : %s reports of queue pair %u: %s", nic->name, event->element.qp->qp_num, words);
    mark(event->element.qp->qp_context, event->event_type);
    break;
  case IBV_EVENT_COMM_EST: /* data came before the connection was known to be there: harmless */
    break;
  default:
    TT_INFO(TT_NET, "NET/IB : %s reports: %s (event %d)", nic->name, words, (int)event->event_type);
  }
}

static void *run(void *arg)
{
  struct tt_ib_nic *nic = arg;
  const struct tt_ib_verbs *verbs = tt_ib_verbs(NULL);
  for (;;) {
    struct pollfd fds[2] = {{.fd = nic->context->async_fd, .events = POLLIN}, {.fd = nic->stop_fd, .events = POLLIN}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) break;
    if (fds[1].revents) break;
    if (!fds[0].revents) continue;
    struct ibv_async_event event;
    if (verbs->get_async_event(nic->context, &event) != 0) {
      /* A NIC that was removed reports only that its descriptor is of no use any more. */
      if (errno == EINTR || errno == EAGAIN) continue;
      atomic_store(&nic->fatal, IBV_EVENT_DEVICE_FATAL + 1);
      break;
    }
    take_event(nic, &event);
    verbs->ack_async_event(&event);
  }
  return NULL;
}

ncclResult_t tt_ib_events_start(struct tt_ib_nic *nic)
{
  char hint[100];
  nic->stop_fd = eventfd(0, EFD_CLOEXEC);
  if (nic->stop_fd < 0)
    return TT_FAIL(ncclSystemError, "net ib: no eventfd for the events of %s: %s%s", nic->name, strerror(errno),
                   tt_host_file_hint(errno, hint, sizeof hint));
  /* An event goes with its object, also between the poll that saw it and the read. */
  fcntl(nic->context->async_fd, F_SETFL, fcntl(nic->context->async_fd, F_GETFL) | O_NONBLOCK);
  ncclResult_t result = tt_thread_start(&nic->thread, "tutti-ib-events", run, nic);
  if (result != ncclSuccess) tt_socket_close(&nic->stop_fd);
  return result;
}

void tt_ib_events_stop(struct tt_ib_nic *nic)
{
  if (nic->stop_fd < 0) return;
  eventfd_write(nic->stop_fd, 1);
  pthread_join(nic->thread, NULL);
  tt_socket_close(&nic->stop_fd);
}
