/* Tests of core/plugin: layouts, shims, loader, choice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "helper.h"
#include "search.h"

/* Read by the address sanitizer: a program and a library that export one plugin symbol are what is tested here. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
  return "detect_odr_violation=0";
}

/* What loader.c runs with raised privileges: which plugin would be tried first? */
static int print_first_plugin(void)
{
  struct tt_net_report report;
  if (!tt_net_report(0, &report)) return EXIT_FAILURE;
  puts(report.asked);
  fflush(stdout);
  _exit(EXIT_SUCCESS); /* the leak check at exit does not work with raised privileges */
}

int main(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], "--first-plugin") == 0) return print_first_plugin();
  search_stubs(argv);
  Suite *suite = suite_create("plugin");
  add_abi_tests(suite);
  add_shim_tests(suite);
  add_loader_tests(suite);
  add_whole_tests(suite);
  add_select_tests(suite);
  add_thread_tests(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
