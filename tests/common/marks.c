/* What check does at each assertion that holds, done less often: it notes the place in a file, so that a test which
 * crashes can be said to have been there last. In a loop that costs far more than what is tested, so a place is noted
 * only when others, or none, were before it. Linked in place of check's own by tt_unit. */
#include <stdatomic.h>
#include <stdint.h>

enum { PLACES = 256 }; /* a power of two */

void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);

void __wrap__mark_point(const char *file, int line)
{
  static _Atomic uint64_t noted[PLACES];
  uint64_t place = (uint64_t)(uintptr_t)file * 1000003u + (uint64_t)line;
  _Atomic uint64_t *known = &noted[place % PLACES];
  if (atomic_load_explicit(known, memory_order_relaxed) == place) return;
  atomic_store_explicit(known, place, memory_order_relaxed);
  __real__mark_point(file, line);
}
