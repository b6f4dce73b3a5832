/* The process-wide state: NICs, ports, what is merged of them, the logger, and the count of users. One mutex guards it,
 * since several communicators may start and end at once. Ports stay where they are until the last user goes, so
 * pointers to them may be handed out. */
#include "net_ib.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gid.h"
#include "hca.h"
#include "base/param_internal.h"
#include "plugins/common/attempts.h"

#define NICS TT_IB_PORTS

static struct {
  pthread_mutex_t lock;
  int users;
  _Atomic int comms; /* not under the lock: comms also end while it is held */
  int nics, ports, devices;
  struct tt_ib_nic nic[NICS];
  struct tt_ib_port port[TT_IB_PORTS];
  struct tt_ib_device device[TT_IB_DEVICES];
  union tt_address address;
  char interface[TT_IFNAME_BYTES];
  _Atomic(ncclDebugLogger_t) logger;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Lines of this library and of its copy of base go where the loader wants them; it does the filtering. Errors are kept
 * here too, for the peer. */
static void to_logger(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                      const char *text)
{
  ncclDebugLogger_t logger = atomic_load(&state.logger);
  if (level == TT_LOG_WARN) tt_log_remember(text);
  if (logger) logger((ncclDebugLogLevel)level, subsystems, level == TT_LOG_TRACE ? func : file, line, "%s", text);
}

/* ---- Finding ---- */

static void close_nic(struct tt_ib_nic *nic)
{
  if (nic->context) tt_ib_verbs(NULL)->close_device(nic->context);
  nic->context = NULL;
}

static int by_pci_address(const void *a, const void *b)
{
  const struct tt_ib_port *one = a, *other = b;
  const char *paths[2] = {one->full_path, other->full_path};
  /* Those without an address come last; equal ones keep the order of the system. */
  if (!paths[0][0] != !paths[1][0]) return paths[0][0] ? -1 : 1;
  const char *names[2];
  for (int i = 0; i < 2; i++) {
    const char *slash = strrchr(paths[i], '/');
    names[i] = slash ? slash : paths[i];
  }
  int order = strcmp(names[0], names[1]);
  return order ? order : one->nic != other->nic ? (one->nic < other->nic ? -1 : 1) : one->number - other->number;
}

static void count_card_ports(void)
{
  for (int i = 0; i < state.ports; i++)
    for (int k = 0; k < i && state.port[i].pci_path[0]; k++)
      state.port[i].card_port += strcmp(state.port[i].pci_path, state.port[k].pci_path) == 0;
}

static ncclResult_t prepare_port(struct tt_ib_port *port)
{
  port->pd = tt_ib_verbs(NULL)->alloc_pd(port->nic->context);
  if (!port->pd) return TT_FAIL(ncclSystemError, "net ib: no protection domain of %s: %s", port->name, strerror(errno));
  pthread_mutex_init(&port->lock, NULL);
  port->takes_peer_memory = tt_ib_peer_memory();
  port->takes_dmabuf = tt_ib_dmabuf_works(port->pd);
  return ncclSuccess;
}

static ncclResult_t find_ports(const struct tt_ib_hca_filter *filter, const struct tt_ib_gid_wish *wish)
{
  const struct tt_ib_verbs *verbs = tt_ib_verbs(NULL);
  int count = 0;
  struct ibv_device **list = verbs->get_device_list(&count);
  if (!list) {
    TT_INFO(TT_INIT | TT_NET, "NET/IB : no devices: libibverbs says %s", strerror(errno));
    return ncclSuccess;
  }
  for (int i = 0; i < count && state.nics < NICS; i++) {
    struct tt_ib_nic *nic = &state.nic[state.nics];
    int before = state.ports;
    memset(nic, 0, sizeof *nic);
    nic->stop_fd = -1;
    tt_ib_ports_find(nic, list[i], filter, wish, state.port, &state.ports);
    if (state.ports > before)
      state.nics++;
    else
      close_nic(nic);
  }
  verbs->free_device_list(list);
  if (count == 0)
    TT_INFO(TT_INIT | TT_NET, "NET/IB : no devices: libibverbs finds none");
  else if (state.ports == 0)
    TT_INFO(TT_INIT | TT_NET, "NET/IB : no devices: no port of the %d that are there is up%s", count,
            tt_param_string(TT_PARAM_NCCL_IB_HCA) ? " and passes NCCL_IB_HCA" : "");
  return ncclSuccess;
}

static ncclResult_t find_address(void)
{
  struct tt_interface *list = NULL;
  int count = 0;
  TT_TRY(tt_socket_interfaces(&list, &count));
  state.address = list[0].address;
  memcpy(state.interface, list[0].name, sizeof state.interface);
  free(list);
  return ncclSuccess;
}

static void describe_device(struct tt_ib_device *device, const int *ports, int count)
{
  size_t at = 0;
  memset(device, 0, sizeof *device);
  device->index = (int)(device - state.device);
  device->count = count;
  device->rail = state.port[ports[0]].rail;
  device->plane = count == 1 ? state.port[ports[0]].plane : NCCL_NET_ID_UNDEF;
  for (int i = 0; i < count; i++) {
    const struct tt_ib_port *port = &state.port[ports[i]];
    device->port[i] = ports[i];
    device->speed += port->speed;
    if (port->rail != device->rail) device->rail = NCCL_NET_ID_UNDEF;
    at += (size_t)snprintf(device->name + at, sizeof device->name - at, "%s%s", i ? "+" : "", port->name);
  }
}

static void print_ports(void)
{
  char text[1024] = "", address[TT_ADDRESS_TEXT], gid[TT_IB_GID_TEXT];
  size_t at = 0;
  for (int i = 0; i < state.ports && at < sizeof text; i++) {
    const struct tt_ib_port *port = &state.port[i];
    at += (size_t)snprintf(text + at, sizeof text - at, " [%d]%s:%d/%s", i, port->name, port->number,
                           tt_ib_link_name(port->link_layer));
    TT_INFO(TT_NET, "NET/IB : [%d] %s port %d: %s, %d Mb/s, GID %d %s, %s%s%s", i, port->name, port->number,
            tt_ib_link_name(port->link_layer), port->speed, port->gid_index, tt_ib_gid_print(&port->gid, gid),
            port->pci_path[0] ? port->pci_path : "no PCI address", port->takes_peer_memory ? ", peer memory" : "",
            port->takes_dmabuf ? ", dma-buf" : "");
  }
  TT_INFO(TT_INIT | TT_NET, "NET/IB : Using%s; connections are made over %s:%s", text, state.interface,
          tt_address_print(&state.address, address));
}

/* ---- Opening and closing ---- */

static void forget(void)
{
  for (int i = 0; i < state.nics; i++) tt_ib_events_stop(&state.nic[i]);
  for (int i = 0; i < state.ports; i++) {
    struct tt_ib_port *port = &state.port[i];
    if (!port->pd) continue;
    if (port->mr_count) {
      TT_WARN("net ib: %d registrations of %s were never given back", port->mr_count, port->name);
      for (int k = 0; k < port->mr_count; k++) tt_ib_verbs(NULL)->dereg_mr(port->mrs[k].mr);
    }
    free(port->mrs);
    tt_ib_verbs(NULL)->dealloc_pd(port->pd);
    pthread_mutex_destroy(&port->lock);
  }
  for (int i = 0; i < state.nics; i++) close_nic(&state.nic[i]);
  state.nics = state.ports = state.devices = 0;
  tt_counted_forget();
}

/* NCCL does not check our parameters; the rows of the table are together. */
static ncclResult_t check_parameters(void)
{
  for (int id = TT_PARAM_NCCL_IB_DISABLE; id <= TT_PARAM_NCCL_IB_RETURN_ASYNC_EVENTS; id++) {
    bool string = tt_param_describe((enum tt_param_id)id)->type == TT_PARAM_STRING;
    if (!string && tt_param_malformed((enum tt_param_id)id)) return tt_param_refuse((enum tt_param_id)id, NULL);
  }
  return ncclSuccess;
}

/* Leaves nothing behind if it fails. No devices are no failure. */
static ncclResult_t discover(void)
{
  const char *why;
  char trouble[160];
  struct tt_ib_hca_filter filter;
  struct tt_ib_gid_wish wish;
  ncclResult_t result = ncclSuccess;
  TT_TRY(check_parameters());
  if (tt_param_int(TT_PARAM_NCCL_IB_DISABLE)) {
    TT_INFO(TT_INIT | TT_NET, "NET/IB : no devices: NCCL_IB_DISABLE=1");
    return ncclSuccess;
  }
  if (!tt_ib_hca_parse(tt_param_string(TT_PARAM_NCCL_IB_HCA), &filter, trouble, sizeof trouble))
    return TT_FAIL(ncclInvalidUsage,
                   "NCCL_IB_HCA=%s is not allowed: %s; it must be [^][=]name[:port[:rail[:plane]]],...",
                   tt_param_string(TT_PARAM_NCCL_IB_HCA), trouble);
  char wrong[256];
  if (!tt_ib_gid_wish(tt_param_string(TT_PARAM_NCCL_IB_ADDR_FAMILY), tt_param_string(TT_PARAM_NCCL_IB_ADDR_RANGE),
                      (int)tt_param_int(TT_PARAM_NCCL_IB_ROCE_VERSION_NUM), &wish, wrong, sizeof wrong))
    return TT_FAIL(ncclInvalidUsage, "%s", wrong);
  if (!tt_ib_verbs(&why)) {
    TT_INFO(TT_INIT | TT_NET, "NET/IB : no devices: %s", why);
    return ncclSuccess;
  }
  TT_TRY_GOTO(find_ports(&filter, &wish), result, out);
  if (state.ports == 0) return ncclSuccess;
  TT_TRY_GOTO(find_address(), result, out);
  if (tt_param_int(TT_PARAM_NCCL_IB_DEVICE_PCI_ORDER))
    qsort(state.port, (size_t)state.ports, sizeof state.port[0], by_pci_address);
  count_card_ports();
  for (int i = 0; i < state.ports; i++) TT_TRY_GOTO(prepare_port(&state.port[i]), result, out);
  for (int i = 0; i < state.ports; i++) describe_device(&state.device[state.devices++], &i, 1);
  for (int i = 0; i < state.nics; i++) TT_TRY_GOTO(tt_ib_events_start(&state.nic[i]), result, out);
  print_ports();
out:
  if (result != ncclSuccess) forget();
  return result;
}

ncclResult_t tt_ib_open(ncclDebugLogger_t logger)
{
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&state.lock);
  atomic_store(&state.logger, logger);
  tt_log_redirect(to_logger);
  /* After versions that never say that they are done, it is all there still. */
  if (state.users == 0 && state.devices == 0) TT_TRY_GOTO(discover(), result, out);
  state.users++;
out:
  pthread_mutex_unlock(&state.lock);
  return result;
}

