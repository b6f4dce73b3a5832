/* See load.h. The matrices fit a processor's own cache: what the load takes from the ranks is its time, not the
 * memory's bandwidth. */
#include "load.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SIZE = 64 };

struct load {
  pthread_t thread;
  _Atomic bool stop;
  _Atomic uint64_t products;
  double started;
  float a[SIZE][SIZE], b[SIZE][SIZE], c[SIZE][SIZE];
};

static double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* c = a b, and a little of c back into a, so that no product may be left out. */
static void multiply(struct load *load)
{
  for (int i = 0; i < SIZE; i++)
    for (int j = 0; j < SIZE; j++) {
      float sum = 0;
      for (int k = 0; k < SIZE; k++) sum += load->a[i][k] * load->b[k][j];
      load->c[i][j] = sum;
    }
  load->a[0][0] = load->c[0][0] > 1 ? 0.5f : 0.25f;
}

static void *run(void *arg)
{
  struct load *load = arg;
  do {
    multiply(load);
    atomic_fetch_add(&load->products, 1);
  } while (!atomic_load(&load->stop));
  return NULL;
}

void *perf_host_load_start(int device)
{
  (void)device;
  struct load *load = calloc(1, sizeof(*load));
  if (!load) return NULL;
  for (int i = 0; i < SIZE; i++)
    for (int j = 0; j < SIZE; j++) load->a[i][j] = load->b[i][j] = 1.0f / (float)(1 + i + j);
  load->started = now();
  if (!pthread_create(&load->thread, NULL, run, load)) return load;
  free(load);
  return NULL;
}

bool perf_host_load_stop(void *arg, struct perf_load_result *result)
{
  struct load *load = arg;
  atomic_store(&load->stop, true);
  pthread_join(load->thread, NULL);
  snprintf(result->kind, sizeof(result->kind), "product on the host");
  result->size = SIZE;
  result->products = atomic_load(&load->products);
  result->seconds = now() - load->started;
  free(load);
  return true;
}
