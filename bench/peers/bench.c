/* All-reduce of floats from 8 B to 64 MiB, timed the same way whatever library is behind backend_*.
 *
 * Each size is run in batches; a batch's time is its wall time over its number of calls, taken on rank 0 between two
 * tiny all-reduces that line the ranks up. Rank 0 prints "bytes microseconds" with the median batch. Results are
 * checked outside of the timed part. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCHES 7
#define SMALLEST 8
#define LARGEST (64u << 20)

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void line_up(void)
{
  float in = 1, out;
  backend_all_reduce(&in, &out, 1);
}

static double measure(const float *in, float *out, size_t count)
{
  size_t bytes = count * sizeof *in;
  int calls = bytes <= 4096 ? 200 : bytes <= (256u << 10) ? 50 : bytes <= (4u << 20) ? 10 : 2;
  double times[BATCHES];
  for (int i = 0; i < 2; i++) backend_all_reduce(in, out, count);
  for (int b = 0; b < BATCHES; b++) {
    line_up();
    double start = now();
    for (int i = 0; i < calls; i++) backend_all_reduce(in, out, count);
    times[b] = (now() - start) / calls;
  }
  qsort(times, BATCHES, sizeof *times, by_value);
  return times[BATCHES / 2];
}

int main(int argc, char **argv)
{
  int rank, nranks;
  backend_start(argc, argv, &rank, &nranks);
  float *in = malloc(LARGEST), *out = malloc(LARGEST);
  if (in == NULL || out == NULL) return 1;
  for (size_t i = 0; i < LARGEST / sizeof *in; i++) in[i] = (float)(rank + (int)(i % 13));
  for (size_t bytes = SMALLEST; bytes <= LARGEST; bytes *= bytes == (16u << 20) ? 4 : 8) {
    size_t count = bytes / sizeof *in;
    memset(out, 0, bytes);
    double microseconds = measure(in, out, count);
    for (size_t i = 0; i < count; i++) {
      float sum = (float)(nranks * (int)(i % 13) + nranks * (nranks - 1) / 2);
      if (out[i] == sum) continue;
      fprintf(stderr, "rank %d: element %zu of %zu bytes is %f, not %f\n", rank, i, bytes, (double)out[i], (double)sum);
      return 1;
    }
    if (rank == 0) printf("%zu %.3f\n", bytes, microseconds);
  }
  backend_stop();
  free(in);
  free(out);
  return 0;
}