ncclResult_t tt_ib_close(void)
{
  bool last = false;
  pthread_mutex_lock(&state.lock);
  bool extra = state.users == 0;
  if (!extra) last = --state.users == 0;
  if (last) {
    tt_ib_connect_forget(TT_ATTEMPTS_OF_ALL);
    if (state.comms == 0) forget();
    atomic_store(&state.logger, NULL);
  }
  pthread_mutex_unlock(&state.lock);
  return extra ? TT_FAIL(ncclInternalError, "net ib: finalize was called more often than init") : ncclSuccess;
}

void tt_ib_comm_counts(int change)
{
  atomic_fetch_add(&state.comms, change);
}

/* ---- Looking up ---- */

int tt_ib_device_count(void)
{
  pthread_mutex_lock(&state.lock);
  int count = state.devices;
  pthread_mutex_unlock(&state.lock);
  return count;
}

ncclResult_t tt_ib_device(int index, const struct tt_ib_device **device)
{
  int count = tt_ib_device_count();
  if (index < 0 || index >= count)
    return TT_FAIL(ncclInternalError, "net ib: device %d is outside 0..%d", index, count - 1);
  *device = &state.device[index];
  return ncclSuccess;
}

struct tt_ib_port *tt_ib_port(int index)
{
  return index < state.ports ? &state.port[index] : NULL;
}

