/* The sections of tutti-info; see info.h. */
#include "info.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "base/host.h"
#include "base/param.h"
#include "device/choose.h"
#include "kernels/host/host.h"
#include "plugin/net.h"
#include "plugin/tuner.h"
#include "tutti.h"

void info_library(struct info_out *out, const char *path)
{
  char text[32];
  int version = 0, api = 0;
  info_begin(out, "library", "tutti");
  if (tuttiGetVersion(&version) == ncclSuccess)
    snprintf(text, sizeof(text), "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  else
    snprintf(text, sizeof(text), "unknown");
  info_text(out, "version", text);
  if (ncclGetVersion(&api) == ncclSuccess)
    snprintf(text, sizeof(text), "%d.%d.%d", api / 10000, api / 100 % 100, api % 100);
  else
    snprintf(text, sizeof(text), "unknown");
  info_text(out, "nccl_api", text);
  info_text(out, "path", path);
  info_text(out, "library_directory", tt_host_library_dir());
  info_text(out, "host", tt_host_name());
  snprintf(text, sizeof(text), "0x%016" PRIx64, tt_host_hash());
  info_text(out, "host_identity", text);
  info_end(out);
}

static void print_backend(struct info_out *out, const struct tt_device *device, int count)
{
  static const char *const protocols[TT_NUM_PROTOCOLS] = {
      [TT_PROTO_LL] = "LL", [TT_PROTO_LL128] = "LL128", [TT_PROTO_SIMPLE] = "Simple"};
  const char *can[TT_NUM_PROTOCOLS];
  int n = 0;
  info_number(out, "devices", count);
  for (int i = 0; i < count && device->properties != NULL; i++) {
    struct tt_device_properties properties = {.size = sizeof(properties)};
    char key[32], text[sizeof(properties.name) + sizeof(properties.pci) + 8];
    if (device->properties(i, &properties) != ncclSuccess) continue;
    snprintf(key, sizeof(key), "device_%d", i);
    snprintf(text, sizeof(text), "%.63s%s%.15s", properties.name, properties.pci[0] ? " at " : "", properties.pci);
    info_text(out, key, text);
  }
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    if (device->protocols & (1u << p)) can[n++] = protocols[p];
  info_words(out, "protocols", can, n);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    char key[48];
    snprintf(key, sizeof(key), "buffer_%s", protocols[p]);
    if (device->protocols & (1u << p)) info_number(out, key, (long long)device->default_buffer[p]);
  }
}

static void print_device_library(struct info_out *out, const char *name)
{
  struct tt_device_report report;
  bool usable = tt_device_load(name, &report);
  info_begin(out, "device", usable ? report.device->name : name);
  info_text(out, "path", report.path);
  info_text(out, "state", usable ? "usable" : "passed over");
  if (!usable || out->json) info_text(out, "reason", usable ? NULL : report.reason);
  if (usable) print_backend(out, report.device, report.devices);
  info_end(out);
}

void info_devices(struct info_out *out)
{
  const struct tt_device *host = tt_host_device();
  const char *wanted = tt_param_string(TT_PARAM_TUTTI_DEVICE);
  int count = 0;
  print_device_library(out, "cuda");
  if (wanted != NULL && strcasecmp(wanted, "auto") != 0 && strcmp(wanted, "cuda") != 0 &&
      strcasecmp(wanted, host->name) != 0)
    print_device_library(out, wanted);
  info_begin(out, "device", host->name);
  info_text(out, "state", "usable");
  info_number(out, "processors", sysconf(_SC_NPROCESSORS_ONLN));
  if (host->count(&count) == ncclSuccess) print_backend(out, host, count);
  info_end(out);
}

static void print_versions(struct info_out *out, uint32_t exports)
{
  char text[32][8];
  const char *words[32];
  int n = 0;
  for (int v = 0; v < 32; v++) {
    if (!(exports & (1u << v))) continue;
    snprintf(text[n], sizeof(text[n]), "v%d", v);
    words[n] = text[n];
    n++;
  }
  info_words(out, "abi_versions", words, n);
}

