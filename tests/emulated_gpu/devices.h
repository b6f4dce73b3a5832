/* Which devices there are, for calls.c. */
#ifndef TESTS_EMULATED_GPU_DEVICES_H
#define TESTS_EMULATED_GPU_DEVICES_H

#include "emulated.h"

/* Reads the environment, once. Says what is wrong with it. */
cudaError_t emu_devices_find(void);
extern _Thread_local struct CUctx_st *emu_thread_context; /* NULL: none */

#endif
