/* Contexts of the table tuner: which rule fits, what it does to the costs, and what became of all rules; see table.h.
 */
#include "table.h"

#include <float.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "base/check.h"

/* What has become of a rule. */
struct fate {
  _Atomic uint64_t matched, applied, passed; /* passed over: its choice was not possible */
};

struct tt_table {
  struct tt_table_place place;
  char path[TT_TABLE_PATH];
  struct tt_table_rules rules;
  struct fate *fates; /* one a rule */
  _Atomic uint64_t asked, matched, applied;
};

/* ---- Opening ---- */

/* Why no question of this communicator can match a rule; NULL if one can. */
static const char *never(const struct tt_table *table, const struct tt_table_rule *rule)
{
  const struct tt_table_place *place = &table->place;
  if (rule->nnodes != TT_RULE_ANY && (size_t)rule->nnodes != place->nnodes) return "it is for other numbers of nodes";
  if (rule->nranks != TT_RULE_ANY && (size_t)rule->nranks != place->nranks) return "it is for other numbers of ranks";
  if (rule->reg_buff != TT_RULE_ANY && !place->tells_buffers)
    return "whether buffers are registered is not told by this version of the tuner interface";
  return NULL;
}

static void say_loaded(const struct tt_table *table)
{
  int useful = 0;
  for (int i = 0; i < table->rules.count; i++) useful += never(table, &table->rules.rule[i]) == NULL;
  if (table->path[0])
    TT_INFO(TT_INIT | TT_TUNING, "TUNER/Tutti: %d rules from %s, of which %d can match with %zu nodes and %zu ranks",
            table->rules.count, table->path, useful, table->place.nnodes, table->place.nranks);
  else
    TT_INFO(TT_INIT | TT_TUNING,
            "TUNER/Tutti: no rules: NCCL_TUNER_CONFIG_FILE is not set, and there is no nccl_tuner.conf in the working "
            "directory");
}

ncclResult_t tt_table_open(const struct tt_table_place *place, struct tt_table **out)
{
  struct tt_table *table;
  ncclResult_t result = ncclSuccess;
  *out = NULL;
  TT_TRY(TT_CALLOC(&table, 1));
  table->place = *place;
  TT_TRY_GOTO(tt_table_load(&table->rules, table->path), result, out);
  TT_TRY_GOTO(TT_CALLOC(&table->fates, (size_t)table->rules.count + 1), result, out);
  say_loaded(table);
  *out = table;
out:
  if (result != ncclSuccess) {
    tt_table_free(&table->rules);
    free(table);
  }
  return result;
}

/* ---- Closing ---- */

static void say_fate(const struct tt_table *table, int index)
{
  const struct tt_table_rule *rule = &table->rules.rule[index];
  const uint64_t matched = atomic_load(&table->fates[index].matched);
  const char *reason = never(table, rule);
  char text[TT_RULE_TEXT];
  tt_table_rule_text(rule, text);
  if (matched == 0)
    TT_INFO(TT_INIT | TT_TUNING, "TUNER/Tutti: line %u (%s) never matched: %s", rule->line, text,
            reason ? reason : "nothing that was asked for fits it and no earlier rule");
  else if (atomic_load(&table->fates[index].applied) == 0)
    TT_INFO(TT_INIT | TT_TUNING, "TUNER/Tutti: line %u (%s) matched %" PRIu64 " times and was never possible",
            rule->line, text, matched);
}

void tt_table_close(struct tt_table *table)
{
  int matched = 0, applied = 0;
  for (int i = 0; i < table->rules.count; i++) {
    matched += atomic_load(&table->fates[i].matched) > 0;
    applied += atomic_load(&table->fates[i].applied) > 0;
  }
  if (table->path[0])
    TT_INFO(TT_INIT | TT_TUNING,
            "TUNER/Tutti: of %d rules from %s, %d matched and %d were applied; of %" PRIu64
            " questions, a rule matched "
            "%" PRIu64 " and was applied to %" PRIu64,
            table->rules.count, table->path, matched, applied, atomic_load(&table->asked), atomic_load(&table->matched),
            atomic_load(&table->applied));
  for (int i = 0; i < table->rules.count; i++) say_fate(table, i);
  tt_table_free(&table->rules);
  free(table->fates);
  free(table);
}

/* ---- Asking ---- */

static bool is_or_any(int wanted, int value)
{
  return wanted == TT_RULE_ANY || wanted == value;
}

static bool fits(const struct tt_table *table, const struct tt_table_rule *rule,
                 const struct tt_table_question *question)
{
  return rule->collective == question->collective && question->bytes >= rule->min_bytes &&
         question->bytes <= rule->max_bytes && is_or_any(rule->pipe_ops, question->pipe_ops) &&
         is_or_any(rule->reg_buff, question->reg_buff) && !never(table, rule);
}

/* The rule's place among the costs, or NULL and why it is not to be had. */
static float *place_of(const struct tt_table_rule *rule, const struct tt_table_costs *costs, const char **why)
{
  *why = "does not offer it";
  if (rule->algorithm >= costs->rows || rule->protocol >= costs->columns) return NULL;
  float *cost = &costs->cost[(size_t)rule->algorithm * (size_t)costs->columns + (size_t)rule->protocol];
  *why = "says that it is impossible here or forbidden";
  return *cost >= 0 ? cost : NULL;
}

/* 0 is the smallest that there is. */
void tt_table_make_win(const struct tt_table_costs *costs, float *winner)
{
  for (float *cost = costs->cost; cost < winner; cost++)
    if (*cost == 0) *cost = FLT_MIN;
  *winner = 0;
}

/* Once a rule, so that the log shows each rule at work and is not flooded. */
static void say_first(const struct tt_table_rule *rule, const struct tt_table_question *question, const char *why_not)
{
  char text[TT_RULE_TEXT];
  tt_table_rule_text(rule, text);
  if (why_not)
    TT_INFO(TT_TUNING, "TUNER/Tutti: line %u (%s) matches %s of %" PRIu64 " bytes and is passed over: the core %s",
            rule->line, text, tt_table_collective(question->collective), question->bytes, why_not);
  else
    TT_INFO(TT_TUNING, "TUNER/Tutti: line %u (%s) is applied to %s of %" PRIu64 " bytes; more of it is not logged",
            rule->line, text, tt_table_collective(question->collective), question->bytes);
}

const struct tt_table_rule *tt_table_apply(struct tt_table *table, const struct tt_table_question *question,
                                           const struct tt_table_costs *costs)
{
  bool matched = false;
  atomic_fetch_add(&table->asked, 1);
  for (int i = 0; i < table->rules.count; i++) {
    const struct tt_table_rule *rule = &table->rules.rule[i];
    const char *why;
    if (!fits(table, rule, question)) continue;
    if (!matched) atomic_fetch_add(&table->matched, 1);
    matched = true;
    float *cost = place_of(rule, costs, &why);
    atomic_fetch_add(&table->fates[i].matched, 1);
    if (!cost) {
      if (atomic_fetch_add(&table->fates[i].passed, 1) == 0) say_first(rule, question, why);
      continue;
    }
    if (atomic_fetch_add(&table->fates[i].applied, 1) == 0) say_first(rule, question, NULL);
    atomic_fetch_add(&table->applied, 1);
    tt_table_make_win(costs, cost);
    return rule;
  }
  return NULL;
}
