/* See matrix.h: groups of sends and receives, as applications make them for exchanges of unequal parts. Message m from
 * rank s to rank r lies at its own place in both buffers, and each of its words says which it is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "matrix.h"

enum { MOST_MESSAGES = 3, MOST_WORDS = 24000, SUM_WORDS = 10007 };

const char *const matrix_group_names[MATRIX_GROUPS] = {
    [MATRIX_PAIRS] = "a message each way between all pairs",
    [MATRIX_MANY] = "three messages each way between all pairs",
    [MATRIX_MIXED] = "a message each way between all pairs, and an all-reduce",
};

struct exchange {
  struct perf_worker *worker;
  int rank, ranks, messages;
  enum matrix_group form;
};

static const size_t words_of[] = {0, 1, 13, 1000, 4096, 9001, MOST_WORDS};

static size_t count_of(int from, int to, int message)
{
  return words_of[(size_t)(3 * from + 5 * to + 2 * message) % (sizeof(words_of) / sizeof(words_of[0]))];
}

static size_t place_of(int peer, int message)
{
  return (size_t)(peer * MOST_MESSAGES + message) * MOST_WORDS;
}

static size_t sum_place(int ranks)
{
  return place_of(ranks, 0);
}

size_t matrix_group_bytes(int ranks)
{
  return (sum_place(ranks) + SUM_WORDS) * sizeof(uint32_t);
}

static uint32_t word_of(int from, int to, int message, size_t i)
{
  return (uint32_t)(from * 61 + to * 17 + message) * 2654435761u + (uint32_t)i;
}

static uint32_t summand(int rank, size_t i)
{
  return (uint32_t)(rank + 1) * (uint32_t)(i + 3);
}

static void put(const struct exchange *e)
{
  uint32_t *send = (uint32_t *)e->worker->send[0].base, *recv = (uint32_t *)e->worker->recv[0].base;
  ncclComm_t comm = e->worker->comms[0];
  cudaStream_t stream = e->worker->streams[0];
  perf_worker_try(e->worker, e->rank, "ncclGroupStart", ncclGroupStart());
  for (int m = 0; m < e->messages; m++)
    for (int step = 0; step < e->ranks; step++) {
      /* Not in the order of the peers' calls. */
      int to = (e->rank + step) % e->ranks, from = (e->rank + 2 * step) % e->ranks;
      if (e->ranks % 2 == 0) from = e->ranks - 1 - to;
      perf_worker_try(e->worker, e->rank, "ncclSend",
                      ncclSend(send + place_of(to, m), count_of(e->rank, to, m), ncclUint32, to, comm, stream));
      perf_worker_try(e->worker, e->rank, "ncclRecv",
                      ncclRecv(recv + place_of(from, m), count_of(from, e->rank, m), ncclUint32, from, comm, stream));
      if (e->form == MATRIX_MIXED && step == 0)
        perf_worker_try(e->worker, e->rank, "ncclAllReduce",
                        ncclAllReduce(send + sum_place(e->ranks), recv + sum_place(e->ranks), SUM_WORDS, ncclUint32,
                                      ncclSum, comm, stream));
    }
  perf_worker_try(e->worker, e->rank, "ncclGroupEnd", ncclGroupEnd());
}

static void run_group(const struct exchange *e, bool graph)
{
  const struct perf_backend *backend = e->worker->team->backend;
  if (!graph) {
    put(e);
  } else {
    perf_worker_must(e->worker, 0, "capturing a graph", backend->capture_begin(e->worker->streams[0]));
    put(e);
    void *made = backend->capture_end(e->worker->streams[0]);
    perf_worker_must(e->worker, 0, "making a graph", made != NULL);
    for (int i = 0; i < 2; i++)
      perf_worker_must(e->worker, 0, "launching a graph", backend->graph_launch(made, e->worker->streams[0]));
    perf_worker_wait(e->worker);
    backend->graph_drop(made);
  }
  perf_worker_wait(e->worker);
}

static uint64_t check_message(const struct exchange *e, const uint32_t *found, int from, int m, char *first,
                              size_t size)
{
  uint64_t wrong = 0;
  const uint32_t *words = found + place_of(from, m);
  size_t count = count_of(from, e->rank, m);
  for (size_t i = 0; i < MOST_WORDS; i++) {
    uint32_t wanted = i < count ? word_of(from, e->rank, m, i) : UINT32_MAX;
    if (words[i] == wanted || wrong++ > 0) continue;
    snprintf(first, size, "message %d of rank %d: word %zu of %zu is %#x instead of %#x", m, from, i, count, words[i],
             wanted);
  }
  return wrong;
}

static uint64_t check_sum(const struct exchange *e, const uint32_t *found, char *first, size_t size)
{
  uint64_t wrong = 0;
  for (size_t i = 0; i < SUM_WORDS; i++) {
    uint32_t wanted = 0;
    for (int r = 0; r < e->ranks; r++) wanted += summand(r, i);
    if (found[sum_place(e->ranks) + i] == wanted || wrong++ > 0) continue;
    snprintf(first, size, "element %zu of the sum is %u instead of %u", i, found[sum_place(e->ranks) + i], wanted);
  }
  return wrong;
}

uint64_t matrix_grouped(struct perf_worker *worker, int rank, int ranks, enum matrix_group form, bool graph,
                        char *first, size_t first_size)
{
  const struct exchange e = {worker, rank, ranks, form == MATRIX_MANY ? MOST_MESSAGES : 1, form};
  const struct perf_backend *backend = worker->team->backend;
  size_t bytes = matrix_group_bytes(ranks);
  uint32_t *words = malloc(bytes);
  uint64_t wrong = 0;
  perf_worker_must(worker, 0, "allocating memory", words != NULL);
  memset(words, 0xff, bytes);
  perf_worker_must(worker, 0, "filling its buffers", backend->copy_in(worker->recv[0].base, words, bytes));
  for (int to = 0; to < ranks; to++)
    for (int m = 0; m < MOST_MESSAGES; m++)
      for (size_t i = 0; i < MOST_WORDS; i++) words[place_of(to, m) + i] = word_of(rank, to, m, i);
  for (size_t i = 0; i < SUM_WORDS; i++) words[sum_place(ranks) + i] = summand(rank, i);
  perf_worker_must(worker, 0, "filling its buffers", backend->copy_in(worker->send[0].base, words, bytes));
  run_group(&e, graph);
  perf_worker_must(worker, 0, "reading its buffers", backend->copy_out(words, worker->recv[0].base, bytes));
  for (int from = 0; from < ranks; from++)
    for (int m = 0; m < e.messages; m++) {
      uint64_t found = check_message(&e, words, from, m, first, wrong ? 0 : first_size);
      wrong += found;
    }
  if (form == MATRIX_MIXED) wrong += check_sum(&e, words, first, wrong ? 0 : first_size);
  free(words);
  return wrong;
}
