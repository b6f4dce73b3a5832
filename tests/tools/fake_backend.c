/* The backend of tutti-perf for the fake device: with it, and TUTTI_DEVICE naming that device's library, everything
 * that tutti-perf does on GPUs runs on CPUs. TEST_GRAPH=once makes graphs that do nothing when they are launched again,
 * and TEST_STREAM=stuck streams that never end, so that tests see both being found out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backend.h"
#include "load.h"
#include "tests/fakes/device/fake.h"

struct graph {
  struct fake_graph *graph;
  int launches;
};

static _Thread_local int device_of_thread;

static bool told(const char *name, const char *value)
{
  const char *text = getenv(name);
  return text && !strcmp(text, value);
}

static int count(void)
{
  const char *text = getenv("TEST_DEVICES");
  return text ? atoi(text) : FAKE_DEVICES;
}

static bool describe(int device, char *name, size_t name_size, char *pci, size_t pci_size)
{
  snprintf(name, name_size, "fake");
  snprintf(pci, pci_size, "0000:%02x:00.0", device);
  return true;
}

static bool choose(int device)
{
  device_of_thread = device;
  fake_set_device(device);
  return true;
}

static void *allocate(size_t bytes)
{
  return calloc(1, bytes);
}

static void release(void *memory, size_t bytes)
{
  (void)bytes;
  free(memory);
}

static bool zero(void *memory, size_t bytes)
{
  memset(memory, 0, bytes);
  return true;
}

static bool copy(void *to, const void *from, size_t bytes)
{
  memcpy(to, from, bytes);
  return true;
}

static bool stream_make(cudaStream_t *stream)
{
  *stream = fake_stream_create(device_of_thread);
  return *stream != NULL;
}

static void stream_drop(cudaStream_t stream)
{
  fake_stream_destroy(stream);
}

static enum perf_stream_state stream_state(cudaStream_t stream)
{
  return !told("TEST_STREAM", "stuck") && fake_stream_wait(stream, 0) ? PERF_STREAM_DONE : PERF_STREAM_BUSY;
}

static bool capture_begin(cudaStream_t stream)
{
  fake_capture_begin(stream);
  return true;
}

static void *capture_end(cudaStream_t stream)
{
  struct graph *made = calloc(1, sizeof(*made));
  if (made) made->graph = fake_capture_end(stream);
  return made;
}

static bool graph_launch(void *graph, cudaStream_t stream)
{
  struct graph *made = graph;
  if (made->launches++ == 0 || !told("TEST_GRAPH", "once")) fake_graph_replay(made->graph, stream);
  return true;
}

static void graph_drop(void *graph)
{
  fake_graph_destroy(((struct graph *)graph)->graph);
  free(graph);
}

static const char *error(void)
{
  return "a fake failure";
}

static const struct perf_backend backend = {
    .size = sizeof(struct perf_backend),
    .name = "fake",
    .streams = true,
    .count = count,
    .describe = describe,
    .choose = choose,
    .allocate = allocate,
    .release = release,
    .zero = zero,
    .copy_in = copy,
    .copy_out = copy,
    .stream_make = stream_make,
    .stream_drop = stream_drop,
    .stream_state = stream_state,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_drop = graph_drop,
    .load_start = perf_host_load_start,
    .load_stop = perf_host_load_stop,
    .error = error,
};

const struct perf_backend *tutti_perf_backend(char *why, size_t size)
{
  if (count() > 0) return &backend;
  snprintf(why, size, "TEST_DEVICES says that there is none");
  return NULL;
}
