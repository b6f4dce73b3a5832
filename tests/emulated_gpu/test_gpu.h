/* What the tests of the emulated GPUs' host side share: kernels that note that they ran, and streams that are held. */
#ifndef TESTS_EMULATED_GPU_TEST_GPU_H
#define TESTS_EMULATED_GPU_TEST_GPU_H

#include <check.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <semaphore.h>
#include <stdbool.h>

#define OK(call) ck_assert_str_eq(cudaGetErrorName(call), "cudaSuccess")
#define FAILS(call, error) ck_assert_str_eq(cudaGetErrorName(call), #error)
#define DRIVER_OK(call) ck_assert_int_eq(call, CUDA_SUCCESS)
#define DRIVER_FAILS(call, error) ck_assert_int_eq(call, error)

/* In the order in which they ran; read it when the GPUs are idle. */
enum { NOTES = 4096 };
extern int notes[NOTES], nnotes;
/* Puts a kernel on the stream that notes a number. */
cudaError_t note(cudaStream_t stream, int number);
/* One that may begin while kernels before it in a graph end. */
cudaError_t note_early(cudaStream_t stream, int number);
/* The place of the first such note; -1: none. */
int place_of(int number);

extern const char note_kernel; /* by which it is launched */

/* What comes next on a stream waits until it is let go. One at a time. */
void hold(cudaStream_t stream);
void let_go(void);

cudaStream_t new_stream(void); /* that does not wait for the legacy one */
cudaEvent_t new_event(void);
/* Asks until it is true, for some seconds. */
void await(bool (*condition)(void *argument), void *argument);

void setup(void); /* of each test */

#endif
