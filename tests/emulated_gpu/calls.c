/* What each call begins and ends with: the lock, the thread's device, its last error. */
#include "emulated.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "devices.h"

pthread_mutex_t emu_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local cudaError_t last_error;
static _Thread_local bool in_callback;
static bool forked; /* in a child of a process that used the GPUs */

static void note_fork(void)
{
  /* The lock may be held by a thread that the child does not have. */
  pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
  memcpy(&emu_lock, &unlocked, sizeof(emu_lock));
  forked = true;
}

static cudaError_t initialize(void)
{
  static bool tried;
  static cudaError_t result;
  if (tried) return result;
  tried = true;
  pthread_atfork(NULL, NULL, note_fork);
  return result = emu_devices_find();
}

cudaError_t emu_enter(enum emu_need need)
{
  pthread_mutex_lock(&emu_lock);
  if (forked) return cudaErrorInitializationError;
  if (in_callback) return cudaErrorNotPermitted;
  EMU_TRY(initialize());
  if (need == EMU_CONTEXT && emu_thread_context == NULL) emu_thread_context = emu_primary(0);
  return cudaSuccess;
}

void emu_in_callback(void)
{
  in_callback = true;
}

cudaError_t emu_leave(cudaError_t error)
{
  pthread_mutex_unlock(&emu_lock);
  if (error != cudaSuccess) last_error = error;
  return error;
}

CUresult emu_driver_enter(enum emu_need need)
{
  pthread_mutex_lock(&emu_lock);
  if (forked || emu_device_count() == 0) return CUDA_ERROR_NOT_INITIALIZED;
  if (in_callback) return CUDA_ERROR_NOT_PERMITTED;
  return need == EMU_CONTEXT && emu_thread_context == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult emu_driver_leave(CUresult result)
{
  pthread_mutex_unlock(&emu_lock);
  return result;
}

cudaError_t cudaGetLastError(void)
{
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void)
{
  return last_error;
}

/* ---- What is needed everywhere ---- */

void *emu_calloc(size_t count, size_t bytes)
{
  void *memory = calloc(count > 0 ? count : 1, bytes > 0 ? bytes : 1);
  if (memory != NULL) return memory;
  fprintf(stderr, "emulated GPU: the host has no memory\n");
  abort();
}

void *emu_copy_of(const void *from, size_t bytes)
{
  void *memory = emu_calloc(1, bytes);
  if (bytes > 0) memcpy(memory, from, bytes);
  return memory;
}

/* Processes have different numbers, as long as they see each other. */
uint64_t emu_new_id(void)
{
  static _Atomic uint32_t count;
  return (uint64_t)(uint32_t)getpid() << 32 | (atomic_fetch_add(&count, 1) + 1);
}
