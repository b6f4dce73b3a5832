/* The host's load for --load: a thread that multiplies matrices until it is stopped. */
#ifndef PERF_LOAD_H
#define PERF_LOAD_H

#include <stdbool.h>
#include "backend.h"

/* As perf_backend's load_start and load_stop. NULL: no memory, or no thread could be started. */
void *perf_host_load_start(int device);
bool perf_host_load_stop(void *load, struct perf_load_result *result);

#endif
