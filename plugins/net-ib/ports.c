/* What a NIC and its ports are: attributes, speed, GID, place on PCI. */
#include "net_ib.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gid.h"
#include "hca.h"
#include "base/host.h"

const char *tt_ib_link_name(uint8_t link_layer)
{
  return link_layer == IBV_LINK_LAYER_INFINIBAND ? "IB" : link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "unknown";
}

/* Megabits a second of one lane, by the codes of the specification (active_speed), times lanes (active_width). */
static int read_speed(const struct ibv_port_attr *attr)
{
  static const int speeds[] = {2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000, 200000};
  static const int widths[] = {1, 4, 8, 12, 2};
  int speed = 0, width = 0;
  while (speed < (int)TT_COUNT(speeds) - 1 && !(attr->active_speed & 1 << speed)) speed++;
  while (width < (int)TT_COUNT(widths) - 1 && !(attr->active_width & 1 << width)) width++;
  /* A port without a code has the least of either. */
  if (attr->active_speed == 0) speed = 0;
  if (attr->active_width == 0) width = 0;
  return speeds[speed] * widths[width];
}

/* The card's path: without the function of the port and, where virtual functions count as their card, of those. */
static void read_pci_path(struct tt_ib_port *port, const struct ibv_device *device)
{
  char link[IBV_SYSFS_PATH_MAX + 16], path[PATH_MAX];
  snprintf(link, sizeof link, "%s/device", device->ibdev_path);
  if (!realpath(link, path) || strlen(path) >= sizeof port->pci_path) return;
  strcpy(port->full_path, path);
  strcpy(port->pci_path, path);
  /* ".../0000:17:00.1" */
  size_t length = strlen(path);
  const char *base = strrchr(path, '/');
  if (!base || strlen(base + 1) < 12 || base[11] != '.') return;
  port->pci_path[length - 1] = '0';
  if (tt_param_int(TT_PARAM_NCCL_IB_MERGE_VFS)) port->pci_path[length - 3] = port->pci_path[length - 4] = '0';
}

/* ---- GIDs ---- */

/* The version that the kernel tells in /sys, for libraries that cannot. */
static int read_version(const struct ibv_device *device, int number, int index)
{
  char path[IBV_SYSFS_PATH_MAX + 64], text[32] = "";
  snprintf(path, sizeof path, "%s/ports/%d/gid_attrs/types/%d", device->ibdev_path, number, index);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  if (!fgets(text, sizeof text, file)) text[0] = 0;
  fclose(file);
  if (strstr(text, "v2")) return 2;
  return strstr(text, "v1") ? 1 : 0;
}

static bool read_gid(const struct tt_ib_nic *nic, int number, int index, struct tt_ib_gid *gid)
{
  const struct tt_ib_verbs *verbs = tt_ib_verbs(NULL);
  memset(gid, 0, sizeof *gid);
  gid->index = index;
  if (verbs->query_gid_ex) {
    struct ibv_gid_entry entry;
    memset(&entry, 0, sizeof entry);
    int error = verbs->query_gid_ex(nic->context, (uint32_t)number, (uint32_t)index, &entry, 0, sizeof entry);
    if (error == ENODATA) return false;
    if (error == 0) {
      gid->gid = entry.gid;
      gid->version = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 2 : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? 1 : 0;
      return true;
    }
  }
  if (verbs->query_gid(nic->context, (uint8_t)number, index, &gid->gid) != 0) return false;
  gid->version = read_version(nic->context->device, number, index);
  return true;
}

#define GIDS 1024
static void list_gids(const struct tt_ib_gid *table, int count, char *text, size_t size)
{
  size_t at = 0;
  char one[TT_IB_GID_TEXT];
  text[0] = 0;
  for (int i = 0; i < count && at < size; i++)
    if (!tt_ib_gid_is_empty(&table[i].gid))
      at += (size_t)snprintf(text + at, size - at, "%s%d: %s v%d", at ? ", " : "", table[i].index,
                             tt_ib_gid_print(&table[i].gid, one), table[i].version);
}

