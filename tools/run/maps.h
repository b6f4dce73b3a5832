/* Which NCCL a running process has mapped. */
#ifndef RUN_MAPS_H
#define RUN_MAPS_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

struct run_maps {
  bool readable;        /* false: the process is gone, or not ours */
  bool loaded;          /* a C library is mapped: the dynamic linker is at work or done */
  bool ours;            /* the drop-in */
  bool works;           /* the other one has made a communicator */
  char other[PATH_MAX]; /* another libnccl.so*, or "" */
};

/* Reads the text of /proc/PID/maps. `ours` is the drop-in's path, links resolved. */
void run_maps_scan(FILE *file, const char *ours, struct run_maps *maps);
void run_maps_look(pid_t pid, const char *ours, struct run_maps *maps);

#endif
