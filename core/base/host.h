/* Who and where this process is. */
#ifndef TT_BASE_HOST_H
#define TT_BASE_HOST_H

#include <stdint.h>
#include <stddef.h>

const char *tt_host_name(void); /* up to the first dot; % and / become - */
uint64_t tt_host_hash(void);    /* boot id, host name, network namespace, or NCCL_HOSTID: a hint, never a proof */
uint64_t tt_host_process(void); /* random, new after fork: equal means the same address space */
/* The directory of this library's file, links resolved: for plugins beside it. "" if it cannot be found. */
const char *tt_host_library_dir(void);
/* For programs that link these sources without being the library, and know where it is: what the above then returns.
 * Before its first use. */
void tt_host_set_library_dir(const char *directory);

/* Raises the soft limit of open files to the hard one, and says so at INFO: a socket a peer needs more than 1024. */
void tt_host_raise_file_limit(void);
/* Puts the remedy into a sentence after `error`: " (the limit of open files is 20; raise it with ulimit -n)" where that
 * means that files are short, else "". Returns text; errno stays. */
const char *tt_host_file_hint(int error, char *text, size_t size);

#endif
