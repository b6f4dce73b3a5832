/* Device backends: which one TUTTI_DEVICE asks for, and loading it.
 *
 * A backend other than the host's is a library `libtutti-device-NAME.so` in the directory of Tutti's plugins, or one
 * that TUTTI_DEVICE names by its path. It is loaded once a process and stays, since its kernels and contexts may be in
 * use until the very end. Any thread. */
#ifndef TT_DEVICE_CHOOSE_H
#define TT_DEVICE_CHOOSE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"
#include "tutti/device.h"

/* What became of a library. */
struct tt_device_report {
  char asked[1024]; /* name or path */
  char path[PATH_MAX];
  const struct tt_device *device; /* NULL: it cannot be used, and `reason` says why */
  int devices;                    /* that it has here */
  bool missing;                   /* there is no such library */
  char reason[512];               /* "" for a backend that can be used */
};

/* The backend that TUTTI_DEVICE names: auto (CUDA if it has devices here, else the host), host, the name of a library
 * or the path of one. `host` is the host's own. ncclInvalidUsage, naming the library, its path and the reason, for one
 * that cannot be used. */
ncclResult_t tt_device_find(const struct tt_device *host, const struct tt_device **device);

/* Loads a library, or finds that it was loaded or tried before. False with a reason if it cannot be used. */
bool tt_device_load(const char *name_or_path, struct tt_device_report *report);

/* For tests: what keeps a backend from being used by this core, or NULL. */
const char *tt_device_refuse(const struct tt_device *device, char *reason, size_t size);
/* Likewise: number `i` of the places where a name or path is looked for. False if there is none. */
bool tt_device_file(const char *directory, const char *name_or_path, int i, char file[PATH_MAX]);

#endif
