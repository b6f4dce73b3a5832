/* Shared memory: allocation, bounds, seals, and what peers can and cannot do. */
#include "support.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/shm.h"

#define ARENA ((size_t)64 << 20)

static size_t page(void)
{
  return (size_t)sysconf(_SC_PAGESIZE);
}

static struct tt_shm *arena(void)
{
  struct tt_shm *shm;
  ck_assert_int_eq(tt_shm_create(ARENA, &shm), ncclSuccess);
  return shm;
}

static size_t memory_taken(struct tt_shm *shm)
{
  struct stat stat;
  ck_assert_int_eq(fstat(tt_shm_fd(shm), &stat), 0);
  return (size_t)stat.st_blocks * 512;
}

START_TEST(blocks)
{
  int files = held_descriptors();
  struct tt_shm *shm = arena();
  char *a, *b, *c;
  uint64_t oa, ob, oc;
  ck_assert_uint_eq(memory_taken(shm), 0);
  ck_assert_int_eq(tt_shm_alloc(shm, 1, (void **)&a, &oa), ncclSuccess);
  ck_assert_int_eq(tt_shm_alloc(shm, page() + 1, (void **)&b, &ob), ncclSuccess);
  ck_assert_uint_eq(tt_shm_used(shm), 3 * page());
  ck_assert_uint_eq(memory_taken(shm), 3 * page());
  ck_assert(oa % page() == 0 && ob % page() == 0 && oa != ob);
  memset(a, 1, page());
  memset(b, 2, 2 * page());
  ck_assert_int_eq(a[0], 1);
  tt_shm_free(shm, a, 1);
  ck_assert_uint_eq(tt_shm_used(shm), 2 * page());
  ck_assert_uint_eq(memory_taken(shm), 2 * page());
  /* The gap is used again, and is zero again. */
  ck_assert_int_eq(tt_shm_alloc(shm, page(), (void **)&c, &oc), ncclSuccess);
  ck_assert_uint_eq(oc, oa);
  for (size_t i = 0; i < page(); i++) ck_assert_int_eq(c[i], 0);
  ck_assert_int_eq(b[2 * page() - 1], 2);
  tt_shm_destroy(shm);
  tt_shm_destroy(NULL);
  ck_assert_int_eq(held_descriptors(), files);
}
END_TEST

START_TEST(beyond_the_space)
{
  struct tt_shm *shm = arena();
  void *p, *q;
  uint64_t offset;
  ck_assert_int_eq(tt_shm_alloc(shm, ARENA + 1, &p, &offset), ncclSystemError);
  ck_assert_ptr_null(p);
  expect_error("TUTTI_SHM_ARENA_BYTES");
  ck_assert_int_eq(tt_shm_alloc(shm, SIZE_MAX, &p, &offset), ncclSystemError);
  ck_assert_int_eq(tt_shm_alloc(shm, SIZE_MAX - 5000, &p, &offset), ncclSystemError);
  ck_assert_uint_eq(tt_shm_used(shm), 0);
  /* The whole space, to the last page, and then one more. */
  ck_assert_int_eq(tt_shm_alloc(shm, ARENA - page(), &p, &offset), ncclSuccess);
  ck_assert_int_eq(tt_shm_alloc(shm, page(), &q, &offset), ncclSuccess);
  ck_assert_uint_eq(offset, ARENA - page());
  ck_assert_int_eq(tt_shm_alloc(shm, 1, &q, &offset), ncclSystemError);
  tt_shm_destroy(shm);
  ck_assert_int_eq(tt_shm_create(0, &shm), ncclInvalidArgument);
  ck_assert_int_eq(tt_shm_create(SIZE_MAX, &shm), ncclInvalidArgument);
  ck_assert_ptr_null(shm);
}
END_TEST

START_TEST(wrong_frees)
{
  struct tt_shm *shm = arena();
  void *p;
  uint64_t offset;
  ck_assert_int_eq(tt_shm_alloc(shm, 2 * page(), &p, &offset), ncclSuccess);
  memset(p, 7, 2 * page());
  tt_shm_free(shm, (char *)p + page(), page());
  expect_error("never allocated so");
  tt_shm_free(shm, p, page());
  ck_assert_uint_eq(tt_shm_used(shm), 2 * page());
  ck_assert_int_eq(((char *)p)[0], 7);
  tt_shm_free(shm, p, 2 * page());
  tt_shm_free(shm, p, 2 * page());
  ck_assert_uint_eq(tt_shm_used(shm), 0);
  tt_shm_free(shm, NULL, 1);
  tt_shm_destroy(shm);
}
END_TEST

