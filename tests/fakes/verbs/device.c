/* Devices, ports, GIDs and asynchronous events.
 *
 * FAKE_VERBS_DEVICES is a list of NAME[/eth|/ib|/none][*PORTS][@SPEEDxWIDTH], codes as of the specification; default
 * "fake0". Ports with "none" have another link layer than these two.
 * FAKE_VERBS_GIDS is the list of GIDs of each port, ADDRESS/VERSION, where %d in an address is replaced by the number
 * of the port in this machine, from 1 on; default: as a kernel has them for an interface with an IPv4 address, and one
 * on InfiniBand.
 * FAKE_VERBS_LIMITS is a list of NAME=NUMBER; names as in struct fake_limits.
 * FAKE_VERBS_NO_DMABUF: dma-bufs are not supported.
 * FAKE_VERBS_NO_GID_EX: the kernel does not tell versions of GIDs by this library, as old ones.
 * FAKE_VERBS_GRH: InfiniBand ports want a global header in each packet. */
#include "fake.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct fake_limits fake_limits = {.qp = 100000,
                                  .cqe = 1 << 20,
                                  .wr = 16384,
                                  .sge = FAKE_SGE,
                                  .inline_bytes = 256,
                                  .msg_bytes = 1 << 30,
                                  .mr = 100000};
static struct fake_device devices[FAKE_DEVICES];
static int device_count;
#define CONTEXTS 64
static struct fake_context *contexts[CONTEXTS]; /* all that are open */
static pthread_cond_t acknowledged = PTHREAD_COND_INITIALIZER;

static void read_limits(void)
{
  const char *text = getenv("FAKE_VERBS_LIMITS");
  static const struct {
    const char *name;
    int *value;
  } names[] = {{"qp", &fake_limits.qp},
               {"cqe", &fake_limits.cqe},
               {"wr", &fake_limits.wr},
               {"sge", &fake_limits.sge},
               {"mr", &fake_limits.mr},
               {"inline_bytes", &fake_limits.inline_bytes},
               {"msg_bytes", &fake_limits.msg_bytes}};
  while (text && *text) {
    char name[24];
    int value;
    if (sscanf(text, " %23[a-z_]=%d", name, &value) != 2) fake_misuse("FAKE_VERBS_LIMITS: what is \"%s\"?", text);
    bool known = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
      if (strcmp(names[i].name, name) == 0) *names[i].value = value, known = true;
    if (!known) fake_misuse("FAKE_VERBS_LIMITS: there is no limit \"%s\"", name);
    text = strchr(text, ',');
    if (text) text++;
  }
}

static void read_gids(struct fake_port *port, int number)
{
  const char *text = getenv("FAKE_VERBS_GIDS");
  if (!port->ethernet && !text) {
    port->gids = 1;
    port->gid[0].global.subnet_prefix = htobe64(0xfe80000000000000ull);
    port->gid[0].global.interface_id = htobe64(0x0002c90300000000ull + (unsigned)number);
    return;
  }
  if (!text) text = "fe80::2:%d/1,fe80::2:%d/2,::ffff:10.77.%d.1/1,::ffff:10.77.%d.1/2,fd00:77::%d/2";
  while (*text && port->gids < FAKE_GIDS) {
    char item[64], address[96];
    size_t bytes = strcspn(text, ",");
    snprintf(item, sizeof item, "%.*s", (int)bytes, text);
    char *slash = strchr(item, '/');
    if (slash) *slash = 0;
    char *percent = strstr(item, "%d");
    if (percent)
      snprintf(address, sizeof address, "%.*s%d%s", (int)(percent - item), item, number, percent + 2);
    else
      snprintf(address, sizeof address, "%s", item);
    /* "-" is a hole in the table. */
    if (strcmp(address, "-") != 0 && inet_pton(AF_INET6, address, port->gid[port->gids].raw) != 1)
      fake_misuse("FAKE_VERBS_GIDS: \"%s\" is no IPv6 address", address);
    port->gid_version[port->gids++] = slash ? atoi(slash + 1) : 2;
    text += bytes + (text[bytes] == ',');
  }
}

