/* See choose.h: from TUTTI_DEVICE to a backend. */
#include "device/choose.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/check.h"
#include "base/param.h"
#include "plugin/library.h"

/* What was said of a choice, so that it is said once and not for each communicator. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct tt_device *told;

static void tell(const struct tt_device *device, const char *why)
{
  pthread_mutex_lock(&lock);
  bool first = told != device;
  told = device;
  pthread_mutex_unlock(&lock);
  if (first) TT_INFO(TT_INIT, "Using device %s: %s", device->name, why);
}

static ncclResult_t find_auto(const struct tt_device *host, const struct tt_device **device)
{
  struct tt_device_report report;
  char why[sizeof(report.reason) + 64];
  bool cuda = tt_device_load("cuda", &report);
  *device = cuda ? report.device : host;
  if (cuda)
    snprintf(why, sizeof(why), "%d devices in %.400s", report.devices, report.path);
  else
    snprintf(why, sizeof(why), "cuda is passed over: %s", report.reason);
  tell(*device, why);
  return ncclSuccess;
}

ncclResult_t tt_device_find(const struct tt_device *host, const struct tt_device **device)
{
  const char *wanted = tt_param_string(TT_PARAM_TUTTI_DEVICE);
  *device = NULL;
  if (wanted != NULL && strchr(wanted, '/') != NULL && tt_plugin_secure()) {
    TT_INFO(TT_INIT, "TUTTI_DEVICE=%s is ignored in a program with raised privileges: it names a file", wanted);
    wanted = NULL;
  }
  if (wanted == NULL || strcasecmp(wanted, "auto") == 0) return find_auto(host, device);
  if (strcasecmp(wanted, host->name) == 0) {
    *device = host;
    tell(host, "TUTTI_DEVICE asks for it");
    return ncclSuccess;
  }
  struct tt_device_report report;
  if (!tt_device_load(wanted, &report))
    return TT_FAIL(ncclInvalidUsage, "TUTTI_DEVICE is \"%s\", and the device library %s cannot be used: %s", wanted,
                   report.path, report.reason);
  *device = report.device;
  tell(report.device, "TUTTI_DEVICE asks for it");
  return ncclSuccess;
}
