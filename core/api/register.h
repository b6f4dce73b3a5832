/* Buffers that users register with a communicator. */
#ifndef TT_API_REGISTER_H
#define TT_API_REGISTER_H

#include "plan/comm.h"

/* Frees what is still registered when the communicator ends, and says so. */
void tt_register_free(struct ncclComm *comm);

#endif
