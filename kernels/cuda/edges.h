/* Edges between a graph's nodes carry data with CUDA 13: its functions take one argument more, in front of the count,
 * than those of the same names in CUDA 12. The backend gives and asks for none, though captures make some for it
 * (graph.c), and so has no need of CUDA 12's longer functions (_v2, _v3), which drivers before 12.3 lack. */
#ifndef TT_KERNELS_CUDA_EDGES_H
#define TT_KERNELS_CUDA_EDGES_H

#include <cuda_runtime_api.h>

/* Data of edges and their count, as arguments or parameters; and whether the data is given, for what stands in for CUDA
 * in tests. */
#if CUDART_VERSION >= 13000
#define TT_CUDA_EDGES(edges, count) edges, count
#define TT_CUDA_GIVEN(edges) ((edges) != NULL)
#else
#define TT_CUDA_EDGES(edges, count) count
#define TT_CUDA_GIVEN(edges) 0
#endif

#endif
