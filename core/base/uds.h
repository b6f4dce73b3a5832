/* Abstract Unix sockets: proof that two processes share a network namespace, and the way to pass file descriptors.
 * Abstract names do not cross network namespaces and leave nothing in a file system. */
#ifndef TT_BASE_UDS_H
#define TT_BASE_UDS_H

#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"
#include "base/timer.h"

#define TT_UDS_NAME_BYTES 64 /* a printable name without the leading zero byte, NUL-terminated */

/* Listens on a fresh random name. */
ncclResult_t tt_uds_listen(int *fd, char name[TT_UDS_NAME_BYTES]);
/* The same, with a name that begins with `prefix`, of at most 30 characters. */
ncclResult_t tt_uds_listen_as(const char *prefix, int *fd, char name[TT_UDS_NAME_BYTES]);
/* Connects; *fd = -1 and ncclSuccess when nobody listens there (another namespace, or gone). */
ncclResult_t tt_uds_connect(const char *name, int *fd);
/* Whether somebody listens there. True also where this process cannot look, for want of a descriptor most likely: that
 * says nothing of the other. */
bool tt_uds_is_there(const char *name);
/* Accepts one connection of the same user or of root; *fd = -1 if none came before the deadline. */
ncclResult_t tt_uds_accept(int listen_fd, int *fd, tt_deadline deadline);
/* Sends or receives `bytes` of data with an optional descriptor (-1: none), which needs at least one byte to
 * travel with. Received ones are close-on-exec; *fd = -1 if none came, and with fd NULL they are closed. Bounded by
 * the deadline. */
ncclResult_t tt_uds_send(int socket, const void *data, size_t bytes, int fd, tt_deadline deadline);
ncclResult_t tt_uds_recv(int socket, void *data, size_t bytes, int *fd, tt_deadline deadline);

#endif
