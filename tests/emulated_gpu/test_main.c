/* Tests of the emulated GPUs' host side. */
#include "test_gpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "grid.h"

int notes[NOTES], nnotes;
const char note_kernel;
static sem_t gate;

/* Each thread of a warp calls it, of which one notes. */
static void run_note(const void *address, const void *arguments)
{
  static int calls;
  (void)address;
  if (calls++ % 32 != 0) return;
  int number;
  memcpy(&number, arguments, sizeof(number));
  ck_assert_int_lt(nnotes, NOTES);
  notes[nnotes++] = number;
}

__attribute__((constructor)) static void register_kernels(void)
{
  emu_kernel_register(&(struct emu_kernel){
      .address = &note_kernel, .call = run_note, .bytes = sizeof(int), .shared_bytes = 0, .most_threads = 64});
}

cudaError_t note(cudaStream_t stream, int number)
{
  void *arguments[] = {&number};
  return cudaLaunchKernel(&note_kernel, (dim3){1, 1, 1}, (dim3){32, 1, 1}, arguments, 0, stream);
}

cudaError_t note_early(cudaStream_t stream, int number)
{
  void *arguments[] = {&number};
  cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                   .val.programmaticStreamSerializationAllowed = 1};
  const cudaLaunchConfig_t config = {
      .gridDim = {1, 1, 1}, .blockDim = {32, 1, 1}, .stream = stream, .attrs = &attribute, .numAttrs = 1};
  return cudaLaunchKernelExC(&config, &note_kernel, arguments);
}

int place_of(int number)
{
  for (int i = 0; i < nnotes; i++)
    if (notes[i] == number) return i;
  return -1;
}

static void CUDART_CB wait_at_gate(void *unused)
{
  (void)unused;
  while (sem_wait(&gate) != 0) continue;
}

void hold(cudaStream_t stream)
{
  OK(cudaLaunchHostFunc(stream, wait_at_gate, NULL));
}

void let_go(void)
{
  sem_post(&gate);
}

cudaStream_t new_stream(void)
{
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

cudaEvent_t new_event(void)
{
  cudaEvent_t event;
  OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void await(bool (*condition)(void *argument), void *argument)
{
  for (int i = 0; i < 5000 && !condition(argument); i++) usleep(1000);
  ck_assert(condition(argument));
}

void setup(void)
{
  unsetenv("EMULATED_GPUS");
  unsetenv("CUDA_VISIBLE_DEVICES");
  sem_init(&gate, 0, 0);
  nnotes = 0;
}

void add_captures(Suite *suite);
void add_devices(Suite *suite);
void add_graphs(Suite *suite);
void add_memory(Suite *suite);
void add_multicast(Suite *suite);
void add_processes(Suite *suite);
void add_streams(Suite *suite);

int main(void)
{
  Suite *suite = suite_create("emulated_gpu");
  add_captures(suite);
  add_devices(suite);
  add_graphs(suite);
  add_memory(suite);
  add_multicast(suite);
  add_processes(suite);
  add_streams(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