static void print_abilities(struct info_out *out, unsigned can)
{
  static const struct {
    unsigned bit;
    const char *name;
  } abilities[] = {
      {TT_NET_CAN_DMABUF, "dmabuf"},
      {TT_NET_CAN_FLUSH, "flush"},
      {TT_NET_CAN_DEVICE_MR, "device_offload"},
      {TT_NET_CAN_CONSUMED, "consumed"},
      {TT_NET_CAN_VDEVICE, "virtual_devices"},
      {TT_NET_CAN_ATTR, "attributes"},
      {TT_NET_CAN_LARGE, "large_messages"},
      {TT_NET_CAN_OPTIONAL_RECV, "optional_receive"},
      {TT_NET_CAN_PROFILE, "profiling"},
      {TT_NET_CAN_TRAFFIC_CLASS, "traffic_class"},
      {TT_NET_CAN_CONTEXT, "context"},
      {TT_NET_CAN_COUNT, "counters"},
  };
  const char *words[sizeof(abilities) / sizeof(abilities[0])];
  int n = 0;
  for (size_t i = 0; i < sizeof(abilities) / sizeof(abilities[0]); i++)
    if (can & abilities[i].bit) words[n++] = abilities[i].name;
  info_words(out, "capabilities", words, n);
}

void info_plugins(struct info_out *out)
{
  static const char *const states[] = {
      [TT_NET_UNTRIED] = "not tried", [TT_NET_USABLE] = "usable", [TT_NET_PASSED] = "passed over"};
  struct tt_net_report report;
  tt_net_survey();
  for (int i = 0; tt_net_report(i, &report); i++) {
    info_begin(out, "net_plugin", report.asked);
    info_text(out, "network", report.name[0] ? report.name : NULL);
    info_text(out, "path", report.path[0] ? report.path : NULL);
    info_text(out, "asked_by", report.named ? "NCCL_NET_PLUGIN" : "default search");
    print_versions(out, report.exports);
    info_number(out, "abi_in_use", report.version);
    info_number(out, "devices", report.ndev);
    print_abilities(out, report.can);
    info_text(out, "state", states[report.state]);
    if (report.reason[0] || out->json) info_text(out, "reason", report.reason[0] ? report.reason : NULL);
    info_end(out);
  }
}

/* Of the net plugin that comes first; false if there is none. */
static bool find_net(char *path, size_t size)
{
  struct tt_net_report report;
  tt_net_survey();
  for (int i = 0; tt_net_report(i, &report); i++) {
    if (report.state != TT_NET_USABLE) continue;
    snprintf(path, size, "%s", report.path);
    return true;
  }
  return false;
}

void info_tuners(struct info_out *out)
{
  struct tt_tuner_report report;
  char net[sizeof(((struct tt_net_report *)NULL)->path)];
  const char *net_path = find_net(net, sizeof(net)) ? net : NULL;
  for (int i = 0; tt_tuner_report(i, net_path, &report); i++) {
    info_begin(out, "tuner_plugin", report.asked);
    info_text(out, "tuner", report.name[0] ? report.name : NULL);
    info_text(out, "path", report.path[0] ? report.path : NULL);
    info_text(out, "asked_by", report.asked_by);
    info_number(out, "abi_in_use", report.version);
    info_text(out, "state", report.usable ? "usable" : "passed over");
    if (report.reason[0] || out->json) info_text(out, "reason", report.reason[0] ? report.reason : NULL);
    info_end(out);
  }
}

static void print_allowed(struct info_out *out, const struct tt_param *param)
{
  static const char *const types[] = {
      [TT_PARAM_INT] = "integer", [TT_PARAM_BOOL] = "boolean", [TT_PARAM_STRING] = "text"};
  char text[64];
  info_text(out, "type", types[param->type]);
  if (param->type == TT_PARAM_INT) {
    snprintf(text, sizeof(text), "%" PRId64 "..%" PRId64, param->min, param->max);
    info_text(out, "range", text);
  }
  if (param->type != TT_PARAM_STRING) info_number(out, "default", param->default_int);
  info_text(out, "must_agree", param->agreed ? "yes" : "no");
  info_text(out, "help", param->help);
}

void info_params(struct info_out *out, bool verbose)
{
  static const char *const origins[] = {[TT_PARAM_FROM_DEFAULT] = "default",
                                        [TT_PARAM_FROM_ENV] = "environment",
                                        [TT_PARAM_FROM_USER_FILE] = "user file",
                                        [TT_PARAM_FROM_SYSTEM_FILE] = "system file"};
  for (int id = 0; id < TT_PARAM_COUNT; id++) {
    const struct tt_param *param = tt_param_describe((enum tt_param_id)id);
    const char *file = NULL;
    enum tt_param_origin origin = tt_param_origin((enum tt_param_id)id, &file);
    info_begin(out, "param", param->name);
    if (param->type == TT_PARAM_STRING)
      info_text(out, "value", tt_param_string((enum tt_param_id)id));
    else
      info_number(out, "value", tt_param_int((enum tt_param_id)id));
    info_text(out, "origin", origins[origin]);
    if (file) info_text(out, "file", file);
    if (verbose || out->json) print_allowed(out, param);
    info_end(out);
  }
}
