/* Runs the suites; with "rank" as first argument it is a rank of another run. */
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void *nothing(void *arg)
{
  return arg;
}

int main(int argc, char **argv)
{
  /* The thread sanitizer starts a thread of its own with the first one; the tests count threads. */
  pthread_t thread;
  if (argc > 1 && strcmp(argv[1], "rank") == 0) return process_main(argc, argv);
  if (pthread_create(&thread, NULL, nothing, NULL) == 0) pthread_join(thread, NULL);
  SRunner *runner = srunner_create(suite_wire());
  srunner_add_suite(runner, suite_basic());
  srunner_add_suite(runner, suite_calls());
  srunner_add_suite(runner, suite_errors());
  srunner_add_suite(runner, suite_scalable());
  srunner_add_suite(runner, suite_hostile());
  srunner_add_suite(runner, suite_processes());
  srunner_add_suite(runner, suite_crowded());
  srunner_add_suite(runner, suite_shortage());
  srunner_add_suite(runner, suite_net());
  /* Threads and forks do not mix under sanitizers, and no test needs a process of its own. */
  srunner_set_fork_status(runner, CK_NOFORK);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
