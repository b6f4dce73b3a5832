/* Open MPI and MPICH: started by their own mpirun. */
#include <mpi.h>
#include "bench.h"

void backend_start(int argc, char **argv, int *rank, int *nranks)
{
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, nranks);
}

void backend_all_reduce(const float *in, float *out, size_t count)
{
  MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void backend_stop(void)
{
  MPI_Finalize();
}
