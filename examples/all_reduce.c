/* Four ranks in one process sum a vector in the memory of the host, on a machine with GPUs, too. Build it either way:
 *     cc all_reduce.c $(pkg-config --cflags --libs tutti)
 *     cc all_reduce.c $(pkg-config --cflags tutti) -L$(pkg-config --variable=compatdir tutti) -lnccl        */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS 4
#define COUNT 1000

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    if ((call) != ncclSuccess) {                                                                                       \
      fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(NULL));                                                      \
      return 1;                                                                                                        \
    }                                                                                                                  \
  } while (0)

int main(void)
{
  static float in[RANKS][COUNT], out[RANKS][COUNT];
  ncclComm_t comms[RANKS];
  setenv("TUTTI_DEVICE", "host", 0); /* GPUs, where there are any, would need buffers of their own */
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < COUNT; i++) in[r][i] = (float)(r + i);

  CHECK(ncclCommInitAll(comms, RANKS, NULL));
  CHECK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) CHECK(ncclAllReduce(in[r], out[r], COUNT, ncclFloat, ncclSum, comms[r], NULL));
  CHECK(ncclGroupEnd());

  printf("out[%d] = %.0f on every rank\n", COUNT - 1, out[RANKS - 1][COUNT - 1]);
  for (int r = 0; r < RANKS; r++) CHECK(ncclCommDestroy(comms[r]));
  return out[RANKS - 1][COUNT - 1] == 4002 ? 0 : 1; /* 4 * 999 + 0 + 1 + 2 + 3 */
}
