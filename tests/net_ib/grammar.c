/* NCCL_IB_HCA's grammar and the choice of GIDs: what they must say, and that no text breaks them. */
#include <arpa/inet.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plugins/net-ib/gid.h"
#include "plugins/net-ib/hca.h"

START_TEST(filters)
{
  static const struct {
    const char *text, *name;
    int port;
    bool used;
    int rail, plane;
  } list[] = {{NULL, "mlx5_0", 1, true, -1, -1},
              {"", "mlx5_0", 1, true, -1, -1},
              {" , ,", "mlx5_0", 1, true, -1, -1},
              {"mlx5", "mlx5_0", 1, true, -1, -1},
              {"mlx5_1", "mlx5_10", 1, true, -1, -1},
              {"=mlx5_1", "mlx5_10", 1, false, -1, -1},
              {"=mlx5_1", "mlx5_1", 2, true, -1, -1},
              {"mlx5_0:1", "mlx5_0", 1, true, -1, -1},
              {"mlx5_0:1", "mlx5_0", 2, false, -1, -1},
              {"=mlx5_0:2,mlx5_1", "mlx5_0", 2, true, -1, -1},
              {"^mlx5_0", "mlx5_0", 1, false, -1, -1},
              {"^mlx5_0", "mlx5_1", 1, true, -1, -1},
              {"^mlx5_0:1", "mlx5_0", 2, true, -1, -1},
              {"^=mlx5_1", "mlx5_10", 1, true, -1, -1},
              {"^=mlx5_1", "mlx5_1", 1, false, -1, -1},
              {"^mlx5_1,^=mlx5_2", "mlx5_2", 1, false, -1, -1},
              {"^mlx5_1,^=mlx5_2", "mlx5_20", 1, true, -1, -1},
              {"=mlx5_0,=mlx5_1", "mlx5_1", 1, true, -1, -1},
              {"mlx5_0:1:3:7", "mlx5_0", 1, true, 3, 7},
              {"mlx5_0::3", "mlx5_0", 2, true, 3, -1},
              {"mlx5_0:::0", "mlx5_0", 2, true, -1, 0},
              {"mlx5_0:", "mlx5_0", 1, true, -1, -1},
              {" mlx5_0 , mlx5_1 ", "mlx5_1", 1, true, -1, -1},
              {"mlx5_0:1:5,mlx5_0:2:6", "mlx5_0", 2, true, 6, -1}};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    struct tt_ib_hca_filter filter;
    char why[200] = "";
    int rail, plane;
    ck_assert_msg(tt_ib_hca_parse(list[i].text, &filter, why, sizeof why), "\"%s\": %s", list[i].text, why);
    bool used = tt_ib_hca_match(&filter, list[i].name, list[i].port, &rail, &plane);
    ck_assert_msg(used == list[i].used, "\"%s\" for %s:%d", list[i].text, list[i].name, list[i].port);
    ck_assert_msg(rail == list[i].rail && plane == list[i].plane, "\"%s\": rail %d, plane %d", list[i].text, rail,
                  plane);
  }
}
END_TEST

START_TEST(filters_that_are_none)
{
  static const struct {
    const char *text, *says;
  } list[] = {{"a:0", "port"},       {"a:x", "\"x\""},  {"a:1:-1", "rail"},     {"a:1:2:99999", "plane"},
              {"a:1:2:3:4", "more"}, {":1", "no name"}, {"b,a:1x", "\"a:1x\""}, {"a:99999999999999999999", "port"}};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    struct tt_ib_hca_filter filter;
    char why[200] = "", text[1000];
    ck_assert_msg(!tt_ib_hca_parse(list[i].text, &filter, why, sizeof why), "\"%s\" passed", list[i].text);
    ck_assert_msg(strstr(why, list[i].says), "\"%s\": %s", list[i].text, why);
    /* Too long a name; too many entries. */
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    ck_assert(!tt_ib_hca_parse(text, &filter, why, sizeof why));
    for (size_t k = 1; k < sizeof text - 1; k += 2) text[k] = ',';
    ck_assert(!tt_ib_hca_parse(text, &filter, why, sizeof why));
  }
}
END_TEST

static uint32_t seed = 1;
static uint32_t roll(uint32_t most)
{
  seed = seed * 1664525u + 1013904223u;
  return (seed >> 8) % most;
}

/* Texts of the grammar's own characters: they are understood or refused with a reason, the same each time, and what is
 * excluded is what would be included. */