/* False if the port has no GID to use; says why. */
static bool choose_gid(struct tt_ib_port *port, int length, const struct tt_ib_gid_wish *wish)
{
  static _Thread_local struct tt_ib_gid table[GIDS];
  int count = 0, wanted = (int)tt_param_int(TT_PARAM_NCCL_IB_GID_INDEX), chosen = -1;
  bool roce = port->link_layer == IBV_LINK_LAYER_ETHERNET;
  char text[512];
  for (int i = 0; i < length && i < GIDS; i++)
    if (read_gid(port->nic, port->number, i, &table[count])) count++;
  if (!roce) {
    int router = (int)tt_param_int(TT_PARAM_NCCL_IB_ROUTABLE_FLID_GID_INDEX);
    chosen = 0;
    for (int i = 0; i < count; i++)
      if (table[i].index == router && tt_ib_gid_flid(&table[i].gid)) chosen = i;
    if (count == 0) chosen = -1;
  } else if (wanted >= 0) {
    for (int i = 0; i < count; i++)
      if (table[i].index == wanted && !tt_ib_gid_is_empty(&table[i].gid)) chosen = i;
  } else {
    chosen = tt_ib_gid_choose(table, count, wish);
  }
  if (chosen < 0) {
    list_gids(table, count, text, sizeof text);
    if (roce && wanted >= 0)
      TT_WARN("net ib: %s port %d is not used: NCCL_IB_GID_INDEX=%d names no GID of it; it has %s", port->name,
              port->number, wanted, text[0] ? text : "none");
    else if (roce && wish->bits >= 0)
      TT_INFO(TT_INIT | TT_NET, "NET/IB : %s port %d is not used: NCCL_IB_ADDR_RANGE=%s has none of its GIDs, %s",
              port->name, port->number, tt_param_string(TT_PARAM_NCCL_IB_ADDR_RANGE),
              text[0] ? text : "of which it has none");
    else
      TT_WARN("net ib: %s port %d is not used: it has no GID; has its interface an address?", port->name, port->number);
    return false;
  }
  port->gid_index = table[chosen].index;
  port->gid = table[chosen].gid;
  return true;
}

/* ---- Ports ---- */

static bool describe_port(struct tt_ib_port *port, const struct ibv_port_attr *attr, const struct tt_ib_gid_wish *wish)
{
  port->link_layer = attr->link_layer;
  port->mtu = (uint8_t)attr->active_mtu;
  port->flags = attr->flags;
  port->lid = attr->lid;
  port->max_message = attr->max_msg_sz;
  port->speed = read_speed(attr);
  int adaptive = (int)tt_param_int(TT_PARAM_NCCL_IB_ADAPTIVE_ROUTING);
  port->adaptive = adaptive >= 0 ? adaptive : port->link_layer == IBV_LINK_LAYER_INFINIBAND;
  read_pci_path(port, port->nic->context->device);
  return choose_gid(port, attr->gid_tbl_len, wish);
}

ncclResult_t tt_ib_ports_find(struct tt_ib_nic *nic, struct ibv_device *device, const struct tt_ib_hca_filter *filter,
                              const struct tt_ib_gid_wish *wish, struct tt_ib_port *ports, int *count)
{
  const struct tt_ib_verbs *verbs = tt_ib_verbs(NULL);
  struct ibv_device_attr attr;
  int error;
  char hint[100];
  snprintf(nic->name, sizeof nic->name, "%s", device->name);
  nic->context = verbs->open_device(device);
  if (!nic->context) {
    TT_WARN("net ib: cannot open %s: %s%s; it is not used", nic->name, strerror(errno),
            tt_host_file_hint(errno, hint, sizeof hint));
    return ncclSuccess;
  }
  memset(&attr, 0, sizeof attr);
  error = verbs->query_device(nic->context, &attr);
  if (error) TT_WARN("net ib: %s does not say what it can do: %s; it is not used", nic->name, strerror(error));
  nic->max_qp = attr.max_qp;
  nic->max_wr = attr.max_qp_wr;
  for (int number = 1; !error && number <= attr.phys_port_cnt; number++) {
    struct ibv_port_attr port_attr;
    struct tt_ib_port *port = &ports[*count];
    int rail, plane;
    if (!tt_ib_hca_match(filter, nic->name, number, &rail, &plane)) continue;
    int failed = tt_ib_query_port(nic->context, (uint8_t)number, &port_attr);
    if (failed) {
      TT_WARN("net ib: %s port %d does not say what it is: %s; it is not used", nic->name, number, strerror(failed));
      continue;
    }
    if (port_attr.state != IBV_PORT_ACTIVE ||
        (port_attr.link_layer != IBV_LINK_LAYER_INFINIBAND && port_attr.link_layer != IBV_LINK_LAYER_ETHERNET))
      continue;
    if (*count == TT_IB_PORTS) {
      TT_WARN("net ib: using the first %d ports and not %s port %d; NCCL_IB_HCA chooses others", TT_IB_PORTS, nic->name,
              number);
      break;
    }
    memset(port, 0, sizeof *port);
    port->nic = nic;
    port->name = nic->name;
    port->number = number;
    port->guid = attr.sys_image_guid;
    port->rail = rail;
    port->plane = plane;
    if (describe_port(port, &port_attr, wish)) ++*count;
  }
  return ncclSuccess;
}
