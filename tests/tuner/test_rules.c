/* The parser of the table tuner's rules: what it reads, and what it says of each kind of mistake. Without arguments a
 * short run of the mutations is part of it; `test_tuner_rules rounds seed` makes a longer or another one. */
#include "rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tutti/tuner.h"

#define ANY TT_RULE_ANY
#define REST "tree,simple,2,1,8"

ncclResult_t parse_bytes(const char *text, size_t bytes, struct tt_table_rules *rules, struct tt_table_mistake *mistake)
{
  char *copy = malloc(bytes ? bytes : 1);
  if (bytes) memcpy(copy, text, bytes);
  ncclResult_t result = tt_table_parse(copy, bytes, rules, mistake);
  free(copy);
  return result;
}

bool equal(const struct tt_table_rule *one, const struct tt_table_rule *other)
{
  return one->collective == other->collective && one->min_bytes == other->min_bytes &&
         one->max_bytes == other->max_bytes && one->algorithm == other->algorithm && one->protocol == other->protocol &&
         one->nchannels == other->nchannels && one->nnodes == other->nnodes && one->nranks == other->nranks &&
         one->pipe_ops == other->pipe_ops && one->reg_buff == other->reg_buff;
}

static void check_equal(const struct tt_table_rule *one, const struct tt_table_rule *other)
{
  char first[TT_RULE_TEXT], second[TT_RULE_TEXT];
  ck_assert_msg(equal(one, other), "%s is not %s", tt_table_rule_text(one, first), tt_table_rule_text(other, second));
}

static struct tt_table_rules read_good(const char *text)
{
  struct tt_table_rules rules;
  struct tt_table_mistake mistake;
  ncclResult_t result = parse_bytes(text, strlen(text), &rules, &mistake);
  ck_assert_msg(result == ncclSuccess, "%u:%u: %s, in\n%s", mistake.line, mistake.column, mistake.text, text);
  return rules;
}

/* ---- What is read ---- */

START_TEST(all_columns)
{
  struct tt_table_rules rules = read_good("allreduce,65537,1048576,ring,ll128,4,3,32,2,1\n");
  ck_assert_int_eq(rules.count, 1);
  ck_assert_uint_eq(rules.rule[0].line, 1);
  check_equal(&rules.rule[0], &(struct tt_table_rule){1, ncclFuncAllReduce, 65537, 1048576, NCCL_ALGO_RING,
                                                      NCCL_PROTO_LL128, 4, 3, 32, 2, 1});
  tt_table_free(&rules);
}
END_TEST

/* All of them come to the same rule. */
static const char *const same[] = {
    "broadcast,0,100,tree,simple,-1,1,-1,-1,-1\n",
    "broadcast,0,100,tree,simple,-1,1,-1,-1\n",
    "broadcast,0,100,tree,simple,-1,1,-1\n",
    "broadcast,0,100,tree,simple,-1,1,-1",
    "broadcast,0,100,tree,simple,-1,1,-1\r\n",
    "broadcast,0,100,tree,simple,-1,1,-1,,,,,\n",
    "broadcast,0,100,tree,simple,-1,1,-1,,-1\n",
    " broadcast , 0,\t100 ,tree,simple ,-1, 1,-1\n",
    "\"broadcast\",\"0\",100,\"tree \",simple,-1,\"1\" ,-1\n",
    "Broadcast,0,100,TREE,Simple,-1,1,-1\n",
    "broadcast,000,0100,tree,simple,-1,01,-1\n",
    "\xef\xbb\xbf"
    "broadcast,0,100,tree,simple,-1,1,-1\n",
    "# all, of it\n\n  \t\n,,,\n\r\n  # more\n\"# quoted, too\",\nbroadcast,0,100,tree,simple,-1,1,-1\n#end",
    "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n"
    "broadcast,0,100,tree,simple,-1,1,-1\n",
    "# first\nCollective_Type,min_bytes\nbroadcast,0,100,tree,simple,-1,1,-1\n",
};

