/* The process-wide state: NICs, devices, and the count of users. One mutex guards it, since several
 * communicators may start and end at once. Devices stay where they are until the last user goes, so pointers to them
 * may be handed out. */
#include "net_ofi.h"

#include <stdio.h>
#include <string.h>
#include "plugins/common/attempts.h"
#include "plugins/common/system.h"

static struct {
  pthread_mutex_t lock;
  int users;
  const struct tt_ofi_fabric *fabric;
  int nics, devices;
  struct tt_ofi_nic nic[TT_OFI_NICS];
  struct tt_ofi_device device[TT_OFI_DEVICES];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void print_devices(void)
{
  char text[1024] = "";
  size_t at = 0;
  for (int i = 0; i < state.nics && at < sizeof text; i++)
    at += (size_t)snprintf(text + at, sizeof text - at, " [%d]%s", i, state.nic[i].name);
  const struct fi_info *info = state.nic[0].info;
  TT_INFO(TT_INIT | TT_NET, "NET/OFI : Using provider %s of libfabric %u.%u%s,%s", info->fabric_attr->prov_name,
          FI_MAJOR(state.fabric->version()), FI_MINOR(state.fabric->version()),
          state.nic[0].hmem ? " with memory of GPUs" : "", text);
}

/* Without libfabric, or without a NIC, one line and no devices. */
static ncclResult_t find_devices(void)
{
  char why[400] = "";
  state.nics = state.devices = 0;
  state.fabric = tt_ofi_nics_likely(why, sizeof why) ? tt_ofi_fabric(why, sizeof why) : NULL;
  if (state.fabric) TT_TRY(tt_ofi_nics_find(state.fabric, state.nic, &state.nics, why, sizeof why));
  for (int i = 0; i < state.nics; i++) {
    struct tt_ofi_device *device = &state.device[state.devices++];
    *device = (struct tt_ofi_device){.count = 1, .members = {i}, .nic = {&state.nic[i]}};
    memcpy(device->name, state.nic[i].name, sizeof state.nic[i].name); /* which is shorter, and ends with 0 */
  }
  if (state.nics)
    print_devices();
  else
    TT_INFO(TT_INIT | TT_NET, "NET/OFI : no devices: %s", why);
  return ncclSuccess;
}

ncclResult_t tt_ofi_open(ncclDebugLogger_t logger)
{
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&state.lock);
  tt_system_log_to(logger);
  if (state.users == 0) result = find_devices();
  if (result == ncclSuccess) state.users++;
  pthread_mutex_unlock(&state.lock);
  return result;
}

ncclResult_t tt_ofi_close(void)
{
  pthread_mutex_lock(&state.lock);
  bool extra = state.users == 0;
  if (!extra && --state.users == 0) {
    tt_ofi_connect_forget(TT_ATTEMPTS_OF_ALL);
    tt_counted_forget();
    tt_ofi_nics_free(state.fabric, state.nic, state.nics);
    state.nics = state.devices = 0;
    tt_system_log_to(NULL);
  }
  pthread_mutex_unlock(&state.lock);
  return extra ? TT_FAIL(ncclInternalError, "net ofi: finalize was called more often than init") : ncclSuccess;
}

int tt_ofi_device_count(void)
{
  pthread_mutex_lock(&state.lock);
  int count = state.devices;
  pthread_mutex_unlock(&state.lock);
  return count;
}

ncclResult_t tt_ofi_device(int index, struct tt_ofi_device **device)
{
  int count = tt_ofi_device_count();
  if (index < 0 || index >= count)
    return TT_FAIL(ncclInternalError, "net ofi: device %d is outside 0..%d", index, count - 1);
  *device = &state.device[index];
  return ncclSuccess;
}

/* ---- Devices that are several NICs ---- */

static ncclResult_t check_members(const int *members, int count)
{
  if (count < 2 || count > TT_OFI_RAILS)
    return TT_FAIL(ncclInvalidUsage, "net ofi: %d NICs cannot work as one device; 2 to %d can", count, TT_OFI_RAILS);
  for (int i = 0; i < count; i++) {
    if (members[i] < 0 || members[i] >= state.nics)
      return TT_FAIL(ncclInvalidUsage, "net ofi: device %d cannot be part of another: it is outside 0..%d", members[i],
                     state.nics - 1);
    for (int k = 0; k < i; k++)
      if (members[k] == members[i])
        return TT_FAIL(ncclInvalidUsage, "net ofi: device %d is listed twice for one that is to be several",
                       members[i]);
  }
  return ncclSuccess;
}

static struct tt_ofi_device *find_fused(const int *members, int count)
{
  for (int i = state.nics; i < state.devices; i++)
    if (state.device[i].count == count && !memcmp(state.device[i].members, members, (size_t)count * sizeof *members))
      return &state.device[i];
  return NULL;
}

/* The names of its NICs, joined, as far as there is room. */
static void name(struct tt_ofi_device *device)
{
  char text[sizeof device->name] = "";
  for (int i = 0; i < device->count; i++) {
    size_t at = strlen(text);
    snprintf(text + at, sizeof text - at, "%s%s", i ? "+" : "", device->nic[i]->name);
  }
  memcpy(device->name, text, sizeof text);
}

static ncclResult_t fuse(const int *members, int count, int *out)
{
  TT_TRY(check_members(members, count));
  struct tt_ofi_device *device = find_fused(members, count);
  if (!device) {
    if (state.devices == TT_OFI_DEVICES)
      return TT_FAIL(ncclInvalidUsage, "net ofi: there are %d devices already, and can be no more", TT_OFI_DEVICES);
    device = &state.device[state.devices];
    *device = (struct tt_ofi_device){.count = count};
    for (int i = 0; i < count; i++) {
      device->members[i] = members[i];
      device->nic[i] = &state.nic[members[i]];
    }
    name(device);
    state.devices++;
    TT_INFO(TT_INIT | TT_NET, "NET/OFI : device %d is %s", state.devices - 1, device->name);
  }
  *out = (int)(device - state.device);
  return ncclSuccess;
}

ncclResult_t tt_ofi_device_fuse(const int *members, int count, int *out)
{
  pthread_mutex_lock(&state.lock);
  ncclResult_t result = fuse(members, count, out);
  pthread_mutex_unlock(&state.lock);
  return result;
}

/* Versions before 11 never say that they are done. Sockets that were left in the middle of a connect end with the
 * library; endpoints end with the process, since libfabric may have ended before this is called. */
__attribute__((destructor)) static void unload(void)
{
  tt_meeting_forget(TT_ATTEMPTS_OF_ALL);
  tt_counted_forget();
  tt_param_unload();
}
