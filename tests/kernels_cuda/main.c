/* Tests of the CUDA backend's host side, without a GPU. */
#include <check.h>
#include <stdlib.h>

void add_check(Suite *suite);
void add_context(Suite *suite);
void add_copies(Suite *suite);
void add_dmabuf(Suite *suite);
void add_executor(Suite *suite);
void add_gdrcopy(Suite *suite);
void add_hints(Suite *suite);
void add_host_memory(Suite *suite);
void add_memory(Suite *suite);
void add_multicast(Suite *suite);
void add_status(Suite *suite);
void add_user_memory(Suite *suite);

int main(void)
{
  Suite *suite = suite_create("kernels_cuda");
  add_check(suite);
  add_context(suite);
  add_copies(suite);
  add_dmabuf(suite);
  add_executor(suite);
  add_gdrcopy(suite);
  add_hints(suite);
  add_host_memory(suite);
  add_memory(suite);
  add_multicast(suite);
  add_status(suite);
  add_user_memory(suite);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
