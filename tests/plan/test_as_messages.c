/* More ranks than a program of the device can name: all-to-all, gather and scatter go as messages, and the others by
 * programs of few peers, which the fake device sees to. */
#include <stdlib.h>
#include <string.h>
#include "base/param.h"
#include "collectives.h"
#include "plan/comm.h"
#include "tests/fakes/device/fake.h"

enum { N = 5, PEERS = 3, LONG_MS = 60000 };

static ncclComm_t comms[N];

static void open_comms(void)
{
  fake_limit_peers(PEERS);
  tt_param_reset();
  ok(ncclCommInitAll(comms, N, NULL));
}

static void close_comms(void)
{
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(comms[r]));
  fake_limit_peers(0);
}

static void wait_all(void)
{
  for (int r = 0; r < N; r++) {
    fake_set_device(r);
    ck_assert(fake_stream_wait(NULL, LONG_MS));
  }
}

/* One after another, and all in one group. */
START_TEST(all_kinds)
{
  static const size_t counts[] = {1, 1000, 60000};
  struct operation operations[KINDS][N];
  open_comms();
  for (int c = 0; c < 3; c++) {
    for (int k = 0; k < KINDS; k++)
      for (int r = 0; r < N; r++) {
        operations[k][r] = (struct operation){.kind = k, .n = N, .rank = r, .root = k % N, .count = counts[c]};
        operation_open(&operations[k][r]);
      }
    for (int time = 0; time < 2; time++) {
      bool together = time == 1;
      for (int k = 0; k < KINDS; k++)
        for (int r = 0; r < N; r++) operation_fill(&operations[k][r], (uint32_t)(7 * k + time));
      if (together) ok(ncclGroupStart());
      for (int k = 0; k < KINDS; k++) {
        ok(ncclGroupStart());
        for (int r = 0; r < N; r++) ok(operation_call(&operations[k][r], comms[r], NULL));
        ok(ncclGroupEnd());
      }
      if (together) ok(ncclGroupEnd());
      wait_all();
      for (int k = 0; k < KINDS; k++)
        for (int r = 0; r < N; r++) operation_check(&operations[k][r]);
    }
    for (int k = 0; k < KINDS; k++)
      for (int r = 0; r < N; r++) operation_close(&operations[k][r]);
  }
  close_comms();
}
END_TEST

/* The root's own block lies where it belongs, at the beginning, in the middle or at the end. */
START_TEST(rooted_in_place)
{
  enum { COUNT = 3000 };
  uint32_t *all = malloc(N * COUNT * sizeof *all), *own = malloc(N * COUNT * sizeof *own);
  ck_assert(all != NULL && own != NULL);
  open_comms();
  for (int i = 0; i < N * COUNT; i++) all[i] = i / COUNT == _i ? (uint32_t)i : 0;
  for (int i = 0; i < N * COUNT; i++) own[i] = (uint32_t)i;
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclGather((r == _i ? all : own) + (size_t)r * COUNT, r == _i ? all : NULL, COUNT, ncclUint32, _i, comms[r],
                  NULL));
  ok(ncclGroupEnd());
  wait_all();
  for (int i = 0; i < N * COUNT; i++) ck_assert_uint_eq(all[i], (uint32_t)i);
  memset(own, 0, N * COUNT * sizeof *own);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclScatter(r == _i ? all : NULL, (r == _i ? all : own) + (size_t)r * COUNT, COUNT, ncclUint32, _i, comms[r],
                   NULL));
  ok(ncclGroupEnd());
  wait_all();
  for (int i = 0; i < N * COUNT; i++) {
    ck_assert_uint_eq(all[i], (uint32_t)i);
    ck_assert_uint_eq(own[i], i / COUNT == _i ? 0 : (uint32_t)i);
  }
  close_comms();
  free(all);
  free(own);
}
END_TEST

/* Refused where it is called, and nothing else is: the communicators go on, and number their operations alike. */
START_TEST(all_to_all_in_place)
{
  uint32_t buffer[N] = {0};
  struct operation operations[N];
  open_comms();
  ck_assert_int_eq(ncclAlltoAll(buffer, buffer, 1, ncclUint32, comms[1], NULL), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(comms[1]), "sendbuff and recvbuff overlap"));
  ck_assert_uint_eq(atomic_load(&comms[1]->op_count), 0);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    operations[r] = (struct operation){.kind = ALL_TO_ALL, .n = N, .rank = r, .count = 100};
    operation_open(&operations[r]);
    ok(operation_call(&operations[r], comms[r], NULL));
  }
  ok(ncclGroupEnd());
  wait_all();
  for (int r = 0; r < N; r++) {
    operation_check(&operations[r]);
    operation_close(&operations[r]);
    ck_assert_uint_eq(atomic_load(&comms[r]->op_count), 1);
  }
  close_comms();
}
END_TEST

void add_as_messages(Suite *suite)
{
  TCase *tests = tcase_create("as_messages");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, all_kinds);
  tcase_add_loop_test(tests, rooted_in_place, 0, N);
  tcase_add_test(tests, all_to_all_in_place);
  suite_add_tcase(suite, tests);
}
