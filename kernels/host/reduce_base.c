/* The reductions' inner loops for the instruction set that the whole library is compiled for. */
#include "kernels/host/reduce.h"

#define TT_LEVEL base
#define TT_WIDEN_HALF widen_half_portable
#define TT_NARROW_HALF narrow_half_portable
#include "kernels/host/reduce_loops.h"