static void add_device(const char *item)
{
  char name[24] = "", link[8] = "eth";
  int ports = 1, speed = 128, width = 2, ports_before = 0;
  for (int i = 0; i < device_count; i++) ports_before += devices[i].ports;
  if (sscanf(item, "%23[^/*@]", name) != 1 || device_count == FAKE_DEVICES)
    fake_misuse("FAKE_VERBS_DEVICES: what is \"%s\"?", item);
  const char *at = strchr(item, '/');
  if (at) sscanf(at, "/%7[a-z]", link);
  at = strchr(item, '*');
  if (at) ports = atoi(at + 1);
  at = strchr(item, '@');
  if (at) sscanf(at, "@%dx%d", &speed, &width);
  if (ports < 1 || ports > FAKE_PORTS) fake_misuse("FAKE_VERBS_DEVICES: %d ports", ports);
  struct fake_device *device = &devices[device_count];
  device->index = device_count++;
  device->ports = ports;
  device->speed = speed;
  device->width = width;
  snprintf(device->device.name, sizeof device->device.name, "%s", name);
  snprintf(device->device.dev_name, sizeof device->device.dev_name, "uverbs%d", device->index);
  const char *sysfs = getenv("FAKE_VERBS_SYSFS");
  if (sysfs) snprintf(device->device.ibdev_path, sizeof device->device.ibdev_path, "%s/%s", sysfs, name);
  device->device.node_type = IBV_NODE_CA;
  device->device.transport_type = IBV_TRANSPORT_IB;
  for (int i = 0; i < ports; i++) {
    device->port[i].up = true;
    device->port[i].ethernet = strcmp(link, "eth") == 0;
    device->port[i].unknown = strcmp(link, "none") == 0;
    device->port[i].lid = device->port[i].ethernet ? 0 : (uint16_t)(0x100 + ports_before + i + 1);
    read_gids(&device->port[i], ports_before + i + 1);
  }
}

void fake_devices_init(void)
{
  const char *text = getenv("FAKE_VERBS_DEVICES");
  if (device_count) return;
  read_limits();
  if (!text) text = "fake0";
  while (*text) {
    char item[64];
    size_t bytes = strcspn(text, ",");
    snprintf(item, sizeof item, "%.*s", (int)bytes, text);
    add_device(item);
    text += bytes + (text[bytes] == ',');
  }
}

struct fake_device *fake_find_device(const char *name)
{
  for (int i = 0; i < device_count; i++)
    if (strcmp(devices[i].device.name, name) == 0) return &devices[i];
  return NULL;
}

struct fake_context *fake_context(struct ibv_context *context)
{
  return CONTAINER(context, struct fake_context, verbs.context);
}

struct fake_port *fake_port(struct ibv_context *context, int number)
{
  struct fake_device *device = fake_context(context)->device;
  return number >= 1 && number <= device->ports ? &device->port[number - 1] : NULL;
}

/* ---- Devices ---- */

struct ibv_device **ibv_get_device_list(int *count)
{
  pthread_mutex_lock(&fake_lock);
  fake_devices_init();
  fake_script_init();
  int error = fake_should_fail("get_device_list"), found = 0;
  struct ibv_device **list = error ? NULL : calloc((size_t)device_count + 1, sizeof *list);
  for (int i = 0; i < device_count && list; i++)
    if (!devices[i].removed) list[found++] = &devices[i].device;
  if (count) *count = list ? found : 0;
  pthread_mutex_unlock(&fake_lock);
  errno = error;
  return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
  free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
  return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
  return htobe64(0x0002c90300000000ull + ((uint64_t)CONTAINER(device, struct fake_device, device)->index << 8));
}

