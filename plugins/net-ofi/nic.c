/* NICs: what libfabric offers that this plugin can use, one provider's. */
#include "net_ofi.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/text.h"
#include "plugins/common/system.h"

/* Networks of NICs. Those that run over sockets or shared memory are for whom asks for them: net-socket and the core's
 * own shared memory do that without another layer. */
#define PREFERRED "efa,cxi,opx,psm3,psm2,verbs"
#define IMMEDIATE_BYTES 4

/* ---- Providers ---- */

/* "tcp;ofi_rxm" is "tcp", and it is "ofi_rxm", and it is both. */
static bool is_provider(const struct fi_info *info, const char *name, size_t bytes)
{
  const char *provider = info->fabric_attr->prov_name, *piece;
  size_t length;
  if (tt_text_equal_nocase(name, bytes, provider)) return true;
  const char *cursor = provider;
  while (tt_text_next(&cursor, ';', &piece, &length))
    if (length == bytes && strncasecmp(piece, name, bytes) == 0) return true;
  return false;
}

/* FI_PROVIDER has been obeyed by libfabric; who names a provider, or this network, wants it whatever it runs on. */
static bool any_will_do(void)
{
  const char *provider = getenv("FI_PROVIDER"), *net = tt_param_string(TT_PARAM_NCCL_NET);
  return (provider && *provider && *provider != '^') || (net && strcasecmp(net, "ofi") == 0);
}

/* Where kernels list NICs that the preferred providers use. */
static bool has_nic(void)
{
  static const char *const classes[] = {"/sys/class/infiniband", "/sys/class/cxi", "/sys/class/cxi_user",
                                        "/sys/class/hfi1"};
  for (size_t i = 0; i < TT_COUNT(classes); i++) {
    DIR *class = opendir(classes[i]);
    struct dirent *entry = NULL;
    while (class && (entry = readdir(class)) && entry->d_name[0] == '.')
      ;
    if (class) closedir(class);
    if (entry) return true;
  }
  return false;
}

bool tt_ofi_nics_likely(char *why, size_t size)
{
  if (any_will_do() || tt_param_string(TT_PARAM_TUTTI_OFI_PROVIDERS) || has_nic()) return true;
  snprintf(
      why, size,
      "there is no NIC (in /sys/class/infiniband, cxi or hfi1); FI_PROVIDER, TUTTI_OFI_PROVIDERS or NCCL_NET=ofi take "
      "providers that need none, such as tcp");
  return false;
}

static const struct fi_info *find_provider(const struct fi_info *list, const char *names)
{
  const char *cursor = names, *name;
  size_t bytes;
  while (tt_text_next(&cursor, ',', &name, &bytes))
    for (const struct fi_info *info = list; bytes && info; info = info->next)
      if (is_provider(info, name, bytes)) return info;
  return NULL;
}

/* The first entry of the provider to be used; NULL and a phrase if there is none. */
static const struct fi_info *choose_provider(const struct fi_info *list, char *why, size_t size)
{
  const char *asked = tt_param_string(TT_PARAM_TUTTI_OFI_PROVIDERS);
  const struct fi_info *chosen = find_provider(list, asked ? asked : PREFERRED);
  if (!chosen && !asked && any_will_do()) chosen = list;
  if (!chosen && asked)
    snprintf(why, size, "libfabric has no provider of TUTTI_OFI_PROVIDERS=%.100s that has what is needed", asked);
  else if (!chosen)
    snprintf(why, size, "no NIC's provider is there (%s); FI_PROVIDER or TUTTI_OFI_PROVIDERS take others, such as tcp",
             PREFERRED);
  return chosen;
}

/* ---- Looking ---- */

