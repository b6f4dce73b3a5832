/* What a side that was killed leaves behind on this machine. */
#ifndef NETABI_LEFT_H
#define NETABI_LEFT_H

#include <sys/types.h>

/* Removes the files of shared memory that libfabric's provider shm made in a process of this user that has ended. Their
 * names begin with that process's number. */
void remove_left(pid_t ended);

#endif
