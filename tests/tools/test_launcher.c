/* Who started this process, from tables of variables. */
#include <stdlib.h>
#include <string.h>
#include "launcher.h"
#include "suites.h"

static const char *const *table; /* NAME, value, ..., NULL */

static const char *lookup(const char *name)
{
  for (int i = 0; table[i]; i += 2)
    if (!strcmp(table[i], name)) return table[i + 1];
  return NULL;
}

static struct perf_launcher found;
static char error[512];

static bool detect(const char *const *environment)
{
  table = environment;
  error[0] = 0;
  return perf_launcher_detect(&found, lookup, error, sizeof(error));
}

#define ENVIRONMENT(...) ((const char *const[]){__VA_ARGS__, NULL, NULL})

START_TEST(recognised)
{
  const struct {
    const char *const *environment;
    enum perf_launcher_kind kind;
    int rank, size, local_rank, local_size;
    const char *address, *job;
  } rows[] = {
      {(const char *const[]){NULL}, PERF_LAUNCHER_NONE, 0, 1, -1, -1, "", ""},
      {ENVIRONMENT("OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK", "2",
                   "OMPI_COMM_WORLD_LOCAL_SIZE", "4", "PMIX_NAMESPACE", "77", "PMIX_RANK", "2"),
       PERF_LAUNCHER_OPENMPI, 2, 4, 2, 4, "", "/77"},
      {ENVIRONMENT("PMI_RANK", "1", "PMI_SIZE", "2", "MPI_LOCALRANKID", "1", "MPI_LOCALNRANKS", "2"), PERF_LAUNCHER_PMI,
       1, 2, 1, 2, "", ""},
      {ENVIRONMENT("PMI_RANK", "1", "PMI_SIZE", "2", "PMI_KVSNAME", "kvs_9"), PERF_LAUNCHER_PMI, 1, 2, -1, -1, "",
       "/kvs_9"},
      {ENVIRONMENT("RANK", "3", "WORLD_SIZE", "8", "LOCAL_RANK", "3", "LOCAL_WORLD_SIZE", "4", "MASTER_ADDR", "n1",
                   "MASTER_PORT", "29500", "TORCHELASTIC_RUN_ID", "x"),
       PERF_LAUNCHER_TORCHRUN, 3, 8, 3, 4, "n1:29517", "/x/29500"},
      {ENVIRONMENT("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "fe80::1", "MASTER_PORT", "500"),
       PERF_LAUNCHER_RANK_ENV, 0, 2, -1, -1, "[fe80::1]:517", "/500"},
      {ENVIRONMENT("SLURM_PROCID", "5", "SLURM_NTASKS", "6", "SLURM_LOCALID", "1", "SLURM_JOB_ID", "12",
                   "SLURM_STEP_ID", "3", "SLURM_STEP_NUM_NODES", "1", "SLURM_STEP_NODELIST", "n7"),
       PERF_LAUNCHER_SLURM, 5, 6, 1, -1, "", "/12/3"},
      /* The step's own number of tasks wins over the job's. */
      {ENVIRONMENT("SLURM_PROCID", "0", "SLURM_NTASKS", "6", "SLURM_STEP_NUM_TASKS", "2", "SLURM_JOB_ID", "12",
                   "SLURM_STEP_ID", "3"),
       PERF_LAUNCHER_SLURM, 0, 2, -1, -1, "", "/12/3"},
      /* The shell of a batch job, and an allocation without a step, are not launched ranks. */
      {ENVIRONMENT("SLURM_PROCID", "0", "SLURM_NTASKS", "6", "SLURM_JOB_ID", "12", "SLURM_STEP_ID", "4294967291"),
       PERF_LAUNCHER_NONE, 0, 1, -1, -1, "", ""},
      {ENVIRONMENT("SLURM_PROCID", "0", "SLURM_NTASKS", "6", "SLURM_JOB_ID", "12"), PERF_LAUNCHER_NONE, 0, 1, -1, -1,
       "", ""},
      /* mpirun inside a SLURM step; torchrun started by srun. */
      {ENVIRONMENT("SLURM_PROCID", "0", "SLURM_NTASKS", "1", "SLURM_STEP_ID", "0", "OMPI_COMM_WORLD_RANK", "1",
                   "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
       PERF_LAUNCHER_OPENMPI, 1, 2, -1, 2, "", ""},
      {ENVIRONMENT("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_STEP_ID", "0", "RANK", "9", "WORLD_SIZE", "16",
                   "MASTER_ADDR", "a", "MASTER_PORT", "1", "TORCHELASTIC_RUN_ID", "r"),
       PERF_LAUNCHER_TORCHRUN, 9, 16, -1, -1, "a:18", "/r/1"},
      {ENVIRONMENT("OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE", "4", "TUTTI_PERF_ROOT", "h:1", "MASTER_ADDR",
                   "a", "MASTER_PORT", "2"),
       PERF_LAUNCHER_OPENMPI, 2, 4, -1, -1, "h:1", ""},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    ck_assert_msg(detect(rows[i].environment), "row %zu: %s", i, error);
    ck_assert_msg(found.kind == rows[i].kind, "row %zu: taken for %s", i, found.name);
    ck_assert_int_eq(found.rank, rows[i].rank);
    ck_assert_int_eq(found.size, rows[i].size);
    ck_assert_int_eq(found.local_rank, rows[i].local_rank);
    ck_assert_int_eq(found.local_size, rows[i].local_size);
    ck_assert_str_eq(found.address, rows[i].address);
    ck_assert_str_eq(found.job, rows[i].job);
  }
}
END_TEST

START_TEST(several_slurm_nodes_meet_at_the_first)
{
  const char *const *environment =
      ENVIRONMENT("SLURM_PROCID", "5", "SLURM_NTASKS", "6", "SLURM_JOB_ID", "12", "SLURM_STEP_ID", "3",
                  "SLURM_STEP_NUM_NODES", "2", "SLURM_STEP_NODELIST", "gpu[07-08]");
  ck_assert_msg(detect(environment), "%s", error);
  ck_assert(!strncmp(found.address, "gpu07:", 6));
  int port = atoi(found.address + 6);
  ck_assert(port >= 20000 && port < 32000);
}
END_TEST

START_TEST(node_lists)
{
  static const char *const rows[][2] = {{"n1", "n1"},   {"n1,n2", "n1"},    {"gpu[07-09,12],login", "gpu07"},
                                        {"a[3]", "a3"}, {"r[1-2]n", "r1n"}, {"r[1,2]-x,b", "r1-x"}};
  char host[64];
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    ck_assert(perf_launcher_first_host(rows[i][0], host, sizeof(host)));
    ck_assert_str_eq(host, rows[i][1]);
  }
  ck_assert(!perf_launcher_first_host("", host, sizeof(host)));
  ck_assert(!perf_launcher_first_host("abcdefgh[1-2]", host, 8));
}
END_TEST

START_TEST(contradictions_say_what_to_set)
{
  ck_assert(!detect(ENVIRONMENT("OMPI_COMM_WORLD_RANK", "4", "OMPI_COMM_WORLD_SIZE", "4")));
  ck_assert_ptr_nonnull(strstr(error, "OMPI_COMM_WORLD_RANK=4"));
  ck_assert(!detect(ENVIRONMENT("PMI_RANK", "x", "PMI_SIZE", "4")));
  ck_assert_ptr_nonnull(strstr(error, "PMI_RANK=x"));
  ck_assert(!detect(ENVIRONMENT("PMI_RANK", "0", "PMI_SIZE", "0")));
  ck_assert(!detect(ENVIRONMENT("RANK", "0", "WORLD_SIZE", "2")));
  ck_assert_ptr_nonnull(strstr(error, "MASTER_ADDR"));
  ck_assert(!detect(ENVIRONMENT("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "65535")));
  ck_assert_ptr_nonnull(strstr(error, "MASTER_PORT=65535"));
  /* Two hosts, and no address: a local meeting point would wait in vain. */
  ck_assert(!detect(ENVIRONMENT("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                "2", "PMIX_NAMESPACE", "1")));
  ck_assert_ptr_nonnull(strstr(error, "TUTTI_PERF_ROOT"));
}
END_TEST

Suite *suite_launcher(void)
{
  Suite *suite = suite_create("launcher");
  TCase *tests = tcase_create("launcher");
  tcase_add_test(tests, recognised);
  tcase_add_test(tests, several_slurm_nodes_meet_at_the_first);
  tcase_add_test(tests, node_lists);
  tcase_add_test(tests, contradictions_say_what_to_set);
  suite_add_tcase(suite, tests);
  return suite;
}
