/* The library's only visible symbol: the backend, or why it cannot be used here. */
#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/state.h"

static tt_device_log *log_line;

static void sink(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                 const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)func;
  if (log_line != NULL) log_line((int)level, text);
}

/* Called where CUDA's runtime found no GPU. Writes the reason. */
static void explain(cudaError_t error, char *why, size_t why_size)
{
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (error == cudaErrorInsufficientDriver)
    snprintf(why, why_size, "the CUDA driver is made for CUDA %d.%d, and this library needs %d.%d: install a newer one",
             driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  else if (error != cudaSuccess && error != cudaErrorNoDevice)
    snprintf(why, why_size, "CUDA cannot start: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
  else if (visible != NULL)
    snprintf(why, why_size, "CUDA finds no GPU, with CUDA_VISIBLE_DEVICES=\"%s\"", visible);
  else
    snprintf(why, why_size, "CUDA finds no GPU");
}

__attribute__((visibility("default"))) tt_device_entry tutti_device;

const struct tt_device *tutti_device(tt_device_log *log, char *why, size_t why_size)
{
  int devices = 0;
  log_line = log;
  tt_log_redirect(sink);
  if (!tt_cuda_driver_load(why, why_size)) return NULL;
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return tt_cuda_device();
  cudaGetLastError();
  explain(error, why, why_size);
  return NULL;
}
