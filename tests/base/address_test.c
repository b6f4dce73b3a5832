/* Reading and printing addresses. */
#include "support.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/socket.h"

START_TEST(round_trips)
{
  static const char *const rows[][2] = {
      {"192.0.2.1:40001", "192.0.2.1<40001>"},
      {"127.0.0.1:0", "127.0.0.1<0>"},
      {"255.255.255.255:65535", "255.255.255.255<65535>"},
      {"[2001:db8::1]:40001", "[2001:db8::1]<40001>"},
      {"[::1]:1", "[::1]<1>"},
      {"[::ffff:192.0.2.1]:7", "[::ffff:192.0.2.1]<7>"},
      {"[fe80::1%lo]:7", "[fe80::1%lo]<7>"},
  };
  for (size_t i = 0; i < TT_COUNT(rows); i++) {
    union tt_address address;
    char text[TT_ADDRESS_TEXT];
    ck_assert_msg(tt_address_parse(rows[i][0], &address) == ncclSuccess, "%s", rows[i][0]);
    ck_assert_ptr_eq(tt_address_print(&address, text), text);
    ck_assert_str_eq(text, rows[i][1]);
    bool v6 = rows[i][0][0] == '[';
    ck_assert_uint_eq(tt_address_bytes(&address), v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
  }
  union tt_address none;
  char text[TT_ADDRESS_TEXT];
  memset(&none, 0, sizeof(none));
  ck_assert_str_eq(tt_address_print(&none, text), "(no address)");
}
END_TEST

START_TEST(names)
{
  union tt_address address;
  set_variable("NCCL_SOCKET_FAMILY", "AF_INET");
  ck_assert_int_eq(tt_address_parse("localhost:99", &address), ncclSuccess);
  ck_assert_int_eq(address.sa.sa_family, AF_INET);
  ck_assert(tt_address_is_loopback(&address));
  ck_assert_int_eq(ntohs(address.v4.sin_port), 99);
}
END_TEST

START_TEST(junk)
{
  static const char *const rows[] = {"",
                                     ":",
                                     ":5",
                                     "host",
                                     "host:",
                                     "127.0.0.1",
                                     "127.0.0.1:65536",
                                     "127.0.0.1:99999999999",
                                     "127.0.0.1:-1",
                                     "127.0.0.1:+1",
                                     "127.0.0.1: 1",
                                     "127.0.0.1:1x",
                                     "127.0.0.1:0x10",
                                     "2001:db8::1:40001",
                                     "::1",
                                     "[::1]",
                                     "[::1]1",
                                     "[::1]:",
                                     "[::1:5",
                                     "[]:5",
                                     "[192.0.2.1]:5",
                                     "[localhost]:5",
                                     "[::g]:5",
                                     "[fe80::1%nope0]:5"};
  for (size_t i = 0; i < TT_COUNT(rows); i++) {
    union tt_address address;
    ck_assert_msg(tt_address_parse(rows[i], &address) == ncclInvalidUsage, "\"%s\" was taken", rows[i]);
    expect_error(rows[i]);
  }
  union tt_address address;
  ck_assert_int_eq(tt_address_parse(NULL, &address), ncclInvalidUsage);
  char endless[2000];
  memset(endless, 'a', sizeof(endless));
  strcpy(endless + sizeof(endless) - 3, ":1");
  ck_assert_int_eq(tt_address_parse(endless, &address), ncclInvalidUsage);
}
END_TEST

START_TEST(loopback)
{
  union tt_address address;
  static const struct {
    const char *text;
    bool loopback;
  } rows[] = {{"127.0.0.1:1", true}, {"127.255.0.3:1", true}, {"128.0.0.1:1", false},
              {"[::1]:1", true},     {"[::2]:1", false},      {"[::ffff:127.0.0.1]:1", true}};
  for (size_t i = 0; i < TT_COUNT(rows); i++) {
    ck_assert_int_eq(tt_address_parse(rows[i].text, &address), ncclSuccess);
    ck_assert_msg(tt_address_is_loopback(&address) == rows[i].loopback, "%s", rows[i].text);
  }
}
END_TEST

Suite *address_suite(void)
{
  Suite *suite = suite_create("addresses");
  TCase *one = clean_case(suite, "addresses");
  tcase_add_test(one, round_trips);
  tcase_add_test(one, names);
  tcase_add_test(one, junk);
  tcase_add_test(one, loopback);
  return suite;
}