static int query_port(struct ibv_context *context, uint8_t number, struct ibv_port_attr *attr, size_t bytes)
{
  struct ibv_port_attr full;
  pthread_mutex_lock(&fake_lock);
  int error = fake_should_fail("query_port");
  struct fake_port *port = fake_port(context, number);
  if (!port) error = EINVAL;
  if (fake_context(context)->device->removed) error = EIO;
  if (!error) {
    memset(&full, 0, sizeof full);
    full.state = port->up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    full.max_mtu = full.active_mtu = IBV_MTU_4096;
    full.gid_tbl_len = port->gids;
    full.max_msg_sz = (uint32_t)fake_limits.msg_bytes;
    full.pkey_tbl_len = 2;
    full.lid = port->lid;
    full.sm_lid = port->ethernet ? 0 : 1;
    full.active_width = (uint8_t)fake_context(context)->device->width;
    full.active_speed = (uint8_t)fake_context(context)->device->speed;
    full.phys_state = 5;
    full.link_layer = port->unknown    ? IBV_LINK_LAYER_UNSPECIFIED
                      : port->ethernet ? IBV_LINK_LAYER_ETHERNET
                                       : IBV_LINK_LAYER_INFINIBAND;
    if (getenv("FAKE_VERBS_GRH")) full.flags = IBV_QPF_GRH_REQUIRED;
    memcpy(attr, &full, bytes < sizeof full ? bytes : sizeof full);
  }
  pthread_mutex_unlock(&fake_lock);
  return error;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t number, struct _compat_ibv_port_attr *attr)
{
  /* The old struct ends before port_cap_flags2. */
  return query_port(context, number, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
  pthread_mutex_lock(&fake_lock);
  int error = fake_should_fail("query_device");
  struct fake_device *device = fake_context(context)->device;
  if (!error) {
    memset(attr, 0, sizeof *attr);
    snprintf(attr->fw_ver, sizeof attr->fw_ver, "fake");
    attr->node_guid = ibv_get_device_guid(&device->device);
    attr->sys_image_guid = attr->node_guid;
    attr->max_qp = fake_limits.qp;
    attr->max_qp_wr = fake_limits.wr;
    attr->max_sge = fake_limits.sge;
    attr->max_cq = 1 << 16;
    attr->max_cqe = fake_limits.cqe;
    attr->max_mr = fake_limits.mr;
    attr->max_mr_size = UINT64_MAX;
    attr->max_qp_rd_atom = 16;
    attr->phys_port_cnt = (uint8_t)device->ports;
  }
  pthread_mutex_unlock(&fake_lock);
  return error;
}

int ibv_query_gid(struct ibv_context *context, uint8_t number, int index, union ibv_gid *gid)
{
  struct fake_port *port = fake_port(context, number);
  if (!port || index < 0 || index >= port->gids) {
    errno = EINVAL;
    return -1;
  }
  *gid = port->gid[index];
  return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t number, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t bytes)
{
  static const union ibv_gid none;
  struct fake_port *port = fake_port(context, (int)number);
  if (!port || (int)index >= port->gids || flags || bytes < sizeof *entry) return EINVAL;
  if (getenv("FAKE_VERBS_NO_GID_EX")) return EOPNOTSUPP;
  if (memcmp(&port->gid[index], &none, sizeof none) == 0) return ENODATA;
  memset(entry, 0, sizeof *entry);
  entry->gid = port->gid[index];
  entry->gid_index = index;
  entry->port_num = number;
  entry->gid_type = !port->ethernet                 ? IBV_GID_TYPE_IB
                    : port->gid_version[index] == 1 ? IBV_GID_TYPE_ROCE_V1
                                                    : IBV_GID_TYPE_ROCE_V2;
  return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t number, int index, __be16 *pkey)
{
  if (!fake_port(context, number) || index < 0 || index > 1) return -1;
  *pkey = htobe16(index ? 0x8001 : 0xffff);
  return 0;
}

int ibv_fork_init(void)
{
  return 0;
}

/* ---- Contexts ---- */

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
  pthread_mutex_lock(&fake_lock);
  int error = fake_should_fail("open_device");
  struct fake_device *fake = CONTAINER(device, struct fake_device, device);
  struct fake_context *context = error || fake->removed ? NULL : calloc(1, sizeof *context);
  if (context) {
    context->device = fake;
    context->verbs.sz = sizeof context->verbs;
    context->verbs.query_port = query_port;
    struct ibv_context *visible = &context->verbs.context;
    visible->device = device;
    visible->abi_compat = __VERBS_ABI_IS_EXTENDED;
    visible->ops.poll_cq = fake_poll_cq;
    visible->ops.post_send = fake_post_send;
    visible->ops.post_recv = fake_post_recv;
    visible->cmd_fd = -1;
    visible->num_comp_vectors = 1;
    visible->async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    pthread_mutex_init(&visible->mutex, NULL);
    fake->opened++;
    int i = 0;
    while (i < CONTEXTS && contexts[i]) i++;
    if (i == CONTEXTS) fake_misuse("more than %d devices opened", CONTEXTS);
    contexts[i] = context;
  }
  pthread_mutex_unlock(&fake_lock);
  errno = error ? error : ENODEV;
  return context ? &context->verbs.context : NULL;
}

static void free_events(struct fake_event *event)
{
  while (event) {
    struct fake_event *next = event->next;
    free(event);
    event = next;
  }
}

int ibv_close_device(struct ibv_context *visible)
{
  struct fake_context *context = fake_context(visible);
  pthread_mutex_lock(&fake_lock);
  if (context->pds || context->cqs)
    fake_misuse("ibv_close_device of %s with %d PDs and %d CQs", visible->device->name, context->pds, context->cqs);
  for (int i = 0; i < CONTEXTS; i++)
    if (contexts[i] == context) contexts[i] = NULL;
  context->device->opened--;
  pthread_mutex_unlock(&fake_lock);
  close(visible->async_fd);
  free_events(context->events);
  free_events(context->unacknowledged);
  free(context);
  return 0;
}

