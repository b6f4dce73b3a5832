/* Who and where this process is. */
#ifndef TT_BASE_HOST_H
#define TT_BASE_HOST_H

#include <stdint.h>
#include <stddef.h>

const char *tt_host_name(void);   /* up to the first dot; % and / become - */
uint64_t tt_host_hash(void);      /* boot id, host name, network namespace, or NCCL_HOSTID: a hint, never a proof */
uint64_t tt_host_process(void);   /* random, new after fork: equal means the same address space */
/* The directory of this library's file, from dladdr: for plugins beside it. */
const char *tt_host_library_dir(void);

#endif
