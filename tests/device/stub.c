/* A backend that can only be loaded: each build of it has another fault. The number of its devices is that of the
 * environment variable STUB_DEVICES (2 if it is not set); STUB_CALLS counts how often it was asked for its backend. */
#include <stdio.h>
#include <stdlib.h>
#include "tutti/device.h"
#include "tutti/net.h"

#ifndef STUB_SYMBOL
#define STUB_SYMBOL tutti_device
#endif
#ifndef STUB_SIZE
#define STUB_SIZE sizeof(struct tt_device)
#endif
#ifndef STUB_VERSION
#define STUB_VERSION TT_DEVICE_VERSION
#endif
#ifndef STUB_LAUNCH
#define STUB_LAUNCH launch
#endif

static ncclResult_t count(int *devices)
{
  const char *text = getenv("STUB_DEVICES");
  *devices = text ? atoi(text) : 2;
  return *devices < 0 ? ncclUnhandledCudaError : ncclSuccess;
}

__attribute__((unused)) static ncclResult_t launch(struct tt_work *const *works, int nworks, void *stream,
                                                   struct tt_launch **out)
{
  (void)works, (void)nworks, (void)stream;
  *out = NULL;
  return ncclSuccess;
}

static ncclResult_t progress(struct tt_launch *launch, int *moved, int *done)
{
  (void)launch;
  *moved = *done = 1;
  return ncclSuccess;
}

static void finish(struct tt_launch *launch)
{
  (void)launch;
}

__attribute__((visibility("default"))) const struct tt_device *STUB_SYMBOL(tt_device_log *log, char *why, size_t size)
{
  static const struct tt_device device = {
      .size = STUB_SIZE,
      .name = STUB_NAME,
      .protocols = 1u << TT_PROTO_SIMPLE,
      .default_buffer = {[TT_PROTO_SIMPLE] = 1 << 16},
      .version = STUB_VERSION,
      .count = count,
      .launch = STUB_LAUNCH,
      .progress = progress,
      .finish = finish,
  };
  char calls[16];
  const char *before = getenv("STUB_CALLS");
  snprintf(calls, sizeof(calls), "%d", (before ? atoi(before) : 0) + 1);
  setenv("STUB_CALLS", calls, 1);
  log(NCCL_LOG_WARN, "a stub speaks");
#ifdef STUB_WHY
  snprintf(why, size, "%s", STUB_WHY);
  (void)device;
  return NULL;
#else
  (void)why, (void)size;
  return &device;
#endif
}
