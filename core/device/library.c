/* Loading the libraries of device backends; see choose.h. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "base/host.h"
#include "device/choose.h"
#include "plugin/library.h"

#define MAX_LIBRARIES 16
#define MAX_NAME 32
/* The first version that is stable, and its size: later ones only append to it. */
#define OLDEST_VERSION 1
#define OLDEST_SIZE offsetof(struct tt_device, describe)

/* Every library that was asked for, usable or not, by what was asked. Nothing is ever taken out. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tt_device_report reports[MAX_LIBRARIES];
static int nreports;

/* ---- Where ---- */

static bool is_name(const char *text)
{
  size_t length = strlen(text);
  return length > 0 && length <= MAX_NAME &&
         strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == length;
}

bool tt_device_file(const char *directory, const char *name_or_path, int i, char file[PATH_MAX])
{
  char name[sizeof("libtutti-device-.so") + MAX_NAME];
  if (strchr(name_or_path, '/') != NULL) return i == 0 && snprintf(file, PATH_MAX, "%s", name_or_path) < PATH_MAX;
  if (!is_name(name_or_path) || i >= TT_PLUGIN_OWN_PLACES) return false;
  snprintf(name, sizeof(name), "libtutti-device-%s.so", name_or_path);
  return tt_plugin_own_file(directory, name, i, file, PATH_MAX);
}

/* ---- What is asked of a backend ---- */

/* Functions that came after version 1 may lie behind the end of a library's table. */
static const char *missing_later(const struct tt_device *device)
{
#define LATER(feature, name)                                                                                           \
  {                                                                                                                    \
    feature, offsetof(struct tt_device, name), sizeof(device->name), #name                                             \
  }
  static const struct {
    uint32_t feature;
    size_t offset, size;
    const char *name;
  } functions[] = {
      LATER(TT_DEVICE_DESCRIBED, peer_status),
      LATER(TT_DEVICE_DESCRIBED, describe),
      LATER(TT_DEVICE_HOST_MEMORY, map_host),
      LATER(TT_DEVICE_HOST_MEMORY, unmap_host),
      LATER(TT_DEVICE_JOIN, check_stream),
      LATER(TT_DEVICE_JOIN, follow),
      LATER(TT_DEVICE_GRAPHS, capturing),
      LATER(TT_DEVICE_GRAPHS, at_graph_end),
      LATER(TT_DEVICE_USER_MEMORY, user_alloc),
      LATER(TT_DEVICE_USER_MEMORY, user_free),
      LATER(TT_DEVICE_USER_MEMORY, find_buffer),
      LATER(TT_DEVICE_USER_MEMORY, export_buffer),
      LATER(TT_DEVICE_MULTICAST, team_check),
      LATER(TT_DEVICE_MULTICAST, team_create),
      LATER(TT_DEVICE_MULTICAST, team_import),
      LATER(TT_DEVICE_MULTICAST, team_add),
      LATER(TT_DEVICE_MULTICAST, team_bind),
      LATER(TT_DEVICE_MULTICAST, team_leave),
      LATER(TT_DEVICE_COPY, copy),
      LATER(TT_DEVICE_COPY, copied),
      LATER(TT_DEVICE_REACH, reach_buffer),
      LATER(TT_DEVICE_DMABUF, export_dmabuf),
      LATER(TT_DEVICE_PARTS, import_parts),
      LATER(TT_DEVICE_FLUSH, flush),
      LATER(TT_DEVICE_CHECK, check_buffer),
  };
#undef LATER
  for (size_t i = 0; i < TT_COUNT(functions); i++) {
    void (*function)(void) = NULL;
    if (!(device->features & functions[i].feature)) continue;
    if (device->size >= functions[i].offset + functions[i].size)
      memcpy(&function, (const char *)device + functions[i].offset, sizeof(function));
    if (!function) return functions[i].name;
  }
  return NULL;
}

static const char *missing_function(const struct tt_device *device)
{
  const struct {
    uint32_t features; /* that need it; 0: all backends do */
    bool there;
    const char *name;
  } functions[] = {
      {0, device->count, "count"},
      {0, device->launch, "launch"},
      {TT_DEVICE_STREAMS | TT_DEVICE_MEMORY, device->open, "open"},
      {TT_DEVICE_STREAMS | TT_DEVICE_MEMORY, device->close, "close"},
      {TT_DEVICE_STREAMS | TT_DEVICE_MEMORY, device->current, "current"},
      {TT_DEVICE_STREAMS | TT_DEVICE_MEMORY, device->properties, "properties"},
      {TT_DEVICE_STREAMS, device->stop, "stop"},
      {TT_DEVICE_STREAMS, device->drain, "drain"},
      {TT_DEVICE_STREAMS, device->status, "status"},
      {TT_DEVICE_MEMORY, device->alloc, "alloc"},
      {TT_DEVICE_MEMORY, device->release, "release"},
      {TT_DEVICE_MEMORY, device->can_map, "can_map"},
      {TT_DEVICE_MEMORY, device->export_memory, "export_memory"},
      {TT_DEVICE_MEMORY, device->import_memory, "import_memory"},
  };
  for (size_t i = 0; i < TT_COUNT(functions); i++)
    if (!functions[i].there && (functions[i].features == 0 || (device->features & functions[i].features)))
      return functions[i].name;
  if (!(device->features & TT_DEVICE_STREAMS) && !device->progress) return "progress";
  if (!(device->features & TT_DEVICE_STREAMS) && !device->finish) return "finish";
  if (!device->conn_open != !device->conn_close) return device->conn_open ? "conn_close" : "conn_open";
  return missing_later(device);
}

