/* See faulty_device.h. Users' memory and graphs are looked after by what a communicator's transport shares, which
 * begins with the table of the device that it is given. */
#include "tests/common/faulty_device.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include "transport/transport.h"

struct faulty_device faulty_device = {FAULTY_NEVER, FAULTY_NEVER, FAULTY_NEVER};
static _Atomic int next_rank = -1;
static uint32_t lacking;
static const struct tt_device *working;
static struct tt_device table;

static bool fails(_Atomic int *left)
{
  int now = atomic_load(left);
  while (now > 0 && !atomic_compare_exchange_weak(left, &now, now - 1)) continue;
  return now == 0;
}

static ncclResult_t import_memory(struct tt_device_context *context, const struct tt_device_export *in,
                                  struct tt_device_memory *memory)
{
  return fails(&faulty_device.imports) ? ncclUnhandledCudaError : working->import_memory(context, in, memory);
}

static ncclResult_t export_buffer(struct tt_device_context *context, const void *ptr, int local,
                                  struct tt_device_export *out)
{
  return fails(&faulty_device.exports) ? ncclUnhandledCudaError : working->export_buffer(context, ptr, local, out);
}

static ncclResult_t at_graph_end(struct tt_device_context *context, void *stream, void (*done)(void *), void *argument)
{
  if (!fails(&faulty_device.graph_ends)) return working->at_graph_end(context, stream, done, argument);
  done(argument);
  return ncclUnhandledCudaError;
}

void faulty_device_next(int rank, uint32_t lacks)
{
  atomic_store(&faulty_device.imports, FAULTY_NEVER);
  atomic_store(&faulty_device.exports, FAULTY_NEVER);
  atomic_store(&faulty_device.graph_ends, FAULTY_NEVER);
  lacking = lacks;
  atomic_store(&next_rank, rank);
}

ncclResult_t __real_tt_transport_env_create(const struct tt_transport_config *config, struct tt_bootstrap *bootstrap,
                                            struct tt_transport_env **out);
ncclResult_t __wrap_tt_transport_env_create(const struct tt_transport_config *config, struct tt_bootstrap *bootstrap,
                                            struct tt_transport_env **out);
ncclResult_t __wrap_tt_transport_env_create(const struct tt_transport_config *config, struct tt_bootstrap *bootstrap,
                                            struct tt_transport_env **out)
{
  int rank = config->rank;
  if (!atomic_compare_exchange_strong(&next_rank, &rank, -1))
    return __real_tt_transport_env_create(config, bootstrap, out);
  struct tt_transport_config with_faults = *config;
  working = config->device;
  table = *working;
  table.features &= ~lacking;
  table.import_memory = import_memory;
  table.export_buffer = export_buffer;
  table.at_graph_end = at_graph_end;
  with_faults.device = &table;
  return __real_tt_transport_env_create(&with_faults, bootstrap, out);
}