/* ---- Events ---- */

static bool is_about(const struct fake_context *context, enum ibv_event_type type, void *element)
{
  if (type == IBV_EVENT_CQ_ERR) return element && ((struct ibv_cq *)element)->context == &context->verbs.context;
  if (type <= IBV_EVENT_PATH_MIG_ERR) return element && ((struct ibv_qp *)element)->context == &context->verbs.context;
  return true;
}

void fake_raise(struct fake_device *device, enum ibv_event_type type, void *element)
{
  for (int i = 0; i < CONTEXTS; i++) {
    struct fake_context *context = contexts[i];
    if (!context || context->device != device || !is_about(context, type, element)) continue;
    struct fake_event *event = calloc(1, sizeof *event), **end = &context->events;
    if (!event) fake_misuse("no memory");
    event->event.event_type = type;
    event->event.element.qp = element;
    while (*end) end = &(*end)->next;
    *end = event;
    eventfd_write(context->verbs.context.async_fd, 1);
  }
}

int ibv_get_async_event(struct ibv_context *visible, struct ibv_async_event *out)
{
  struct fake_context *context = fake_context(visible);
  struct fake_event *event = NULL;
  eventfd_t one;
  while (!event) {
    /* As with the real one: blocks unless the descriptor was made not to. */
    if (eventfd_read(visible->async_fd, &one) != 0) return -1;
    pthread_mutex_lock(&fake_lock);
    event = context->events; /* none if it went with its object */
    if (!event) pthread_mutex_unlock(&fake_lock);
  }
  context->events = event->next;
  event->next = context->unacknowledged;
  context->unacknowledged = event;
  *out = event->event;
  pthread_mutex_unlock(&fake_lock);
  return 0;
}

void ibv_ack_async_event(struct ibv_async_event *done)
{
  bool found = false;
  pthread_mutex_lock(&fake_lock);
  for (int i = 0; i < CONTEXTS && !found; i++) {
    for (struct fake_event **at = contexts[i] ? &contexts[i]->unacknowledged : NULL; at && *at; at = &(*at)->next) {
      struct fake_event *event = *at;
      if (event->event.event_type != done->event_type || event->event.element.qp != done->element.qp) continue;
      *at = event->next;
      free(event);
      found = true;
      break;
    }
  }
  if (!found) fake_misuse("ibv_ack_async_event of an event that nobody got");
  pthread_cond_broadcast(&acknowledged);
  pthread_mutex_unlock(&fake_lock);
}

static bool is_unacknowledged(struct fake_context *context, void *element)
{
  for (struct fake_event *event = context->unacknowledged; event; event = event->next)
    if (event->event.event_type <= IBV_EVENT_PATH_MIG_ERR && event->event.element.qp == element) return true;
  return false;
}

void fake_wait_acknowledged(struct fake_context *context, void *element)
{
  /* Events that nobody has got go with the object. */
  for (struct fake_event **at = &context->events; *at;) {
    struct fake_event *event = *at;
    if (event->event.event_type <= IBV_EVENT_PATH_MIG_ERR && event->event.element.qp == element) {
      *at = event->next;
      free(event);
    } else {
      at = &event->next;
    }
  }
  while (is_unacknowledged(context, element)) pthread_cond_wait(&acknowledged, &fake_lock);
}

const char *ibv_event_type_str(enum ibv_event_type event)
{
  static const char *const names[] = {[IBV_EVENT_CQ_ERR] = "CQ error",
                                      [IBV_EVENT_QP_FATAL] = "local work queue catastrophic error",
                                      [IBV_EVENT_QP_REQ_ERR] = "invalid request local work queue error",
                                      [IBV_EVENT_QP_ACCESS_ERR] = "local access violation work queue error",
                                      [IBV_EVENT_DEVICE_FATAL] = "local catastrophic error",
                                      [IBV_EVENT_PORT_ACTIVE] = "port active",
                                      [IBV_EVENT_PORT_ERR] = "port error"};
  const char *name = (size_t)event < sizeof names / sizeof names[0] ? names[event] : NULL;
  return name ? name : "unknown";
}

const char *ibv_node_type_str(enum ibv_node_type type)
{
  return type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown";
}

int fake_contexts(void)
{
  int count = 0;
  for (int i = 0; i < CONTEXTS; i++) count += contexts[i] != NULL;
  return count;
}
