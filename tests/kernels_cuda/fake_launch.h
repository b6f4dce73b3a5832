/* What launch.c and short.c call, without a device: a launch is kept, and programs are packed. */
#ifndef TEST_KERNELS_CUDA_FAKE_LAUNCH_H
#define TEST_KERNELS_CUDA_FAKE_LAUNCH_H

#include "kernels/cuda/executor.h"

enum { FAKE_PROCESSORS = 4 };
extern struct tt_device_context fake_context;

enum { FAKE_COPIES = 64 };
/* The last launch, and how many there were; copies, each with the launches before it. */
extern struct fake_launched {
  int count, form, protocol, datatype;
  bool shares; /* the kernel for shared memory: protocol and form are those of Simple */
  dim3 grid, block;
  int nattributes;  /* 0: it was launched without */
  unsigned cluster; /* 0: none */
  bool spread, remote, links, early;
  struct tt_cuda_launch launch;
  struct fake_copy {
    int after; /* launches that it waits for */
    const void *from, *to;
    size_t bytes;
    bool second; /* it is on the backend's own stream */
    int awaited; /* copies of the other stream that come first */
  } copies[FAKE_COPIES];
  int ncopies;
  int awaited;           /* of the second stream's copies, by what comes next on the user's */
  int awaited_by_kernel; /* and by the last launch */
} launched;
void forget_launches(void);

/* Programs that were packed are found by their address until then. */
void forget_programs(void);

#endif
