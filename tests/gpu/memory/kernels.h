/* Kernels of the memory test, as C sees them. */
#ifndef TEST_GPU_MEMORY_KERNELS_H
#define TEST_GPU_MEMORY_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory with a seed holds (i + 1) * seed in its 64-bit word i: seed 0 is zeroed memory. */
cudaError_t kernel_fill(void *to, size_t bytes, uint64_t seed, cudaStream_t stream);
/* Adds the number of words that are not so to *wrong, which is device memory. */
cudaError_t kernel_compare(const void *from, size_t bytes, uint64_t seed, unsigned long long *wrong,
                           cudaStream_t stream);
/* Runs until *flag, mapped host memory, is not zero. */
cudaError_t kernel_spin(const unsigned *flag, cudaStream_t stream);
/* Loads the code of all on the current device. */
cudaError_t kernel_load(void);

#ifdef __cplusplus
}
#endif

#endif