START_TEST(any_text)
{
  for (int round = 0; round < 50000; round++) {
    static const char alphabet[] = "ab^=:,,::129 \t_-";
    struct tt_ib_hca_filter filter, inverse;
    char text[24] = "", why[40] = "", inverted[32];
    int rail, plane;
    size_t length = roll(sizeof text - 1);
    for (size_t i = 0; i < length; i++) text[i] = alphabet[roll(sizeof alphabet - 1)];
    bool good = tt_ib_hca_parse(text, &filter, why, sizeof why);
    ck_assert(good || why[0]);
    ck_assert_int_le(filter.count, TT_IB_HCA_ENTRIES);
    if (!good || filter.excludes || strchr(text, '^')) continue;
    const char *start = text + strspn(text, " \t");
    snprintf(inverted, sizeof inverted, "^%s", start);
    ck_assert_msg(tt_ib_hca_parse(inverted, &inverse, why, sizeof why), "\"%s\" but not \"%s\": %s", text, inverted,
                  why);
    ck_assert_int_eq(inverse.count, filter.count);
    for (int i = 0; i < 4 && filter.count; i++) {
      const char *name = i & 1 ? "a1" : "b_2";
      bool used = tt_ib_hca_match(&filter, name, 1 + i / 2, &rail, &plane);
      ck_assert(used != tt_ib_hca_match(&inverse, name, 1 + i / 2, &rail, &plane));
    }
  }
}
END_TEST

static struct tt_ib_gid gid(int index, const char *text, int version)
{
  struct tt_ib_gid entry = {.index = index, .version = version};
  ck_assert_int_eq(inet_pton(AF_INET6, text, entry.gid.raw), 1);
  return entry;
}

START_TEST(gids)
{
  /* The first has a prefix and no interface behind it, as a port that was never given an address. */
  const struct tt_ib_gid table[] = {gid(8, "fe80::", 2),  gid(0, "fe80::1", 1),         gid(1, "fe80::1", 2),
                                    gid(2, "::", 0),      gid(3, "::ffff:10.1.0.5", 1), gid(4, "::ffff:10.1.0.5", 2),
                                    gid(5, "fd00::5", 1), gid(6, "fd00::5", 2),         gid(7, "::ffff:10.2.0.5", 2)};
  static const struct {
    const char *family, *range;
    int version, count, wanted; /* count: of the table's first entries */
  } list[] = {{NULL, NULL, 2, 9, 4},
              {NULL, NULL, 1, 9, 3},
              {"AF_INET6", NULL, 2, 9, 6},
              {"AF_INET6", NULL, 1, 9, 5},
              {NULL, "10.2.0.0/16", 2, 9, 7},
              {NULL, "10.2.0.0/16", 1, 9, 7}, /* the range is a must, the version a wish */
              {NULL, "10.0.0.0/8", 2, 9, 4},
              {NULL, "10.3.0.0/16", 2, 9, -1},
              {NULL, "0.0.0.0/0", 2, 9, 4},
              {NULL, "10.2.0.5/32", 2, 9, 7},
              {"AF_INET6", "fd00::/16", 2, 9, 6},
              {"AF_INET6", "fe80::/10", 2, 9, 1},
              {NULL, NULL, 2, 4, 1},       /* no IPv4 address: the best that there is */
              {"AF_INET6", NULL, 2, 6, 1}, /* the family before what is not link-local */
              {NULL, NULL, 2, 1, -1},
              {NULL, NULL, 2, 0, -1}};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    struct tt_ib_gid_wish wish;
    char why[200];
    ck_assert_msg(tt_ib_gid_wish(list[i].family, list[i].range, list[i].version, &wish, why, sizeof why), "%s", why);
    int chosen = tt_ib_gid_choose(table, list[i].count, &wish);
    ck_assert_msg((chosen < 0 ? -1 : table[chosen].index) == list[i].wanted, "case %zu: %d", i, chosen);
  }
}
END_TEST

START_TEST(wishes_that_are_none)
{
  static const char *const ranges[] = {"10.0.0.0",   "/8",          "10.0.0/8", "10.0.0.0/",
                                       "10.0.0.0/x", "10.0.0.0/-1", "fd00::/8", "10.0.0.0/33"};
  struct tt_ib_gid_wish wish;
  char why[200];
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
    ck_assert_msg(!tt_ib_gid_wish(NULL, ranges[i], 2, &wish, why, sizeof why), "%s passed", ranges[i]);
    ck_assert_ptr_nonnull(strstr(why, ranges[i]));
  }
  ck_assert(!tt_ib_gid_wish("AF_UNIX", NULL, 2, &wish, why, sizeof why));
  ck_assert(!tt_ib_gid_wish("AF_INET6", "10.0.0.0/8", 2, &wish, why, sizeof why));
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("net_ib_grammar");
  TCase *tcase = tcase_create("grammar");
  tcase_add_test(tcase, filters);
  tcase_add_test(tcase, filters_that_are_none);
  tcase_add_test(tcase, any_text);
  tcase_add_test(tcase, gids);
  tcase_add_test(tcase, wishes_that_are_none);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