START_TEST(sealed)
{
  struct tt_shm *shm = arena();
  int fd = tt_shm_fd(shm);
  ck_assert_int_ne(ftruncate(fd, 0), 0);
  ck_assert_int_ne(ftruncate(fd, (off_t)ARENA * 2), 0);
  ck_assert_int_ne(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  tt_shm_destroy(shm);
}
END_TEST

START_TEST(map_checks)
{
  struct tt_shm *shm = arena();
  int fd = tt_shm_fd(shm);
  void *p;
  static const struct {
    uint64_t offset;
    size_t bytes;
  } rows[] = {{ARENA, 1},
              {1, 1},
              {4095, 10},
              {0, 0},
              {0, ARENA + 1},
              {ARENA - 4096, 4097},
              {0, SIZE_MAX},
              {4096, SIZE_MAX - 4096},
              {UINT64_MAX - 4095, 1},
              {UINT64_MAX - 4095, 8192},
              {(uint64_t)1 << 63, 4096}};
  for (size_t i = 0; i < TT_COUNT(rows); i++) {
    ck_assert_msg(tt_shm_map(fd, rows[i].offset, rows[i].bytes, &p) == ncclInvalidArgument, "row %zu", i);
    ck_assert_ptr_null(p);
  }
  ck_assert_int_eq(tt_shm_map(fd, ARENA - page(), page(), &p), ncclSuccess);
  tt_shm_unmap(p, page());
  tt_shm_unmap(NULL, 1);
  tt_shm_destroy(shm);
  ck_assert_int_eq(tt_shm_map(-1, 0, 1, &p), ncclSystemError);
  /* A file that its owner can shrink under us is refused. */
  int loose = memfd_create("loose", MFD_ALLOW_SEALING);
  ck_assert_int_eq(ftruncate(loose, 8192), 0);
  ck_assert_int_eq(tt_shm_map(loose, 0, 4096, &p), ncclInvalidArgument);
  expect_error("not sealed");
  close(loose);
  int null = open("/dev/null", O_RDWR);
  ck_assert_int_eq(tt_shm_map(null, 0, 4096, &p), ncclInvalidArgument);
  close(null);
}
END_TEST

START_TEST(two_processes)
{
  struct tt_shm *shm = arena();
  char *own;
  uint64_t offset;
  ck_assert_int_eq(tt_shm_alloc(shm, 3 * page(), (void **)&own, &offset), ncclSuccess);
  own[5] = 'p';
  pid_t child = fork();
  if (child == 0) {
    char *peer;
    if (tt_shm_map(tt_shm_fd(shm), offset, 3 * page(), (void **)&peer) != ncclSuccess) _exit(1);
    tt_shm_destroy(shm); /* the mapping outlives the descriptor */
    if (peer[5] != 'p') _exit(2);
    peer[2 * page()] = 'c';
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  ck_assert(WIFEXITED(status));
  ck_assert_int_eq(WEXITSTATUS(status), 0);
  ck_assert_int_eq(own[2 * page()], 'c');
  tt_shm_destroy(shm);
}
END_TEST

static void *churn(void *arg)
{
  struct tt_shm *shm = arg;
  uint64_t state = (uint64_t)(uintptr_t)&state;
  for (int i = 0; i < 300; i++) {
    size_t bytes = 1 + next_random(&state) % (8 * page());
    unsigned char *p, mark = (unsigned char)next_random(&state);
    uint64_t offset;
    if (tt_shm_alloc(shm, bytes, (void **)&p, &offset) != ncclSuccess) return "no memory";
    if (p[0] || p[bytes - 1]) return "not zero";
    memset(p, mark, bytes);
    for (size_t at = 0; at < bytes; at += 512)
      if (p[at] != mark) return "shared with another block";
    tt_shm_free(shm, p, bytes);
  }
  return NULL;
}

START_TEST(threads)
{
  struct tt_shm *shm = arena();
  pthread_t all[4];
  for (int i = 0; i < 4; i++) pthread_create(&all[i], NULL, churn, shm);
  for (int i = 0; i < 4; i++) {
    void *complaint;
    pthread_join(all[i], &complaint);
    ck_assert_msg(!complaint, "%s", (char *)complaint);
  }
  ck_assert_uint_eq(tt_shm_used(shm), 0);
  ck_assert_uint_eq(memory_taken(shm), 0);
  tt_shm_destroy(shm);
}
END_TEST

/* Address space that was used once is not given out again; the memory is given back all the same. */
START_TEST(used_once)
{
  enum { BLOCKS = 16 };
  struct tt_shm *shm = arena();
  size_t bytes = ARENA / BLOCKS;
  void *ptr[BLOCKS];
  uint64_t offset, seen = 0;
  ck_assert_int_eq(tt_shm_alloc(shm, bytes, &ptr[0], &offset), ncclSuccess);
  tt_shm_free(shm, ptr[0], bytes);
  tt_shm_use_once(shm);
  for (int i = 0; i < BLOCKS; i++) {
    ck_assert_int_eq(tt_shm_alloc(shm, bytes, &ptr[i], &offset), ncclSuccess);
    ck_assert(!(seen & 1u << offset / bytes));
    seen |= 1u << offset / bytes;
    if (i % 3 == 0) tt_shm_free(shm, ptr[i], bytes);
  }
  for (int i = 0; i < BLOCKS; i++)
    if (i % 3 != 0) tt_shm_free(shm, ptr[i], bytes);
  ck_assert_uint_eq(tt_shm_used(shm), 0);
  ck_assert_uint_eq(memory_taken(shm), 0);
  ck_assert_int_eq(tt_shm_alloc(shm, 1, &ptr[0], &offset), ncclSystemError);
  expect_error("used by communicators that have ended");
  tt_shm_destroy(shm);
}
END_TEST

/* ulimit -f: what would be larger ends the process by SIGXFSZ. No ck_ under a limit of nothing: it writes to a file. */
START_TEST(smaller_where_files_must_be)
{
  const rlim_t room = (rlim_t)4 << 20;
  struct rlimit before;
  ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit limit = {room + 100, before.rlim_max}, none = {page() - 1, before.rlim_max};
  struct tt_shm *shm, *refused;
  void *a, *b;
  uint64_t offset;
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  shm = arena();
  ck_assert_uint_eq(tt_shm_size(shm), room);
  ck_assert_int_eq(tt_shm_alloc(shm, room - page(), &a, &offset), ncclSuccess);
  memset(a, 1, room - page());
  ck_assert_int_eq(tt_shm_alloc(shm, 2 * page(), &b, &offset), ncclSystemError);
  expect_error("raise ulimit -f");
  /* Lowered since. */
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
  ncclResult_t late = tt_shm_alloc(shm, 1, &b, &offset);
  ncclResult_t made = tt_shm_create(ARENA, &refused);
  setrlimit(RLIMIT_FSIZE, &before);
  ck_assert_int_eq(late, ncclSystemError);
  ck_assert_int_eq(made, ncclSystemError);
  expect_error("raise ulimit -f");
  ck_assert_int_eq(tt_shm_alloc(shm, 1, &b, &offset), ncclSuccess);
  tt_shm_destroy(shm);
  shm = arena();
  ck_assert_uint_eq(tt_shm_size(shm), ARENA);
  tt_shm_destroy(shm);
}
END_TEST

Suite *shm_suite(void)
{
  Suite *suite = suite_create("shared memory");
  TCase *one = clean_case(suite, "shared memory");
  tcase_add_test(one, blocks);
  tcase_add_test(one, beyond_the_space);
  tcase_add_test(one, wrong_frees);
  tcase_add_test(one, sealed);
  tcase_add_test(one, map_checks);
  tcase_add_test(one, two_processes);
  tcase_add_test(one, threads);
  tcase_add_test(one, used_once);
  tcase_add_test(one, smaller_where_files_must_be);
  return suite;
}
