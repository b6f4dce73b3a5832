/* What may be read and written, page by page and to the byte. */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/maps.h"

static size_t page;

static char *take(size_t pages)
{
  page = (size_t)sysconf(_SC_PAGESIZE);
  char *at = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(at, MAP_FAILED);
  return at;
}

static void usable(const void *ptr, size_t bytes, bool write)
{
  const void *wrong;
  bool mapped;
  ck_assert_int_eq(tt_maps_check(ptr, bytes, write, &wrong, &mapped), ncclSuccess);
  ck_assert_ptr_eq(wrong, NULL);
}

static void wrong(const void *ptr, size_t bytes, bool write, const void *expected, bool has_memory)
{
  const void *at;
  bool mapped;
  ck_assert_int_eq(tt_maps_check(ptr, bytes, write, &at, &mapped), ncclSuccess);
  ck_assert_ptr_eq(at, expected);
  ck_assert_int_eq(mapped, has_memory);
}

START_TEST(kinds)
{
  static const char constant[] = "constant";
  char local[100] = {0}, *heap = calloc(1, 1 << 20);
  for (int write = 0; write < 2; write++) {
    usable(local, sizeof(local), write);
    usable(heap, 1 << 20, write);
    usable(&page, sizeof(page), write);
  }
  usable(constant, sizeof(constant), false);
  wrong(constant, sizeof(constant), true, constant, true);
  wrong((const void *)8, 100, false, (const void *)8, false);
  wrong((const void *)(UINTPTR_MAX - 4095), 4096, true, (const void *)(UINTPTR_MAX - 4095), false);
  free(heap);
}
END_TEST

/* Pages 0 to 5: page 2 is read only, page 4 has no memory. */
START_TEST(edges)
{
  char *at = take(6);
  ck_assert_int_eq(mprotect(at + 2 * page, page, PROT_READ), 0);
  ck_assert_int_eq(munmap(at + 4 * page, page), 0);
  usable(at + 1, 2 * page - 1, true);
  wrong(at + 1, 2 * page, true, at + 2 * page, true);
  wrong(at + 2 * page + 7, 1, true, at + 2 * page + 7, true);
  usable(at, 4 * page, false);
  usable(at + 3 * page, page, true);
  wrong(at, 4 * page + 1, false, at + 4 * page, false);
  wrong(at + 5 * page - 1, 2, true, at + 5 * page - 1, false);
  usable(at + 5 * page, page, true);
  ck_assert_int_eq(mprotect(at + 5 * page, page, PROT_NONE), 0);
  wrong(at + 5 * page, 1, false, at + 5 * page, true);
  munmap(at, 6 * page);
}
END_TEST

static _Atomic bool ended;

/* Splits and joins mappings, so that lines come and go. */
static void *disturb(void *at)
{
  while (!ended)
    for (size_t i = 0; i < 64; i += 2) {
      mprotect((char *)at + i * page, page, PROT_READ);
      mprotect((char *)at + i * page, page, PROT_READ | PROT_WRITE);
    }
  return NULL;
}

START_TEST(while_others_map)
{
  pthread_t thread;
  char *below = take(64), *at = take(64);
  ck_assert_int_eq(pthread_create(&thread, NULL, disturb, below), 0);
  for (int i = 0; i < 300; i++) usable(at, 64 * page, true);
  ended = true;
  pthread_join(thread, NULL);
}
END_TEST

Suite *maps_suite(void)
{
  Suite *suite = suite_create("maps");
  TCase *one = clean_case(suite, "maps");
  tcase_add_test(one, kinds);
  tcase_add_test(one, edges);
  tcase_add_test(one, while_others_map);
  return suite;
}
