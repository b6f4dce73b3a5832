/* Runs the suites of the program layer: the one that is named, which is a long one, or all short ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "program_set.h"

static SRunner *short_ones(void)
{
  SRunner *runner = srunner_create(emit_suite());
  srunner_add_suite(runner, dump_suite());
  srunner_add_suite(runner, check_suite());
  srunner_add_suite(runner, sequence_suite());
  srunner_add_suite(runner, scratch_suite());
  srunner_add_suite(runner, shared_suite());
  srunner_add_suite(runner, mapped_suite());
  srunner_add_suite(runner, mapped_message_suite());
  return runner;
}

static Suite *find(const char *name)
{
  if (!strcmp(name, "validate")) return validate_suite();
  if (!strcmp(name, "large")) return large_suite();
  if (!strcmp(name, "mutation")) return mutation_suite();
  fprintf(stderr, "no long suite is called %s\n", name);
  exit(EXIT_FAILURE);
}

int main(int argc, char **argv)
{
  SRunner *runner = argc > 1 ? srunner_create(find(argv[1])) : short_ones();
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
