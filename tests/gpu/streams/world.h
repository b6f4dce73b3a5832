/* Ranks that one thread drives, a GPU each, with streams and buffers; and what every case needs. A case runs in a
 * process of its own. Buffers are filled with bytes, so that no kernels are needed: the sum of two ints whose bytes are
 * all equal has equal bytes again, as long as they stay below 256. */
#ifndef TESTS_GPU_STREAMS_WORLD_H
#define TESTS_GPU_STREAMS_WORLD_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"

enum { MOST = 8, STREAMS = 3, BUFFERS = 6, COUNT = 200000 };

struct world {
  int n; /* ranks */
  int device[MOST];
  ncclComm_t comms[MOST];
  cudaStream_t streams[STREAMS][MOST];
  unsigned char *buffers[BUFFERS][MOST]; /* of COUNT ints */
};

/* Ends the case with a line that says what was not as it should be. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Text for the line of a case that passes. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void good(cudaError_t error, const char *what);
void ok(ncclResult_t result, const char *what);
void refused(ncclResult_t result, ncclResult_t wanted, const char *words);

struct world *world_open(int n);
/* Frees all; communicators that were not ended yet are destroyed. */
void world_close(struct world *world);
void use(const struct world *world, int rank);
/* Whether ranks share a GPU; then the case says that it was not tried, and all is freed. */
bool left_out_where_shared(struct world *world);
/* All-reduce of a rank's buffer into another one. */
void reduce(const struct world *world, ncclComm_t comm, int rank, int from, int to, int stream);
/* The same on all ranks, as a group. */
void reduce_all(const struct world *world, ncclComm_t const *comms, int from, int to, int stream);
void fill(const struct world *world, int rank, int buffer, int byte, int stream);
/* The stream does nothing for so long. */
void delay(const struct world *world, int rank, int stream, int ms);
void CUDART_CB sleep_ms(void *ms); /* on a stream */
/* Whether it is done within 30 s. */
bool stream_ends(cudaStream_t stream);
void wait_all(const struct world *world);
/* All of a buffer's bytes, on all ranks. */
void expect(const struct world *world, int buffer, int byte, const char *what);
int sum_of(const struct world *world, int base); /* of base + rank */

void capture(const struct world *world, int stream);
cudaGraphExec_t end_capture(const struct world *world, int rank, int stream, int *nodes);
void launch(const struct world *world, cudaGraphExec_t const *graphs, int stream);
void drop_graphs(const struct world *world, cudaGraphExec_t const *graphs);

/* Cases: joined.c, graphs.c, exchanges.c, groups.c, ends.c. */
void case_joined(struct world *world), case_joined_graph(struct world *world), case_two_streams(struct world *world);
void case_threads_streams(struct world *world), case_threads_streams_graph(struct world *world);
void case_threads_scatter(struct world *world);
void case_two_communicators(struct world *world), case_mixed_capture(struct world *world);
void case_graph_and_eager(struct world *world), case_graph_row(struct world *world);
void case_graph_on_two_streams(struct world *world);
void case_captures_beside_calls(struct world *world), case_captured_exchange(struct world *world);
void case_captured_in_place(struct world *world), case_kept_in_order(struct world *world);
void case_graph_nodes(struct world *world), case_graph_memory(struct world *world);
void case_captured_group(struct world *world), case_large_group(struct world *world);
void case_mixed_protocols(struct world *world);
void case_communicators(struct world *world), case_communicators_crossed(struct world *world);
void case_non_blocking(struct world *world);
void case_abort(struct world *world), case_no_memory(struct world *world), case_foreign_stream(struct world *world);
void case_stream_destroyed_early(struct world *world);
void case_communicator_first(struct world *world);

#endif