const char *tt_device_refuse(const struct tt_device *device, char *reason, size_t size)
{
  if (device->size < OLDEST_SIZE) {
    snprintf(reason, size,
             "its struct tt_device has %zu bytes, that of version %d has %zu: it was built for a draft of the device "
             "interface; rebuild it",
             device->size, OLDEST_VERSION, OLDEST_SIZE);
    return reason;
  }
  if (device->version < OLDEST_VERSION) {
    snprintf(
        reason, size,
        "it has version %u of the device interface, a draft, and this library needs version %d or later; rebuild it",
        device->version, OLDEST_VERSION);
    return reason;
  }
  const char *missing = missing_function(device);
  if (missing) {
    snprintf(reason, size, "it has no function %s", missing);
    return reason;
  }
  if (!device->name || !device->name[0] || device->protocols == 0 || device->protocols >= 1u << TT_NUM_PROTOCOLS) {
    snprintf(reason, size, "its name or protocols (0x%x) are none", device->protocols);
    return reason;
  }
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (!(device->protocols & (1u << p)) || device->default_buffer[p] > 0) continue;
    snprintf(reason, size, "it names no default buffer for protocol %d", p);
    return reason;
  }
  return NULL;
}

/* ---- Loading ---- */

static void log_for_backend(int level, const char *text)
{
  bool warning = level <= TT_LOG_WARN;
  if (warning || tt_log_enabled((enum tt_log_level)level, TT_INIT))
    tt_log_line((enum tt_log_level)level, warning ? TT_ALL : TT_INIT, "device", 0, "backend", "%s", text);
}

/* Opens the first file that is there. report->path is then that file, else the first one that was tried. */
static void *open_file(struct tt_device_report *report)
{
  char file[PATH_MAX], reason[TT_PLUGIN_REASON_BYTES];
  void *handle = NULL;
  report->missing = true;
  for (int i = 0; report->missing && tt_device_file(tt_host_library_dir(), report->asked, i, file); i++) {
    enum tt_plugin_found found = tt_plugin_open(file, &handle, reason);
    report->missing = found == TT_PLUGIN_MISSING;
    if (i > 0 && report->missing) break;
    snprintf(report->path, sizeof(report->path), "%s", file);
    snprintf(report->reason, sizeof(report->reason), "%s", reason);
  }
  if (report->path[0] == '\0') {
    report->missing = false;
    snprintf(report->path, sizeof(report->path), "%s", report->asked);
    snprintf(report->reason, sizeof(report->reason),
             "it is neither the name of a library (at most %d letters, digits, - and _) nor a path", MAX_NAME);
  }
  return handle;
}

static const struct tt_device *start(void *handle, struct tt_device_report *report)
{
  char *reason = report->reason;
  size_t size = sizeof(report->reason);
  tt_device_entry *entry = (tt_device_entry *)dlsym(handle, TT_DEVICE_SYMBOL);
  if (!entry) {
    snprintf(reason, size, "it exports no %s, so it is no device library", TT_DEVICE_SYMBOL);
    return NULL;
  }
  char why[400] = "";
  const struct tt_device *device = entry(log_for_backend, why, sizeof(why));
  why[sizeof(why) - 1] = '\0';
  if (!device) {
    snprintf(reason, size, "%s", why[0] ? why : "it gave no reason");
    return NULL;
  }
  if (tt_device_refuse(device, reason, size)) return NULL;
  ncclResult_t result = device->count(&report->devices);
  if (result == ncclSuccess && report->devices > 0) return device;
  if (result != ncclSuccess)
    snprintf(reason, size, "counting its devices failed (error %d)", (int)result);
  else
    snprintf(reason, size, "there are no devices of its kind on this machine");
  return NULL;
}

static void load(const char *name_or_path, struct tt_device_report *report)
{
  memset(report, 0, sizeof(*report));
  if (strlen(name_or_path) >= sizeof(report->asked)) {
    snprintf(report->path, sizeof(report->path), "%.64s...", name_or_path);
    snprintf(report->reason, sizeof(report->reason), "its path is longer than %zu bytes", sizeof(report->asked) - 1);
    return;
  }
  snprintf(report->asked, sizeof(report->asked), "%s", name_or_path);
  void *handle = open_file(report);
  if (!handle) return;
  report->reason[0] = '\0';
  report->device = start(handle, report);
}

bool tt_device_load(const char *name_or_path, struct tt_device_report *report)
{
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < nreports && strcmp(reports[i].asked, name_or_path) != 0) i++;
  if (i == nreports && nreports < MAX_LIBRARIES) load(name_or_path, &reports[nreports++]);
  if (i < nreports) {
    *report = reports[i];
  } else {
    *report = (struct tt_device_report){.reason = "too many other device libraries were tried in this process"};
    snprintf(report->path, sizeof(report->path), "%s", name_or_path);
  }
  pthread_mutex_unlock(&lock);
  return report->device != NULL;
}