static struct fi_info *make_hints(const struct tt_ofi_fabric *fabric, bool hmem)
{
  struct fi_info *hints = fabric->dupinfo(NULL);
  if (!hints) return NULL;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->cq_data_size = IMMEDIATE_BYTES;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  if (hmem) {
    hints->caps |= FI_HMEM | FI_LOCAL_COMM | FI_REMOTE_COMM; /* flushing reads from this side itself */
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  return hints;
}

/* *list NULL and a phrase if libfabric has nothing. */
static ncclResult_t look(const struct tt_ofi_fabric *fabric, bool hmem, struct fi_info **list, char *why, size_t size)
{
  struct fi_info *hints = make_hints(fabric, hmem);
  *list = NULL;
  if (!hints) return TT_FAIL(ncclSystemError, "net ofi: no memory to ask libfabric for its providers");
  int error = fabric->getinfo(TT_OFI_API, NULL, NULL, 0, hints, list);
  fabric->freeinfo(hints);
  if (error == 0) return ncclSuccess;
  *list = NULL;
  const char *provider = getenv("FI_PROVIDER");
  snprintf(why, size, "libfabric %u.%u has no provider with reliable endpoints, messages and writes%s%s: %s",
           FI_MAJOR(fabric->version()), FI_MINOR(fabric->version()), provider ? ", FI_PROVIDER=" : "",
           provider ? provider : "", tt_ofi_strerror(error));
  return ncclSuccess;
}

static bool has_pci(const struct fi_info *info)
{
  return info->nic && info->nic->bus_attr && info->nic->bus_attr->bus_type == FI_BUS_PCI;
}

/* ---- Describing ---- */

static void read_pci(struct tt_ofi_nic *nic)
{
  char path[128];
  if (has_pci(nic->info)) {
    const struct fi_pci_attr *pci = &nic->info->nic->bus_attr->attr.pci;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%04x:%02x:%02x.%x", pci->domain_id, pci->bus_id, pci->device_id,
             pci->function_id);
  } else {
    snprintf(path, sizeof path, "/sys/class/net/%.32s/device", nic->name);
  }
  tt_system_real_path(path, nic->pci_path, sizeof nic->pci_path);
}

static int read_speed(const struct tt_ofi_nic *nic)
{
  const struct fid_nic *fid = nic->info->nic;
  if (fid && fid->link_attr && fid->link_attr->speed >= 1000000 && fid->link_attr->speed / 1000000 <= INT_MAX)
    return (int)(fid->link_attr->speed / 1000000);
  return tt_system_interface_speed(nic->name);
}

/* Endpoints are created from a copy of the info, so that it outlives the list. */
static ncclResult_t describe(const struct tt_ofi_fabric *fabric, const struct fi_info *info,
                             const union tt_address *address, bool hmem, struct tt_ofi_nic *nic)
{
  memset(nic, 0, sizeof *nic);
  nic->info = fabric->dupinfo(info);
  if (!nic->info) return TT_FAIL(ncclSystemError, "net ofi: no memory for a copy of an fi_info");
  snprintf(nic->name, sizeof nic->name, "%s", info->domain_attr->name ? info->domain_attr->name : "?");
  nic->address = *address;
  nic->hmem = hmem;
  nic->speed = read_speed(nic);
  pthread_mutex_init(&nic->lock, NULL);
  read_pci(nic);
  return ncclSuccess;
}

/* ---- The list ---- */

static bool is_of(const struct fi_info *info, const struct fi_info *chosen)
{
  return strcmp(info->fabric_attr->prov_name, chosen->fabric_attr->prov_name) == 0;
}

/* Kernel sockets: whether the entry is the interface with its address. */
static bool is_interface(const struct fi_info *info, const struct tt_interface *interface)
{
  const union tt_address *a = info->src_addr, *b = &interface->address;
  if (!a || !info->domain_attr->name || strcmp(info->domain_attr->name, interface->name) != 0) return false;
  if (info->addr_format == FI_SOCKADDR_IN && b->sa.sa_family == AF_INET)
    return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
  if (info->addr_format == FI_SOCKADDR_IN6 && b->sa.sa_family == AF_INET6)
    return memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof a->v6.sin6_addr) == 0;
  return false;
}

static bool by_interface(const struct fi_info *info)
{
  return !has_pci(info) && (info->addr_format == FI_SOCKADDR_IN || info->addr_format == FI_SOCKADDR_IN6);
}

static bool have(const struct tt_ofi_nic *nics, int count, const char *name)
{
  for (int i = 0; i < count; i++)
    if (name && strcmp(nics[i].name, name) == 0) return true;
  return false;
}

static const struct fi_info *find_interface(const struct fi_info *list, const struct fi_info *chosen,
                                            const struct tt_interface *interface)
{
  for (const struct fi_info *info = list; info; info = info->next)
    if (is_of(info, chosen) && is_interface(info, interface)) return info;
  return NULL;
}

/* NICs in the order of the interfaces, of which the better come first, if the provider runs over them; else each domain
 * that the provider has. */
static ncclResult_t list_nics(const struct tt_ofi_fabric *fabric, const struct fi_info *list,
                              const struct fi_info *chosen, bool hmem, struct tt_ofi_nic *nics, int *count)
{
  struct tt_interface *interfaces = NULL;
  int interface_count = 0;
  ncclResult_t result = ncclSuccess;
  TT_TRY(tt_socket_interfaces(&interfaces, &interface_count));
  if (by_interface(chosen)) {
    for (int i = 0; i < interface_count && *count < TT_OFI_NICS; i++) {
      const struct fi_info *info = find_interface(list, chosen, &interfaces[i]);
      if (!info || have(nics, *count, interfaces[i].name)) continue;
      TT_TRY_GOTO(describe(fabric, info, &interfaces[i].address, hmem, &nics[*count]), result, out);
      ++*count;
    }
  } else {
    for (const struct fi_info *info = list; info && *count < TT_OFI_NICS; info = info->next) {
      if (!is_of(info, chosen) || have(nics, *count, info->domain_attr->name)) continue;
      TT_TRY_GOTO(describe(fabric, info, &interfaces[0].address, hmem, &nics[*count]), result, out);
      ++*count;
    }
  }
out:
  free(interfaces);
  return result;
}