const union tt_address *tt_ib_address(void)
{
  return &state.address;
}

static ncclResult_t merge(const int *ports, int count, int *index)
{
  if (!tt_param_int(TT_PARAM_NCCL_IB_MERGE_NICS)) {
    TT_INFO(TT_NET, "NET/IB : devices are not merged, since NCCL_IB_MERGE_NICS=0");
    return ncclInvalidUsage;
  }
  if (count < 1 || count > TT_IB_RAILS)
    return TT_FAIL(ncclInvalidUsage, "net ib: %d devices cannot work as one; 1 to %d can", count, TT_IB_RAILS);
  if (state.devices == TT_IB_DEVICES)
    return TT_FAIL(ncclInvalidUsage, "net ib: there are %d devices already; no more are made", TT_IB_DEVICES);
  for (int i = 0; i < count; i++) {
    if (ports[i] < 0 || ports[i] >= state.ports)
      return TT_FAIL(ncclInvalidUsage, "net ib: device %d of a merged one is outside 0..%d", ports[i], state.ports - 1);
    for (int k = 0; k < i; k++)
      if (ports[k] == ports[i]) return TT_FAIL(ncclInvalidUsage, "net ib: device %d is merged with itself", ports[i]);
    const struct tt_ib_port *port = &state.port[ports[i]], *first = &state.port[ports[0]];
    if (port->link_layer != first->link_layer)
      return TT_FAIL(
          ncclInvalidUsage,
          "net ib: %s port %d (%s) and %s port %d (%s) cannot work as one; NCCL_IB_HCA chooses devices of one "
          "kind",
          first->name, first->number, tt_ib_link_name(first->link_layer), port->name, port->number,
          tt_ib_link_name(port->link_layer));
  }
  *index = state.devices++;
  describe_device(&state.device[*index], ports, count);
  TT_INFO(TT_NET, "NET/IB : device %d is %s, %d Mb/s", *index, state.device[*index].name, state.device[*index].speed);
  return ncclSuccess;
}

ncclResult_t tt_ib_merge(const int *ports, int count, int *index)
{
  pthread_mutex_lock(&state.lock);
  ncclResult_t result = merge(ports, count, index);
  pthread_mutex_unlock(&state.lock);
  return result;
}

/* Versions before 11 never say that they are done; what they left ends with the library, unless comms still use it. */
__attribute__((destructor)) static void unload(void)
{
  tt_ib_connect_forget(TT_ATTEMPTS_OF_ALL);
  atomic_store(&state.logger, NULL);
  if (state.comms == 0)
    forget();
  else
    for (int i = 0; i < state.nics; i++) tt_ib_events_stop(&state.nic[i]);
  tt_param_unload();
}
