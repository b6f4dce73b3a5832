/* How long a case may take that sets no limit of its own: far longer than any does that ends. Check's own limit is 4 s,
 * which a test exceeds now and then on a busy machine with a sanitizer. Linked in place of check's own by tt_unit. */
#include <check.h>

enum { PATIENCE_S = 120 };

TCase *__real_tcase_create(const char *name);
TCase *__wrap_tcase_create(const char *name);

TCase *__wrap_tcase_create(const char *name)
{
  TCase *tests = __real_tcase_create(name);
  tcase_set_timeout(tests, PATIENCE_S);
  return tests;
}