START_TEST(ways_to_write_a_rule)
{
  struct tt_table_rules rules = read_good(same[_i]);
  ck_assert_int_eq(rules.count, 1);
  check_equal(&rules.rule[0], &(struct tt_table_rule){0, ncclFuncBroadcast, 0, 100, NCCL_ALGO_TREE, NCCL_PROTO_SIMPLE,
                                                      ANY, 1, ANY, ANY, ANY});
  tt_table_free(&rules);
}
END_TEST

START_TEST(all_names)
{
  static const struct {
    const char *text;
    int algorithm;
  } algorithms[] = {{"tree", 0},    {"ring", 1},      {"collnet_direct", 2}, {"collnet_chain", 3}, {"nvls", 4},
                    {"pat", 6},     {"nvls_tree", 5}, {"NVLSTree", 5},       {"CollNetDirect", 2}, {"one_shot", 7},
                    {"direct", 10}, {"two_shot", 8},  {"TWOSHOT", 8}};
  static const char *const collectives[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
  static const char *const protocols[] = {"ll", "ll128", "simple"};
  for (int i = 0; i < (int)(sizeof algorithms / sizeof *algorithms); i++) {
    char text[128];
    snprintf(text, sizeof text, "%s,0,1,%s,%s,-1,-1,-1", collectives[i % 5], algorithms[i].text, protocols[i % 3]);
    struct tt_table_rules rules = read_good(text);
    ck_assert_int_eq(rules.rule[0].collective, i % 5);
    ck_assert_int_eq(rules.rule[0].algorithm, algorithms[i].algorithm);
    ck_assert_int_eq(rules.rule[0].protocol, i % 3);
    tt_table_free(&rules);
  }
}
END_TEST

START_TEST(order_and_lines)
{
  struct tt_table_rules rules = read_good("# a\nreduce,0,1," REST "\n\nreduce,2,3," REST "\r\nallgather,4,4," REST);
  ck_assert_int_eq(rules.count, 3);
  for (int i = 0; i < 3; i++) ck_assert_uint_eq(rules.rule[i].min_bytes, (uint64_t)(2 * i));
  ck_assert_uint_eq(rules.rule[0].line, 2);
  ck_assert_uint_eq(rules.rule[1].line, 4);
  ck_assert_uint_eq(rules.rule[2].line, 5);
  tt_table_free(&rules);
  ck_assert_int_eq(read_good("").count, 0);
  ck_assert_int_eq(read_good("# nothing but this").count, 0);
}
END_TEST

START_TEST(extreme_numbers)
{
  struct tt_table_rules rules = read_good("reduce,18446744073709551614,18446744073709551615,tree,ll,64,2147483647,1\n"
                                          "reduce,0,-1,tree,ll,1,-1,-1,2147483647,0\n"
                                          "reduce,4294967296,4294967296,tree,ll,1,-1,-1\n");
  ck_assert_uint_eq(rules.rule[0].min_bytes, UINT64_MAX - 1);
  ck_assert_uint_eq(rules.rule[0].max_bytes, UINT64_MAX);
  ck_assert_int_eq(rules.rule[0].nchannels, 64);
  ck_assert_int_eq(rules.rule[0].nnodes, 2147483647);
  ck_assert_uint_eq(rules.rule[1].max_bytes, UINT64_MAX);
  ck_assert_int_eq(rules.rule[1].pipe_ops, 2147483647);
  ck_assert_int_eq(rules.rule[1].reg_buff, 0);
  ck_assert_uint_eq(rules.rule[2].min_bytes, (uint64_t)1 << 32);
  tt_table_free(&rules);
}
END_TEST

START_TEST(many_rules)
{
  const int count = 3000;
  char *text = malloc((size_t)count * 64), *at = text;
  for (int i = 0; i < count; i++) at += sprintf(at, "allreduce,%d,%d," REST "\n", i, i + 1);
  struct tt_table_rules rules = read_good(text);
  ck_assert_int_eq(rules.count, count);
  for (int i = 0; i < count; i++)
    if (rules.rule[i].min_bytes != (uint64_t)i) ck_abort_msg("rule %d is not in its place", i);
  tt_table_free(&rules);
  free(text);
}
END_TEST

/* ---- Mistakes ---- */

static const struct {
  const char *text;
  unsigned line, column;
  const char *says[3]; /* the value, what is wrong, what to do */
} mistakes[] = {
    {"allredcue,0,1," REST,
     1,
     1,
     {"\"allredcue\" as collective_type", "none of the names", "reducescatter, allreduce"}},
    {"all,0,1," REST, 1, 1, {"\"all\" as collective_type", "none of the names", "broadcast, reduce,"}},
    {"\nreduce,x,1," REST, 2, 8, {"\"x\" as min_bytes", "not a number", "write digits only, 0 to"}},
    {"reduce,-1,1," REST, 1, 8, {"\"-1\" as min_bytes", "not a number", "digits"}},
    {"reduce, 0x10,1," REST, 1, 9, {"\"0x10\" as min_bytes", "not a number", "digits"}},
    {"reduce,0,64K," REST, 1, 10, {"\"64K\" as max_bytes", "not a number", "-1 for \"no limit\""}},
    {"reduce,0,1e6," REST, 1, 10, {"\"1e6\" as max_bytes", "not a number", "digits"}},
    {"reduce,0,18446744073709551616," REST,
     1,
     10,
     {"\"18446744073709551616\"", "not a number", "18446744073709551615"}},
    {"reduce,0,99999999999999999999," REST, 1, 10, {"\"99999999999999999999\"", "not a number", "digits"}},
    {"reduce,0,-2," REST, 1, 10, {"\"-2\" as max_bytes", "not a number", "-1"}},
    {"reduce,5,4," REST, 1, 8, {"\"5\" as min_bytes", "more than max_bytes, 4", "exchange"}},
    {"reduce,0,1,rings,ll,1,1,1", 1, 12, {"\"rings\" as algorithm", "none of the names", "tree, ring, collnet_direct"}},
    {"reduce,0,1,p2p,ll,1,1,1", 1, 12, {"\"p2p\" as algorithm", "none of", "two_shot, direct"}},
    {"reduce,0,1,ring,ll256,1,1,1", 1, 17, {"\"ll256\" as protocol", "none of the names", "ll, ll128, simple"}},
    {"reduce,0,1,ring,l l,1,1,1", 1, 17, {"\"l l\" as protocol", "none of the names", "ll128"}},
    {"reduce,0,1,ring,ll,0,1,1", 1, 20, {"\"0\" as channels", "not a number", "1 to 64, or -1"}},
    {"reduce,0,1,ring,ll,65,1,1", 1, 20, {"\"65\" as channels", "not a number", "1 to 64"}},
    {"reduce,0,1,ring,ll,2.0,1,1", 1, 20, {"\"2.0\" as channels", "not a number", "1 to 64"}},
    {"reduce,0,1,ring,ll,1,0,1", 1, 22, {"\"0\" as nNodes", "not a number", "1 to 2147483647, or -1 for \"any\""}},
    {"reduce,0,1,ring,ll,1,1,2147483648", 1, 24, {"\"2147483648\" as nRanks", "not a number", "any"}},
    {"reduce,0,1,ring,ll,1,1,1,0", 1, 26, {"\"0\" as numPipeOps", "not a number", "1 to"}},
    {"reduce,0,1,ring,ll,1,1,1,1,2", 1, 28, {"\"2\" as regBuff", "not a number", "0 to 1, or -1"}},
    {"reduce,0,1,ring,ll,1,1,1,1,+1", 1, 28, {"\"+1\" as regBuff", "not a number", "0 to 1"}},
    {"reduce,0,1,ring,ll,1,1\n", 1, 23, {"7 columns", "nRanks is missing", "at least 8"}},
    {"reduce", 1, 7, {"1 columns", "min_bytes is missing", "at least 8"}},
    {"reduce;0;1;ring;ll;1;1;1", 1, 1, {"\"reduce;0;1;ring;ll;1;1;1\" as", "none of", "write one of"}},
    {"reduce,,1," REST, 1, 8, {"min_bytes is empty", "numPipeOps on", "write a value"}},
    {",0,1," REST, 1, 1, {"collective_type is empty", "numPipeOps on", "write a value"}},
    {"reduce,0,1,ring,ll,1,1,1,1,1,x", 1, 30, {"\"x\" is in column 11", "there are 10", "remove it"}},
    {"reduce,0,1,ring,ll,1,1,1,,,# why", 1, 28, {"\"# why\" is in column 11", "there are 10", "lines of their own"}},
    {"reduce,0,1,\"ring,ll,1,1,1\nreduce", 1, 12, {"quote is opened", "not closed on the same line", "close it"}},
    {"reduce,0,1,\"ring\"s,ll,1,1,1", 1, 18, {"\"s,ll,1,1,1\" follows a closing quote", "only a comma", "inside"}},
    {"collective_type,max_bytes\n", 1, 17, {"column 2 is called \"max_bytes\"", "min_bytes", "order"}},
    {"reduce,0,1," REST "\ncollective_type,min_bytes", 2, 1, {"\"collective_type\" as", "none of", "write one of"}},
    {"# \xc3\xa4\nreduce,0,1,r\xc3\xbcng,ll,1,1,1", 2, 12, {"\"r??ng\" as algorithm", "none of", "ring"}},
    {"an-unreasonably-long-name-that-would-fill-the-log,0,1," REST,
     1,
     1,
     {"\"an-unreasonably-long-name-that-would-fil...\" as", "none of", "write one of"}},
};

START_TEST(each_mistake_is_named)
{
  struct tt_table_rules rules;
  struct tt_table_mistake mistake;
  ck_assert_int_eq(parse_bytes(mistakes[_i].text, strlen(mistakes[_i].text), &rules, &mistake), ncclInvalidUsage);
  ck_assert_int_eq(rules.count, 0);
  ck_assert_ptr_null(rules.rule);
  for (int i = 0; i < 3; i++)
    ck_assert_msg(strstr(mistake.text, mistakes[_i].says[i]) != NULL, "\"%s\" is not in \"%s\"", mistakes[_i].says[i],
                  mistake.text);
  ck_assert_uint_eq(mistake.line, mistakes[_i].line);
  ck_assert_uint_eq(mistake.column, mistakes[_i].column);
}
END_TEST

START_TEST(bytes_of_zero)
{
  static const char text[] = "reduce,0,1,ri\0ng,ll,1,1,1\n";
  struct tt_table_rules rules;
  struct tt_table_mistake mistake;
  ck_assert_int_eq(parse_bytes(text, sizeof text - 1, &rules, &mistake), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(mistake.text, "\"ri?ng\" as algorithm"));
  /* A good rule before a mistake is of no use either: all or nothing. */
  static const char late[] = "reduce,0,1," REST "\nreduce,0,1," REST "\nbad";
  ck_assert_int_eq(parse_bytes(late, sizeof late - 1, &rules, &mistake), ncclInvalidUsage);
  ck_assert_int_eq(rules.count, 0);
  ck_assert_uint_eq(mistake.line, 3);
}
END_TEST

int main(int argc, char **argv)
{
  int rounds = argc > 1 ? atoi(argv[1]) : 3000;
  unsigned seed = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 0) : 1;
  TCase *tcase = tcase_create("rules");
  tcase_set_timeout(tcase, 0);
  tcase_add_test(tcase, all_columns);
  tcase_add_loop_test(tcase, ways_to_write_a_rule, 0, sizeof same / sizeof *same);
  tcase_add_test(tcase, all_names);
  tcase_add_test(tcase, order_and_lines);
  tcase_add_test(tcase, extreme_numbers);
  tcase_add_test(tcase, many_rules);
  tcase_add_loop_test(tcase, each_mistake_is_named, 0, sizeof mistakes / sizeof *mistakes);
  tcase_add_test(tcase, bytes_of_zero);
  add_mutations(tcase, rounds, seed);
  Suite *suite = suite_create("tuner rules");
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_set_fork_status(runner, CK_NOFORK);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