/* GPUs' memory only where the NIC itself reaches it: providers in software would copy it. */
static ncclResult_t find_with(const struct tt_ofi_fabric *fabric, bool hmem, struct tt_ofi_nic *nics, int *count,
                              char *why, size_t size)
{
  struct fi_info *list;
  TT_TRY(look(fabric, hmem, &list, why, size));
  if (!list) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  const struct fi_info *chosen = choose_provider(list, why, size);
  if (chosen && (!hmem || has_pci(chosen))) {
    result = list_nics(fabric, list, chosen, hmem, nics, count);
    if (result == ncclSuccess && *count == 0)
      snprintf(why, size, "provider %s has no NIC on an interface that NCCL_SOCKET_IFNAME allows",
               chosen->fabric_attr->prov_name);
  }
  fabric->freeinfo(list);
  return result;
}

ncclResult_t tt_ofi_nics_find(const struct tt_ofi_fabric *fabric, struct tt_ofi_nic nics[TT_OFI_NICS], int *count,
                              char *why, size_t size)
{
  ncclResult_t result = ncclSuccess;
  *count = 0;
  if (tt_param_int(TT_PARAM_TUTTI_OFI_HMEM)) result = find_with(fabric, true, nics, count, why, size);
  if (result == ncclSuccess && *count == 0) result = find_with(fabric, false, nics, count, why, size);
  if (result == ncclSuccess) return ncclSuccess;
  tt_ofi_nics_free(fabric, nics, *count);
  *count = 0;
  return result;
}

void tt_ofi_nics_free(const struct tt_ofi_fabric *fabric, struct tt_ofi_nic *nics, int count)
{
  for (int i = 0; i < count; i++) {
    fabric->freeinfo(nics[i].info);
    pthread_mutex_destroy(&nics[i].lock);
  }
}

/* What the provider copies anyway is copied here too; more would be a handshake of its own. Where GPUs' memory may be
 * the target nothing is copied by the host. */
size_t tt_ofi_nic_eager(const struct tt_ofi_nic *nic)
{
  size_t bytes = (size_t)tt_param_int(TT_PARAM_TUTTI_OFI_EAGER), most;
  if (nic->hmem) return 0;
  if (!strstr(nic->info->fabric_attr->prov_name, "ofi_rxm")) return bytes;
  most = tt_ofi_rxm_eager(nic->info->fabric_attr->prov_name);
  most -= TT_MIN(most, sizeof(struct tt_ofi_header));
  return TT_MIN(bytes, most);
}

/* ---- The domain ---- */

static ncclResult_t open_domain(struct tt_ofi_nic *nic)
{
  char why[200] = "";
  const struct tt_ofi_fabric *fabric = tt_ofi_fabric(why, sizeof why);
  if (!fabric) return TT_FAIL(ncclInternalError, "net ofi: %s", why);
  const char *what = "fabric";
  int error = fabric->fabric(nic->info->fabric_attr, &nic->fabric, NULL);
  if (error == 0) {
    what = "domain";
    error = fi_domain(nic->fabric, nic->info, &nic->domain, NULL);
    if (error) fi_close(&nic->fabric->fid);
  }
  if (error == 0) return ncclSuccess;
  return TT_FAIL(ncclSystemError,
                 "net ofi: device %s (%s): its %s cannot be opened: %s; FI_LOG_LEVEL=warn makes libfabric tell more",
                 nic->name, nic->info->fabric_attr->prov_name, what, tt_ofi_strerror(error));
}

ncclResult_t tt_ofi_nic_open(struct tt_ofi_nic *nic)
{
  pthread_mutex_lock(&nic->lock);
  ncclResult_t result = nic->users ? ncclSuccess : open_domain(nic);
  if (result == ncclSuccess) nic->users++;
  pthread_mutex_unlock(&nic->lock);
  return result;
}

void tt_ofi_nic_close(struct tt_ofi_nic *nic)
{
  pthread_mutex_lock(&nic->lock);
  if (--nic->users == 0) {
    fi_close(&nic->domain->fid);
    fi_close(&nic->fabric->fid);
    nic->domain = NULL;
    nic->fabric = NULL;
  }
  pthread_mutex_unlock(&nic->lock);
}
