/* The filter grammar, and the choice among made-up and real interfaces. */
#include "support.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/socket_internal.h"

static const struct {
  const char *filter, *name;
  bool passes;
} filter_rows[] = {
    {NULL, "eth0", true},
    {NULL, "lo", true},
    {"", "eth0", true},
    {"  ", "eth0", true},
    {",", "eth0", true},
    {"^", "eth0", true},
    {"=", "eth0", true},
    {"^=", "eth0", true},
    {"eth", "eth0", true},
    {"eth", "eth12", true},
    {"eth", "ens1", false},
    {"eth0", "eth0", true},
    {"eth0", "eth01", true},
    {"eth0", "eth", false},
    {"=eth0", "eth0", true},
    {"=eth0", "eth01", false},
    {"=eth", "eth0", false},
    {"eth0,ib", "ib1", true},
    {"eth0,ib", "eth0", true},
    {"eth0,ib", "eth1", false},
    {" eth0 , ib0 ", "ib0", true},
    {" eth0 , ib0 ", "ib1", false},
    {"eth0,", "ens1", false},
    {",,eth0", "eth0", true},
    {",,eth0", "ens1", false},
    {"=eth0,ib0", "ib0", true},
    {"=eth0,ib0", "ib01", false},
    {"=eth0,=ib0", "ib0", true},
    {"=eth0,=ib0", "ib01", false},
    {"eth0,=ib0", "ib0", true},
    {"eth0,=ib0", "ib01", false},
    {"eth0,=ib0", "eth01", true},
    {"^docker", "docker0", false},
    {"^docker", "eth0", true},
    {"^docker0,lo", "lo", false},
    {"^docker0,lo", "docker1", true},
    {"^docker0,^lo", "lo", false},
    {"^docker0,^lo", "eth0", true},
    {"^=eth0", "eth0", false},
    {"^=eth0", "eth01", true},
    {"^ =eth0", "eth0", false},
    {" ^eth0", "eth0", false},
    {"eth0:1", "eth0", true},
    {"=eth0:1", "eth0", true},
    {"=eth0:1", "eth0:1", true},
    {"=eth0:1", "eth0:2", false},
    {"^eth0:1", "eth0", false},
    {":1", "eth0", false},
    {"ETH0", "eth0", false},
};

START_TEST(filters)
{
  ck_assert_msg(tt_ifname_match(filter_rows[_i].filter, filter_rows[_i].name) == filter_rows[_i].passes,
                "filter \"%s\", name %s", filter_rows[_i].filter ? filter_rows[_i].filter : "(none)",
                filter_rows[_i].name);
}
END_TEST

static struct tt_candidate candidate(const char *name, const char *address)
{
  struct tt_candidate one = {.up = true};
  snprintf(one.interface.name, sizeof(one.interface.name), "%s", name);
  one.loopback = strcmp(name, "lo") == 0;
  union tt_address *to = &one.interface.address;
  if (inet_pton(AF_INET, address, &to->v4.sin_addr) == 1)
    to->sa.sa_family = AF_INET;
  else if (inet_pton(AF_INET6, address, &to->v6.sin6_addr) == 1)
    to->sa.sa_family = AF_INET6;
  return one;
}

static struct {
  const char *name, *address;
} const machine[] = {
    {"lo", "127.0.0.1"},       {"lo", "::1"},           {"veth1", "169.254.3.4"}, {"tun0", "fe80::1"},
    {"docker0", "172.17.0.1"}, {"eth0", "fe80::2"},     {"eth0", "2001:db8::2"},  {"eth0", "192.0.2.2"},
    {"eth0", "192.0.2.3"},     {"ib0", "198.51.100.1"}, {"down0", "192.0.2.9"},   {"bare0", ""},
};

/* The choice as text: "eth0/4 ib0/4 ..." */
static const char *choose(const char *filter, int family)
{
  static char text[512];
  struct tt_candidate all[TT_COUNT(machine)];
  struct tt_interface chosen[TT_COUNT(machine)];
  for (size_t i = 0; i < TT_COUNT(machine); i++) {
    all[i] = candidate(machine[i].name, machine[i].address);
    all[i].up = strcmp(machine[i].name, "down0") != 0;
  }
  int count = tt_interface_choose(all, (int)TT_COUNT(all), filter, family, chosen);
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < count && used < sizeof(text); i++)
    used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s/%d", i ? " " : "", chosen[i].name,
                             chosen[i].address.sa.sa_family == AF_INET ? 4 : 6);
  return text;
}

