/* See net_list.h: making the list, loading, starting and unloading its libraries, and reporting on them. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/host.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "plugin/net_list.h"

static struct {
  pthread_mutex_t lock;
  bool made;
  int count;
  struct tt_net_library libraries[TT_NET_MAX_LIBRARIES];
} list = {.lock = PTHREAD_MUTEX_INITIALIZER};

void tt_net_list_lock(void)
{
  pthread_mutex_lock(&list.lock);
}

void tt_net_list_unlock(void)
{
  pthread_mutex_unlock(&list.lock);
}

/* ---- Making the list ---- */

static void pass_over(struct tt_net_library *library, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void pass_over(struct tt_net_library *library, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(library->report.reason, sizeof(library->report.reason), format, args);
  va_end(args);
  library->report.state = TT_NET_PASSED;
}

static void add_external(struct tt_net_library *library, const char *name, size_t bytes, bool named)
{
  memset(library, 0, sizeof(*library));
  library->report.named = named;
  snprintf(library->report.asked, sizeof(library->report.asked), "%.*s", (int)bytes, name);
  if (bytes >= sizeof(library->report.asked)) {
    pass_over(library, "its name is longer than %zu bytes", sizeof(library->report.asked) - 1);
    return;
  }
  memcpy(library->files[0], library->report.asked, sizeof(library->report.asked));
  if (!tt_plugin_suffix_name("libnccl-net", library->report.asked, library->files[1])) library->files[1][0] = '\0';
}

static void add_own(struct tt_net_library *library, const char *directory, const char *which)
{
  memset(library, 0, sizeof(*library));
  snprintf(library->report.asked, sizeof(library->report.asked), "libtutti-net-%s.so", which);
  for (int i = 0; i < TT_PLUGIN_OWN_PLACES; i++)
    tt_plugin_own_file(directory, library->report.asked, i, library->files[i], sizeof(library->files[i]));
}

int tt_net_list_parse(const char *value, bool secure, const char *own_directory, struct tt_net_library *libraries)
{
  static const char *const own[] = {"ib", "ofi", "socket"};
  int count = 0;
  bool none = value && tt_text_equal_nocase(value, strlen(value), "none");
  if (secure && value && !none) {
    TT_INFO(TT_INIT | TT_NET, "NET/Plugin: NCCL_NET_PLUGIN is ignored in a program with raised privileges");
    value = NULL;
  }
  const char *cursor = value, *piece;
  size_t bytes;
  while (!none && value && tt_text_next(&cursor, ',', &piece, &bytes)) {
    if (bytes == 0) continue;
    if (count == TT_NET_MAX_NAMED) {
      TT_WARN("NCCL_NET_PLUGIN lists more than %d plugins; those from %s on are ignored", TT_NET_MAX_NAMED, piece);
      break;
    }
    add_external(&libraries[count++], piece, bytes, true);
  }
  if (!value) add_external(&libraries[count++], "libnccl-net.so", strlen("libnccl-net.so"), false);
  for (size_t i = 0; i < TT_COUNT(own); i++) add_own(&libraries[count++], own_directory, own[i]);
  return count;
}

struct tt_net_library *tt_net_list_at(int i)
{
  if (!list.made) {
    list.count = tt_net_list_parse(tt_param_string(TT_PARAM_NCCL_NET_PLUGIN), tt_plugin_secure(), tt_host_library_dir(),
                                   list.libraries);
    list.made = true;
  }
  return i < list.count ? &list.libraries[i] : NULL;
}

/* ---- Loading ---- */

/* Opens the first of the files that can be opened. The first file's reason is kept, unless it does not exist and the
 * second one does. */
static bool open_file(struct tt_net_library *library)
{
  char reason[TT_PLUGIN_REASON_BYTES], second[TT_PLUGIN_REASON_BYTES];
  enum tt_plugin_found found = tt_plugin_open(library->files[0], &library->handle, reason);
  if (found != TT_PLUGIN_OPEN && library->files[1][0]) {
    enum tt_plugin_found other = tt_plugin_open(library->files[1], &library->handle, second);
    if (found == TT_PLUGIN_MISSING && other == TT_PLUGIN_BROKEN) memcpy(reason, second, sizeof(reason));
    if (found == TT_PLUGIN_MISSING || other == TT_PLUGIN_OPEN) found = other;
  }
  if (found == TT_PLUGIN_OPEN) return true;

  if (found == TT_PLUGIN_BROKEN) {
    pass_over(library, "%s", reason);
    TT_INFO(TT_INIT | TT_NET, "NET/Plugin: %s: %s", library->report.asked, reason);
  } else if (library->report.named) {
    bool suffix = library->files[1][0] != '\0';
    pass_over(library, "no such file%s%.200s", suffix ? ", and no " : "", library->files[1]);
    TT_INFO(TT_INIT | TT_NET, "NET/Plugin: Could not find: %s%s%s%s", library->files[0], suffix ? " [" : "",
            library->files[1], suffix ? "]" : "");
  } else {
    pass_over(library, "not installed");
  }
  return false;
}

static bool holds_collnet(const struct tt_net_library *library)
{
  for (int version = 1; version < 32; version++) {
    char symbol[40];
    snprintf(symbol, sizeof(symbol), "ncclCollNetPlugin_v%d", version);
    if (dlsym(library->handle, symbol)) return true;
  }
  return false;
}

/* A struct that is too short to have `read` has nothing to offer. */
static void bind_counters(struct tt_net_plugin *plugin, const struct tt_net_counters *counters)
{
  size_t needed = offsetof(struct tt_net_counters, read) + sizeof(counters->read);
  if (!counters || counters->size < needed || !counters->read) return;
  plugin->counters = counters;
  plugin->can |= TT_NET_CAN_COUNT;
}

/* Finds the symbols of all versions, known or not, and binds the newest known one. */
static bool bind_newest(struct tt_net_library *library)
{
  struct tt_net_report *report = &library->report;
  const void *newest = NULL;
  report->exports = 0;
  report->version = 0;
  int highest = 0;
  for (int version = 1; version < 32; version++) {
    char symbol[32];
    snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
    const void *found = dlsym(library->handle, symbol);
    if (!found) continue;
    report->exports |= 1u << version;
    highest = version;
    if (!tt_net_shim_of(version)) continue;
    newest = found;
    report->version = version;
  }
  const char *file = library->files[0];
  if (!newest && highest > 0) {
    pass_over(library, "it exports the net plugin ABI v%d only, and this library knows v%d to v%d", highest,
              TT_NET_OLDEST, TT_NET_NEWEST);
    return false;
  }
  if (!newest && holds_collnet(library)) {
    library->collnet_only = true;
    pass_over(library, "it holds a collnet plugin only");
    return false;
  }
  if (!newest) {
    pass_over(library, "it exports no ncclNetPlugin_v%d to v%d, so it is no net plugin", TT_NET_OLDEST, TT_NET_NEWEST);
    TT_INFO(TT_INIT | TT_NET, "External network plugin %s is unsupported", file);
    return false;
  }
  tt_plugin_path(newest, report->path, sizeof(report->path));
  const char *missing = tt_net_bind(&library->plugin, tt_net_shim_of(report->version), newest);
  if (missing) {
    pass_over(library, "its ncclNetPlugin_v%d has no %s", report->version, missing);
    report->version = 0;
    return false;
  }
  library->plugin.path = report->path;
  bind_counters(&library->plugin, dlsym(library->handle, TT_NET_COUNTERS_SYMBOL));
  report->can = library->plugin.can;
  snprintf(report->name, sizeof(report->name), "%s", library->plugin.abi.v12.name);
  return true;
}

bool tt_net_library_load(struct tt_net_library *library)
{
  if (library->report.state == TT_NET_PASSED) return false;
  if (!library->handle) {
    if (!open_file(library)) return false;
    if (!bind_newest(library)) {
      dlclose(library->handle);
      library->handle = NULL;
      return false;
    }
    TT_INFO(TT_INIT | TT_NET, "NET/Plugin: Loaded net plugin %s (v%d)", library->report.name, library->report.version);
  }
  library->users++;
  return true;
}

void tt_net_library_unload(struct tt_net_library *library)
{
  if (--library->users > 0) return;
  TT_INFO(TT_INIT | TT_NET, "NET/Plugin: Unloading plugin %s", library->report.name);
  dlclose(library->handle);
  library->handle = NULL;
}

/* ---- Starting ---- */

/* Used where nobody profiles. A handle of NULL tells the plugin so. */
static ncclResult_t drop_event(void **handle, int type, void *phandle, int64_t plugin, void *data)
{
  (void)phandle, (void)plugin, (void)data;
  if (type == ncclProfilerNetEventStart && handle) *handle = NULL;
  return ncclSuccess;
}

/* Passed over, too, but somebody should know that the network would be there. */
static bool refuse(const struct tt_net_library *library, const char *remedy)
{
  TT_WARN("net plugin %s (%s) is refused: %s; %s, or choose another network with NCCL_NET", library->report.name,
          library->report.path, library->report.reason, remedy);
  return false;
}

/* Counts the devices and refuses those that Tutti cannot drive. */
static bool look_at_devices(struct tt_net_library *library, struct tt_net *net)
{
  int ndev = 0;
  ncclResult_t result = library->plugin.abi.v12.devices(&ndev);
  if (result != ncclSuccess || ndev <= 0) {
    if (result != ncclSuccess)
      pass_over(library, "counting its devices failed (error %d)", (int)result);
    else
      pass_over(library, "no devices on this machine");
    return false;
  }
  if (ndev > TT_NET_MOST_DEVICES) {
    pass_over(library, "it counts %d devices, of which at most %d are possible", ndev, TT_NET_MOST_DEVICES);
    return refuse(library, "have it offer fewer");
  }
  for (int dev = 0; dev < ndev; dev++) {
    ncclNetProperties_v12_t props;
    tt_net_default_properties(dev, &props);
    result = library->plugin.shim->get_properties(net, dev, &props);
    if (result != ncclSuccess) {
      pass_over(library, "the properties of its device %d cannot be read (error %d)", dev, (int)result);
      return false;
    }
    if (props.netDeviceType == NCCL_NET_DEVICE_HOST) continue;
    pass_over(library, "its device %d needs device offload (type %d, version %d), which Tutti does not have", dev,
              (int)props.netDeviceType, props.netDeviceVersion);
    return refuse(library, "switch the offload off in the plugin");
  }
  library->report.ndev = ndev;
  return true;
}

bool tt_net_library_start(struct tt_net_library *library, const struct tt_net_request *request, struct tt_net **out)
{
  *out = NULL;
  if (!tt_net_library_load(library)) return false;
  struct tt_net *net;
  if (TT_CALLOC(&net, 1) != ncclSuccess) {
    tt_net_library_unload(library);
    return false;
  }
  net->plugin = &library->plugin;
  net->library = library;
  net->users = 1;
  net->comm_id = request->comm_id;
  net->config.trafficClass =
      request->traffic_class == NCCL_CONFIG_UNDEF_INT ? NCCL_NET_TRAFFIC_CLASS_UNDEF : request->traffic_class;
  net->profile = request->profile ? request->profile : drop_event;

  ncclResult_t result = library->plugin.shim->init(net);
  if (result != ncclSuccess) {
    pass_over(library, "its init failed (error %d)", (int)result);
    TT_INFO(TT_INIT | TT_NET, "NET/Plugin: Failed to initialize NET plugin %s", library->report.name);
    free(net);
    tt_net_library_unload(library);
    return false;
  }
  if (!look_at_devices(library, net)) {
    TT_INFO(TT_INIT | TT_NET, "NET/Plugin: Failed to initialize NET plugin %s: %s", library->report.name,
            library->report.reason);
    tt_net_drop(net);
    return false;
  }
  library->report.state = TT_NET_USABLE;
  *out = net;
  return true;
}

ncclResult_t tt_net_drop(struct tt_net *net)
{
  tt_net_before();
  ncclResult_t result = tt_net_checked(net, "finalize", net->plugin->shim->finalize(net));
  tt_net_library_unload(net->library);
  free(net);
  return result;
}

/* ---- plugin/net.h ---- */

const char *tt_net_path(const struct tt_net *net)
{
  return net->library->report.path;
}

struct tt_net *tt_net_retain(struct tt_net *net)
{
  tt_net_list_lock();
  net->users++;
  tt_net_list_unlock();
  return net;
}

ncclResult_t tt_net_close(struct tt_net *net)
{
  if (!net) return ncclSuccess;
  tt_net_list_lock();
  ncclResult_t result = --net->users > 0 ? ncclSuccess : tt_net_drop(net);
  tt_net_list_unlock();
  return result;
}

void tt_net_survey(void)
{
  const struct tt_net_request request = {.traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF};
  struct tt_net_library *library;
  tt_net_list_lock();
  for (int i = 0; (library = tt_net_list_at(i)); i++) {
    struct tt_net *net;
    if (library->report.state == TT_NET_UNTRIED && tt_net_library_start(library, &request, &net)) tt_net_drop(net);
  }
  tt_net_list_unlock();
}

bool tt_net_report(int i, struct tt_net_report *report)
{
  tt_net_list_lock();
  const struct tt_net_library *library = i < 0 ? NULL : tt_net_list_at(i);
  if (library) *report = library->report;
  tt_net_list_unlock();
  return library != NULL;
}

ncclResult_t tt_net_reset(void)
{
  ncclResult_t result = ncclSuccess;
  tt_net_list_lock();
  for (int i = 0; i < list.count && result == ncclSuccess; i++) {
    if (list.libraries[i].users > 0)
      result = TT_FAIL(ncclInvalidUsage, "the list of net plugins cannot be forgotten while %s is in use",
                       list.libraries[i].report.name);
  }
  if (result == ncclSuccess) {
    list.made = false;
    list.count = 0;
  }
  tt_net_list_unlock();
  return result;
}
