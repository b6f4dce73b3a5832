/* What the backend asks of a GPU before it launches with attributes: its compute capability, the driver's version, and
 * how many blocks run at the same time in clusters. */
#ifndef TEST_KERNELS_CUDA_FAKE_HINTS_H
#define TEST_KERNELS_CUDA_FAKE_HINTS_H

#include <stdbool.h>
#include <cuda_runtime_api.h>

extern struct fake_hints {
  int capability;     /* 10 * major + minor */
  int ptx;            /* what kernels were compiled for, likewise */
  int driver;         /* as cudaDriverGetVersion has it */
  int at_once[9];     /* blocks, by the size of their clusters; -1: asking for such clusters fails */
  const void *narrow; /* the only kernel for which that holds, while others fit 1000 times; NULL: all of them */
  int asked;          /* how often that was asked for */
} fake_hints;
/* A GPU of 9.0 with 132 processors, CUDA 13.0. */
void fake_hints_reset(void);
cudaError_t fake_capability(int *value, enum cudaDeviceAttr attribute);

/* Headers before CUDA 13 lack the attribute for links, and the backend then does without. */
enum { FAKE_LINKS = CUDART_VERSION >= 13000, FAKE_LINKS_ID = 16 };
/* Of an attribute with that id: whether it is set. */
bool fake_links_are_on(const cudaLaunchAttribute *attribute);

/* Lines that were logged at INFO since then. */
void keep_lines(void);
extern char kept_lines[4096];

#endif
