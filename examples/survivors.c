/* Going on after a rank was killed: four processes reduce in pairs and all together, one of them kills itself, and the
 * other three shrink the communicator and go on.
 *
 *     cc survivors.c $(pkg-config --cflags --libs tutti) -o survivors && ./survivors */
#include <nccl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, KILLED = 2 };

static int rank;

static void must(ncclResult_t result, const char *what, ncclComm_t comm)
{
  if (result == ncclSuccess) return;
  fprintf(stderr, "rank %d: %s: %s\n", rank, what, ncclGetLastError(comm));
  exit(1);
}

static float sum_of_ranks(ncclComm_t comm, ncclResult_t *result)
{
  float mine = (float)rank, sum = -1;
  *result = ncclAllReduce(&mine, &sum, 1, ncclFloat, ncclSum, comm, NULL);
  return sum;
}

static void be_a_rank(ncclUniqueId id)
{
  ncclComm_t all, pair, survivors;
  ncclResult_t result;
  must(ncclCommInitRank(&all, RANKS, id, rank), "init", NULL);

  must(ncclCommSplit(all, rank / 2, rank, &pair, NULL), "split", all);
  float sum = sum_of_ranks(pair, &result);
  must(result, "all-reduce of a pair", pair);
  printf("rank %d: the sum of my pair is %g\n", rank, (double)sum);
  must(ncclCommDestroy(pair), "destroy", NULL);

  for (int i = 0; result == ncclSuccess; i++) {
    if (rank == KILLED && i == 1000) raise(SIGKILL);
    sum_of_ranks(all, &result);
  }
  printf("rank %d: %s\n", rank, ncclGetLastError(all));

  int gone[] = {KILLED}, count;
  must(ncclCommShrink(all, gone, 1, &survivors, NULL, NCCL_SHRINK_ABORT), "shrink", all);
  must(ncclCommAbort(all), "abort", NULL);
  sum = sum_of_ranks(survivors, &result);
  must(result, "all-reduce of survivors", survivors);
  must(ncclCommCount(survivors, &count), "count", survivors);
  printf("rank %d: the sum of %d survivors is %g\n", rank, count, (double)sum);
  must(ncclCommDestroy(survivors), "destroy", NULL);
  exit(sum == 0 + 1 + 3 ? 0 : 1);
}

int main(void)
{
  ncclUniqueId id;
  int ends[2], failed = 0;
  setenv("TUTTI_DEVICE", "host", 0); /* the buffers are the host's, on a machine with GPUs, too */
  if (pipe(ends) != 0) return 1;
  for (rank = 0; rank < RANKS; rank++) {
    if (fork() != 0) continue;
    /* Rank 0 makes the id, since its root lives in the process that made it. */
    if (rank == 0) {
      must(ncclGetUniqueId(&id), "unique id", NULL);
      for (int r = 1; r < RANKS; r++)
        if (write(ends[1], &id, sizeof id) != sizeof id) exit(1);
    } else if (read(ends[0], &id, sizeof id) != sizeof id) {
      exit(1);
    }
    be_a_rank(id);
  }
  for (int r = 0, status; r < RANKS && wait(&status) > 0; r++)
    failed += WIFEXITED(status) ? WEXITSTATUS(status) != 0 : WTERMSIG(status) != SIGKILL;
  return failed;
}
