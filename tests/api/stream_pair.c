/* See stream_pair.h. */
#include "stream_pair.h"

#include <string.h>
#include "base/log.h"

void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, ncclGetLastError(NULL));
}

void said(const char *words)
{
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

void open_pair(struct pair *pair)
{
  ok(ncclCommInitAll(pair->comms, RANKS, NULL));
  for (int r = 0; r < RANKS; r++) {
    ok(tuttiStreamCreate(&pair->streams[r]));
    for (int i = 0; i < COUNT; i++) {
      pair->in[r][i] = (float)(r + 1 + i % 7);
      pair->out[r][i] = -1;
    }
  }
}

void close_pair(struct pair *pair)
{
  for (int r = 0; r < RANKS; r++) ok(ncclCommDestroy(pair->comms[r]));
  for (int r = 0; r < RANKS; r++) ok(tuttiStreamDestroy(pair->streams[r]));
}

ncclResult_t reduce(struct pair *pair, int r, cudaStream_t stream)
{
  return ncclAllReduce(pair->in[r], pair->out[r], COUNT, ncclFloat, ncclSum, pair->comms[r], stream);
}

void is_reduced(const struct pair *pair)
{
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < COUNT; i++)
      ck_assert_msg(pair->out[r][i] == (float)(3 + 2 * (i % 7)), "rank %d, element %d is %g", r, i,
                    (double)pair->out[r][i]);
}

void wait_both(struct pair *pair)
{
  for (int r = 0; r < RANKS; r++) ok(tuttiStreamSynchronize(pair->streams[r]));
}
