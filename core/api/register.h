/* What users register with a communicator: buffers (register.c) and windows (window.c). */
#ifndef TT_API_REGISTER_H
#define TT_API_REGISTER_H

#include "plan/comm.h"

struct tt_user_window; /* transport/user_buffers.h */

enum tt_registered { TT_REGISTERED_BUFFER, TT_REGISTERED_WINDOW };

/* `buffer` and `bytes` are a range of memory. */
ncclResult_t tt_register_check(const char *function, const void *buffer, size_t bytes);
/* Keeps a registration, and yields its handle. A buffer that is registered already is counted once more; `mapped`: of a
 * window, which the registration then owns, or NULL. */
ncclResult_t tt_register_add(struct ncclComm *comm, enum tt_registered kind, void *buffer, size_t bytes,
                             struct tt_user_window *mapped, void **handle);
/* ncclInvalidUsage if the handle is none of this communicator and kind. */
ncclResult_t tt_register_drop(const char *function, struct ncclComm *comm, enum tt_registered kind, const void *handle);
ncclResult_t tt_register_find(const char *function, struct ncclComm *comm, enum tt_registered kind, const void *handle,
                              void **buffer);
/* Frees what is still registered when the communicator ends, and says so. What is mapped goes with its env. */
void tt_register_free(struct ncclComm *comm);

#endif
