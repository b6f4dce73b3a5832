/* The process-wide state: interfaces, and the count of users. One mutex guards it, since several
 * communicators may start and end at once. Devices stay where they are until the last user goes, so pointers to them
 * may be handed out. */
#include "net_socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plugins/common/attempts.h"
#include "plugins/common/system.h"

static struct {
  pthread_mutex_t lock;
  int users;
  int devices;
  struct tt_netsocket_device device[TT_NETSOCKET_DEVICES];
  struct tt_netsocket_shape shape;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void read_device(struct tt_netsocket_device *device, const struct tt_interface *interface)
{
  char path[64 + TT_IFNAME_BYTES];
  memset(device, 0, sizeof *device);
  memcpy(device->name, interface->name, sizeof device->name - 1);
  device->address = interface->address;
  device->speed = tt_system_interface_speed(interface->name);
  snprintf(path, sizeof path, "/sys/class/net/%s/device", interface->name);
  tt_system_real_path(path, device->pci_path, sizeof device->pci_path);
}

static bool have_device(const char *name)
{
  for (int i = 0; i < state.devices; i++)
    if (strcmp(state.device[i].name, name) == 0) return true;
  return false;
}

/* One device an interface, with its best address: the list has the better ones first. */
static ncclResult_t find_devices(void)
{
  struct tt_interface *list = NULL;
  int count = 0;
  state.devices = 0;
  TT_TRY(tt_socket_interfaces(&list, &count));
  for (int i = 0; i < count; i++) {
    if (have_device(list[i].name)) continue;
    if (state.devices == TT_NETSOCKET_DEVICES) {
      TT_WARN("net socket: using the first %d interfaces and not %s; NCCL_SOCKET_IFNAME chooses others",
              TT_NETSOCKET_DEVICES, list[i].name);
      break;
    }
    read_device(&state.device[state.devices++], &list[i]);
  }
  free(list);
  return ncclSuccess;
}

static ncclResult_t read_shape(void)
{
  int64_t threads = tt_param_int(TT_PARAM_NCCL_SOCKET_NTHREADS);
  int64_t sockets = tt_param_int(TT_PARAM_NCCL_NSOCKS_PERTHREAD);
  if (threads < 0) threads = 0;
  if (sockets < 0) sockets = 1;
  int64_t lanes = threads > 0 ? threads * sockets : sockets > 1 ? sockets : 0;
  if (lanes > TT_NETSOCKET_LANES)
    return TT_FAIL(ncclInvalidUsage,
                   "NCCL_SOCKET_NTHREADS=%lld times NCCL_NSOCKS_PERTHREAD=%lld is more than %d sockets a connection; "
                   "lower one of them",
                   (long long)threads, (long long)sockets, TT_NETSOCKET_LANES);
  state.shape.threads = lanes ? (int)threads : 0;
  state.shape.lanes = (int)lanes;
  return ncclSuccess;
}

static void print_devices(void)
{
  char text[1024] = "", address[TT_ADDRESS_TEXT];
  size_t at = 0;
  for (int i = 0; i < state.devices && at < sizeof text; i++)
    at += (size_t)snprintf(text + at, sizeof text - at, " [%d]%s:%s", i, state.device[i].name,
                           tt_address_print(&state.device[i].address, address));
  TT_INFO(TT_INIT | TT_NET, "NET/Socket : Using%s; %d data sockets a connection, %d helper threads", text,
          state.shape.lanes, state.shape.threads);
}

ncclResult_t tt_netsocket_open(ncclDebugLogger_t logger)
{
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&state.lock);
  tt_system_log_to(logger);
  if (state.users == 0) {
    TT_TRY_GOTO(read_shape(), result, out);
    TT_TRY_GOTO(find_devices(), result, out);
    print_devices();
  }
  state.users++;
out:
  pthread_mutex_unlock(&state.lock);
  return result;
}

ncclResult_t tt_netsocket_close(void)
{
  bool last = false;
  pthread_mutex_lock(&state.lock);
  bool extra = state.users == 0;
  if (!extra) last = --state.users == 0;
  if (last) {
    state.devices = 0;
    tt_meeting_forget(TT_ATTEMPTS_OF_ALL);
    tt_counted_forget();
    tt_system_log_to(NULL);
  }
  pthread_mutex_unlock(&state.lock);
  return extra ? TT_FAIL(ncclInternalError, "net socket: finalize was called more often than init") : ncclSuccess;
}

int tt_netsocket_device_count(void)
{
  pthread_mutex_lock(&state.lock);
  int count = state.devices;
  pthread_mutex_unlock(&state.lock);
  return count;
}

ncclResult_t tt_netsocket_device(int index, struct tt_netsocket_device **device)
{
  int count = tt_netsocket_device_count();
  if (index < 0 || index >= count)
    return TT_FAIL(ncclInternalError, "net socket: device %d is outside 0..%d", index, count - 1);
  *device = &state.device[index];
  return ncclSuccess;
}

struct tt_netsocket_shape tt_netsocket_shape(void)
{
  pthread_mutex_lock(&state.lock);
  struct tt_netsocket_shape shape = state.shape;
  pthread_mutex_unlock(&state.lock);
  return shape;
}

/* Versions before 11 never say that they are done; the attempts that they left behind end with the library. */
__attribute__((destructor)) static void unload(void)
{
  tt_meeting_forget(TT_ATTEMPTS_OF_ALL);
  tt_counted_forget();
  tt_param_unload();
}