START_TEST(choices)
{
  ck_assert_str_eq(choose(NULL, 0), "eth0/4 ib0/4 eth0/6 veth1/4 tun0/6");
  ck_assert_str_eq(choose("", 0), "eth0/4 ib0/4 eth0/6 veth1/4 tun0/6");
  ck_assert_str_eq(choose(NULL, AF_INET), "eth0/4 ib0/4 veth1/4");
  ck_assert_str_eq(choose(NULL, AF_INET6), "eth0/6 tun0/6");
  ck_assert_str_eq(choose("eth,ib", 0), "eth0/4 ib0/4 eth0/6");
  ck_assert_str_eq(choose("=ib0", AF_INET6), "");
  /* An exclusion adds to the default ones. */
  ck_assert_str_eq(choose("^docker0", 0), "eth0/4 ib0/4 eth0/6 veth1/4 tun0/6");
  ck_assert_str_eq(choose("^eth0", 0), "ib0/4 veth1/4 tun0/6");
  /* What is asked for by name is had. */
  ck_assert_str_eq(choose("lo", 0), "lo/4 lo/6");
  ck_assert_str_eq(choose("docker", 0), "docker0/4");
  ck_assert_str_eq(choose("lo,eth0", AF_INET), "eth0/4 lo/4");
  /* What is left when all else is excluded: containers' interfaces, then loopback, then nothing. */
  ck_assert_str_eq(choose("^eth,ib,veth,tun", 0), "docker0/4");
  ck_assert_str_eq(choose("^eth,ib,veth,tun,docker", 0), "lo/4 lo/6");
  ck_assert_str_eq(choose("^eth,ib,veth,tun,docker,lo", 0), "");
  ck_assert_str_eq(choose("down0", 0), "");
  ck_assert_str_eq(choose("bare0", 0), "");
}
END_TEST

START_TEST(first_address_is_global)
{
  struct tt_candidate all[] = {candidate("eth0", "fe80::1"), candidate("eth0", "2001:db8::1"),
                               candidate("eth0", "2001:db8::2")};
  struct tt_interface chosen[3];
  ck_assert_int_eq(tt_interface_choose(all, 3, NULL, 0, chosen), 1);
  ck_assert_int_eq(chosen[0].address.v6.sin6_addr.s6_addr[0], 0x20);
  ck_assert_int_eq(chosen[0].address.v6.sin6_addr.s6_addr[15], 1);
}
END_TEST

START_TEST(unready_address_is_not_chosen)
{
  struct tt_candidate all[] = {candidate("eth0", "2001:db8::1"), candidate("eth0", "fe80::1")};
  struct tt_interface chosen[2];
  all[0].unready = true;
  ck_assert_int_eq(tt_interface_choose(all, 2, "eth0", 0, chosen), 1);
  ck_assert_int_eq(chosen[0].address.v6.sin6_addr.s6_addr[0], 0xfe);
  all[1].unready = true;
  ck_assert_int_eq(tt_interface_choose(all, 2, "eth0", 0, chosen), 0);
}
END_TEST

START_TEST(this_machine)
{
  struct tt_interface *list;
  int count;
  ck_assert_int_eq(tt_socket_interfaces(&list, &count), ncclSuccess);
  ck_assert_int_gt(count, 0);
  free(list);
  set_variable("NCCL_SOCKET_IFNAME", "=lo");
  set_variable("NCCL_SOCKET_FAMILY", "af_inet");
  ck_assert_int_eq(tt_socket_interfaces(&list, &count), ncclSuccess);
  ck_assert_int_eq(count, 1);
  ck_assert_str_eq(list[0].name, "lo");
  ck_assert(tt_address_is_loopback(&list[0].address));
  free(list);
}
END_TEST

START_TEST(none_passes)
{
  struct tt_interface *list;
  int count;
  set_variable("NCCL_SOCKET_IFNAME", "nope0");
  int files = held_descriptors();
  ck_assert_int_eq(tt_socket_interfaces(&list, &count), ncclInvalidUsage);
  ck_assert_ptr_null(list);
  ck_assert_int_eq(count, 0);
  expect_error("NCCL_SOCKET_IFNAME=nope0");
  expect_error("lo 127.0.0.1");
  ck_assert_int_eq(held_descriptors(), files);
  set_variable("NCCL_SOCKET_IFNAME", NULL);
  set_variable("NCCL_SOCKET_FAMILY", "inet");
  ck_assert_int_eq(tt_socket_interfaces(&list, &count), ncclInvalidUsage);
  expect_error("NCCL_SOCKET_FAMILY=inet");
}
END_TEST

Suite *interface_suite(void)
{
  Suite *suite = suite_create("interfaces");
  TCase *one = clean_case(suite, "interfaces");
  tcase_add_loop_test(one, filters, 0, (int)TT_COUNT(filter_rows));
  tcase_add_test(one, choices);
  tcase_add_test(one, first_address_is_global);
  tcase_add_test(one, unready_address_is_not_chosen);
  tcase_add_test(one, this_machine);
  tcase_add_test(one, none_passes);
  return suite;
}
