/* Messages between connection services: written, read, and refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "connect/connect.h"
#include "connect/message.h"
#include "tests/common/effort.h"

static struct tt_connect_message make(enum tt_connect_kind kind, int count, const char *text)
{
  struct tt_connect_message message = {0};
  ck_assert_int_eq(tt_connect_message_begin(&message, kind, 1, text), ncclSuccess);
  for (int i = 0; i < count; i++) {
    struct tt_connect_record record = {.channel = i / 2, .send = i % 2, .transport = i % 3 ? TT_TRANSPORT_NET : 0};
    record.handshake.bytes = (uint16_t)(i * 5 % (TT_HANDSHAKE_MAX + 1));
    memset(record.handshake.data, i, record.handshake.bytes);
    ck_assert_int_eq(tt_connect_message_add(&message, &record), ncclSuccess);
  }
  return message;
}

START_TEST(survives)
{
  struct tt_connect_message message = make(TT_CONNECT_HALVES, 128, "text");
  struct tt_connect_parsed parsed;
  const char *why;
  ck_assert(tt_connect_message_parse(message.data, message.bytes, &parsed, &why));
  ck_assert_int_eq(parsed.kind, TT_CONNECT_HALVES);
  ck_assert_int_eq(parsed.index, 1);
  ck_assert_int_eq(parsed.nrecords, 128);
  ck_assert_str_eq(parsed.text, "text");
  for (int i = 0; i < 128; i++) {
    ck_assert_int_eq(parsed.records[i].channel, i / 2);
    ck_assert_int_eq(parsed.records[i].send, i % 2);
    ck_assert_int_eq(parsed.records[i].transport, i % 3 ? TT_TRANSPORT_NET : 0);
    ck_assert_int_eq(parsed.records[i].handshake.bytes, i * 5 % (TT_HANDSHAKE_MAX + 1));
    for (int k = 0; k < parsed.records[i].handshake.bytes; k++)
      if (parsed.records[i].handshake.data[k] != i) ck_abort_msg("record %d, byte %d", i, k);
  }
  free(parsed.records);
  free(message.data);
}
END_TEST

START_TEST(cut_anywhere)
{
  struct tt_connect_message message = make(TT_CONNECT_FAILED, 6, "why");
  struct tt_connect_parsed parsed;
  const char *why;
  for (size_t bytes = 0; bytes < message.bytes; bytes++) {
    unsigned char *cut = malloc(bytes ? bytes : 1); /* so that a sanitizer sees a read past the end */
    memcpy(cut, message.data, bytes);
    ck_assert(!tt_connect_message_parse(cut, bytes, &parsed, &why));
    ck_assert_ptr_nonnull(why);
    free(cut);
  }
  free(message.data);
}
END_TEST

START_TEST(refused)
{
  static const struct {
    size_t at;
    unsigned char value;
    const char *why;
  } cases[] = {
      {0, 0, "version"},
      {4, 9, "version"},
      {6, 0, "kind"},
      {6, 4, "kind"},
      {7, TT_CONN_INDICES, "index"},
      {8, 255, "cut short"},
      {9, 2, "cut short"},
      {10, 129, "too many"},
      {10, 5, "longer than"},
      {14, 64, "channel"},
      {15, 1, "channel"},
      {16, 2, "direction"},
      {17, TT_NUM_TRANSPORTS, "transport"},
      {19, 3, "too long"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct tt_connect_message message = make(TT_CONNECT_READY, 6, NULL);
    struct tt_connect_parsed parsed;
    const char *why;
    message.data[cases[i].at] = cases[i].value;
    ck_assert(!tt_connect_message_parse(message.data, message.bytes, &parsed, &why));
    ck_assert_msg(strstr(why, cases[i].why) != NULL, "case %zu says: %s", i, why);
    free(message.data);
  }
}
END_TEST

START_TEST(fuzz)
{
  srand(3);
  int taken = 0;
  for (int i = 0; i < EFFORT_ALONE(50000, 2000); i++) {
    struct tt_connect_message message = make(1 + rand() % 3, rand() % 10, rand() % 2 ? "text" : NULL);
    size_t bytes = rand() % 3 ? message.bytes : (size_t)rand() % (message.bytes + 1);
    for (int k = rand() % 5; k > 0; k--) message.data[(size_t)rand() % message.bytes] = (unsigned char)rand();
    struct tt_connect_parsed parsed;
    const char *why;
    if (tt_connect_message_parse(message.data, bytes, &parsed, &why)) {
      taken++;
      bool sane = parsed.nrecords >= 0 && parsed.nrecords <= 2 * TT_MAX_CHANNELS;
      for (int r = 0; r < parsed.nrecords; r++)
        sane = sane && parsed.records[r].channel < TT_MAX_CHANNELS && parsed.records[r].transport < TT_NUM_TRANSPORTS &&
               parsed.records[r].handshake.bytes <= TT_HANDSHAKE_MAX;
      ck_assert(sane);
      free(parsed.records);
    }
    free(message.data);
  }
  ck_assert_int_gt(taken, 100);
}
END_TEST

void add_message(Suite *suite)
{
  TCase *tc = tcase_create("message");
  tcase_set_timeout(tc, 120);
  tcase_add_test(tc, survives);
  tcase_add_test(tc, cut_anywhere);
  tcase_add_test(tc, refused);
  tcase_add_test(tc, fuzz);
  suite_add_tcase(suite, tc);
}
