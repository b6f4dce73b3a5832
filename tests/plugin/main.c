/* Tests of core/plugin: layouts, shims, loader, choice. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "helper.h"

/* Read by the address sanitizer: a program and a library that export one plugin symbol are what is tested here. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
  return "detect_odr_violation=0";
}

/* Bare names are looked up where the dynamic linker looks, and it reads LD_LIBRARY_PATH only when a program starts. */
static void search_stubs(char **argv)
{
  const char *path = getenv("LD_LIBRARY_PATH");
  if (path && strcmp(path, STUBS) == 0) return;
  setenv("LD_LIBRARY_PATH", STUBS, 1);
  execv("/proc/self/exe", argv);
  abort();
}

int main(int argc, char **argv)
{
  (void)argc;
  search_stubs(argv);
  Suite *suite = suite_create("plugin");
  add_abi_tests(suite);
  add_shim_tests(suite);
  add_loader_tests(suite);
  add_select_tests(suite);
  add_thread_tests(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
