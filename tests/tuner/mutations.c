/* Random tests of the parser: rules that are written and read again, and files with random damage. Whatever the damage,
 * either every rule that comes out is within its limits, or a mistake is named at a place that exists. Assertions that
 * hold are not free, so there are none in the loops. */
#include "rules.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "tutti/tuner.h"

static int rounds;
static unsigned seed;

static unsigned below(unsigned limit)
{
  return (unsigned)rand_r(&seed) % limit;
}

static int any_or(unsigned limit)
{
  return below(3) == 0 ? TT_RULE_ANY : (int)below(limit) + 1;
}

static struct tt_table_rule random_rule(void)
{
  struct tt_table_rule rule = {.collective = (int)below(NCCL_NUM_FUNCTIONS), .protocol = (int)below(3)};
  do {
    rule.algorithm = (int)below(TUTTI_NUM_ALGORITHMS);
  } while (strcmp(tt_table_algorithm(rule.algorithm), "?") == 0);
  rule.min_bytes = below(3) ? below(1000) : (uint64_t)below(1u << 31) << 30;
  rule.max_bytes = below(4) ? rule.min_bytes + below(1u << 31) : UINT64_MAX;
  rule.nchannels = any_or(64);
  rule.nnodes = any_or(1000);
  rule.nranks = any_or(1u << 30);
  rule.pipe_ops = any_or(8);
  rule.reg_buff = any_or(1);
  return rule;
}

START_TEST(written_and_read_again)
{
  for (int i = 0; i < rounds; i++) {
    struct tt_table_rule rule = random_rule();
    struct tt_table_rules rules;
    struct tt_table_mistake mistake;
    char text[TT_RULE_TEXT];
    tt_table_rule_text(&rule, text);
    if (parse_bytes(text, strlen(text), &rules, &mistake) != ncclSuccess) ck_abort_msg("%s: %s", text, mistake.text);
    if (rules.count != 1 || !equal(&rules.rule[0], &rule)) ck_abort_msg("%s is read otherwise", text);
    tt_table_free(&rules);
  }
}
END_TEST

/* ---- Damage ---- */

static const char whole[] = "\xef\xbb\xbf# rules, all kinds\n"
                            "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks\n"
                            "allreduce,0,65536,tree,simple,2,1,-1,-1,1\r\n"
                            "\"broadcast\",32769,4294967295,ring, simple,2,-1,-1,1,\n"
                            "\n"
                            "reducescatter,131073,-1,PAT,ll128,-1,-1,-1,2,0\n"
                            "allgather,0,18446744073709551615,direct,ll,64,2147483647,64,,,,\n"
                            "reduce,7,7,nvls_tree,simple,-1,-1,-1";
#define ROOM (2 * sizeof whole)

/* One piece of damage: a byte changed, put in, or taken out, a piece doubled, or the end cut off. */
static size_t damage(char *text, size_t bytes)
{
  static const char likely[] = ",,\n\"\"-1# _\r09ax";
  char byte = below(3) ? likely[below(sizeof likely)] : (char)below(256); /* its final zero is one, too */
  size_t at = bytes ? below((unsigned)bytes) : 0;
  switch (below(bytes ? 5 : 1)) {
  case 0:
    if (bytes + 1 > ROOM) return bytes;
    memmove(text + at + 1, text + at, bytes - at);
    text[at] = byte;
    return bytes + 1;
  case 1:
    text[at] = byte;
    return bytes;
  case 2:
    memmove(text + at, text + at + 1, bytes - at - 1);
    return bytes - 1;
  case 3: {
    size_t piece = below(40) + 1;
    if (piece > bytes - at || bytes + piece > ROOM) return bytes;
    memmove(text + at + piece, text + at, bytes - at);
    return bytes + piece;
  }
  default:
    return below(20) ? bytes : at;
  }
}

static bool any_or_in(int value, int least, int most)
{
  return value == TT_RULE_ANY || (value >= least && value <= most);
}

static void check_limits(const struct tt_table_rule *rule)
{
  char text[TT_RULE_TEXT];
  bool names = strcmp(tt_table_collective(rule->collective), "?") != 0 &&
               strcmp(tt_table_algorithm(rule->algorithm), "?") != 0 &&
               strcmp(tt_table_protocol(rule->protocol), "?") != 0;
  bool numbers = rule->line > 0 && rule->min_bytes <= rule->max_bytes && any_or_in(rule->nchannels, 1, 64) &&
                 any_or_in(rule->nnodes, 1, INT_MAX) && any_or_in(rule->nranks, 1, INT_MAX) &&
                 any_or_in(rule->pipe_ops, 1, INT_MAX) && any_or_in(rule->reg_buff, 0, 1);
  if (!names || !numbers) ck_abort_msg("line %u was read as %s", rule->line, tt_table_rule_text(rule, text));
}

/* The place of a mistake is a byte of a line, or just behind its end where something is missing. */
static void check_place(const struct tt_table_mistake *mistake, const char *text, size_t bytes)
{
  const char *line = text, *end = text + bytes;
  for (unsigned i = 1; i < mistake->line; i++) {
    line = memchr(line, '\n', (size_t)(end - line));
    if (!line) ck_abort_msg("line %u is not there", mistake->line);
    line++;
  }
  const char *stop = memchr(line, '\n', (size_t)(end - line));
  size_t room = (size_t)((stop ? stop : end) - line) + 1;
  if (mistake->line < 1 || mistake->column < 1 || mistake->column > room || !mistake->text[0])
    ck_abort_msg("%u:%u: %s", mistake->line, mistake->column, mistake->text);
  for (const char *c = mistake->text; *c; c++)
    if (*c < ' ' || *c >= 127) ck_abort_msg("a byte of the file is in the message: %s", mistake->text);
}

START_TEST(damaged_files)
{
  int accepted = 0, refused = 0;
  for (int i = 0; i < rounds; i++) {
    char text[ROOM];
    size_t bytes = sizeof whole - 1;
    struct tt_table_rules rules;
    struct tt_table_mistake mistake;
    memcpy(text, whole, bytes);
    for (unsigned k = below(8) + 1; k > 0; k--) bytes = damage(text, bytes);
    if (parse_bytes(text, bytes, &rules, &mistake) == ncclSuccess) {
      for (int r = 0; r < rules.count; r++) check_limits(&rules.rule[r]);
      accepted++;
    } else {
      if (rules.count != 0) ck_abort_msg("rules of a broken file");
      check_place(&mistake, text, bytes);
      refused++;
    }
    tt_table_free(&rules);
  }
  /* The damage is neither always harmless nor always fatal, so both ways have been seen. */
  ck_assert_msg(accepted > rounds / 50 && refused > rounds / 10, "%d accepted, %d refused", accepted, refused);
}
END_TEST

START_TEST(every_length)
{
  for (size_t bytes = 0; bytes < sizeof whole; bytes++) {
    struct tt_table_rules rules;
    struct tt_table_mistake mistake;
    if (parse_bytes(whole, bytes, &rules, &mistake) != ncclSuccess) check_place(&mistake, whole, bytes);
    tt_table_free(&rules);
  }
}
END_TEST

void add_mutations(TCase *tcase, int wanted_rounds, unsigned wanted_seed)
{
  rounds = wanted_rounds;
  seed = wanted_seed;
  tcase_add_test(tcase, written_and_read_again);
  tcase_add_test(tcase, damaged_files);
  tcase_add_test(tcase, every_length);
}
