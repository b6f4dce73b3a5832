/* The parser of rules; see rules.h. A line is split into fields, each field is read as its column says. */
#include "rules.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/text.h"
#include "tutti/tuner.h"

#define MOST_CHANNELS 64  /* of a communicator, in NCCL as here */
#define SHOWN_OF_VALUE 40 /* characters of a wrong value in its message */

static const char *const collectives[NCCL_NUM_FUNCTIONS] = {
    [ncclFuncBroadcast] = "broadcast",         [ncclFuncReduce] = "reduce",       [ncclFuncAllGather] = "allgather",
    [ncclFuncReduceScatter] = "reducescatter", [ncclFuncAllReduce] = "allreduce",
};
static const char *const algorithms[TUTTI_NUM_ALGORITHMS] = {
    [NCCL_ALGO_TREE] = "tree",
    [NCCL_ALGO_RING] = "ring",
    [NCCL_ALGO_COLLNET_DIRECT] = "collnet_direct",
    [NCCL_ALGO_COLLNET_CHAIN] = "collnet_chain",
    [NCCL_ALGO_NVLS] = "nvls",
    [NCCL_ALGO_NVLS_TREE] = "nvls_tree",
    [NCCL_ALGO_PAT] = "pat",
    [TUTTI_ALGO_ONE_SHOT] = "one_shot",
    [TUTTI_ALGO_TWO_SHOT] = "two_shot",
    [TUTTI_ALGO_DIRECT] = "direct",
    [TUTTI_ALGO_MAPPED] = "mapped",
};
static const char *const protocols[NCCL_NUM_PROTOCOLS] = {
    [NCCL_PROTO_LL] = "ll", [NCCL_PROTO_LL128] = "ll128", [NCCL_PROTO_SIMPLE] = "simple"};

enum { COLLECTIVE, MIN_BYTES, MAX_BYTES, ALGORITHM, PROTOCOL, CHANNELS, NODES, RANKS, PIPE_OPS, REG_BUFF, COLUMNS };
#define NEEDED_COLUMNS (RANKS + 1) /* the others may be left out, or empty */
#define ANY UINT64_MAX             /* as a value of a column; for max_bytes that is no limit */

/* A column holds either a name of a list or a number of a range; `any` says what -1 means where it may stand. */
static const struct column {
  const char *name;
  const char *const *names;
  int count;
  uint64_t least, most;
  const char *any;
} columns[COLUMNS] = {
    [COLLECTIVE] = {"collective_type", collectives, NCCL_NUM_FUNCTIONS, 0, 0, NULL},
    [MIN_BYTES] = {"min_bytes", NULL, 0, 0, UINT64_MAX - 1, NULL},
    [MAX_BYTES] = {"max_bytes", NULL, 0, 0, UINT64_MAX, "no limit"},
    [ALGORITHM] = {"algorithm", algorithms, TUTTI_NUM_ALGORITHMS, 0, 0, NULL},
    [PROTOCOL] = {"protocol", protocols, NCCL_NUM_PROTOCOLS, 0, 0, NULL},
    [CHANNELS] = {"channels", NULL, 0, 1, MOST_CHANNELS, "as many as without the rule"},
    [NODES] = {"nNodes", NULL, 0, 1, INT_MAX, "any"},
    [RANKS] = {"nRanks", NULL, 0, 1, INT_MAX, "any"},
    [PIPE_OPS] = {"numPipeOps", NULL, 0, 1, INT_MAX, "any"},
    [REG_BUFF] = {"regBuff", NULL, 0, 0, 1, "any"},
};

struct field {
  const char *at;
  size_t bytes;
  unsigned column;
};

/* What reading a line needs to know: where it is, and where a mistake goes. */
struct reader {
  unsigned line;
  bool begun; /* a line that is neither empty nor a comment has been seen */
  struct tt_table_mistake *mistake;
};

const char *tt_table_collective(int collective)
{
  return collective >= 0 && collective < NCCL_NUM_FUNCTIONS ? collectives[collective] : "?";
}

const char *tt_table_algorithm(int algorithm)
{
  return algorithm >= 0 && algorithm < TUTTI_NUM_ALGORITHMS && algorithms[algorithm] ? algorithms[algorithm] : "?";
}

const char *tt_table_protocol(int protocol)
{
  return protocol >= 0 && protocol < NCCL_NUM_PROTOCOLS ? protocols[protocol] : "?";
}

/* ---- Mistakes ---- */

static ncclResult_t wrong(const struct reader *reader, unsigned column, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static ncclResult_t wrong(const struct reader *reader, unsigned column, const char *format, ...)
{
  va_list args;
  reader->mistake->line = reader->line;
  reader->mistake->column = column;
  va_start(args, format);
  vsnprintf(reader->mistake->text, sizeof reader->mistake->text, format, args);
  va_end(args);
  return ncclInvalidUsage;
}

/* The value as it can be shown: what is not printable, or too long, may not spoil the log. */
struct shown {
  char text[SHOWN_OF_VALUE + 8];
};
static struct shown show(const char *at, size_t bytes)
{
  struct shown shown;
  size_t length = TT_MIN(bytes, (size_t)SHOWN_OF_VALUE);
  for (size_t i = 0; i < length; i++) shown.text[i] = at[i] >= ' ' && at[i] < 127 ? at[i] : '?';
  strcpy(shown.text + length, bytes > length ? "..." : "");
  return shown;
}

static ncclResult_t wrong_name(const struct reader *reader, const struct field *field, const struct column *column)
{
  struct shown shown = show(field->at, field->bytes);
  char allowed[160] = "";
  size_t at = 0;
  for (int i = 0; i < column->count; i++)
    if (column->names[i])
      at += (size_t)snprintf(allowed + at, sizeof allowed - at, at ? ", %s" : "%s", column->names[i]);
  return wrong(reader, field->column, "\"%s\" as %s is none of the names known there; write one of %s", shown.text,
               column->name, allowed);
}

static ncclResult_t wrong_number(const struct reader *reader, const struct field *field, const struct column *column)
{
  struct shown shown = show(field->at, field->bytes);
  return wrong(reader, field->column,
               "\"%s\" as %s is not a number that is allowed there; write digits only, %" PRIu64 " to %" PRIu64
               "%s%s%s",
               shown.text, column->name, column->least, column->most, column->any ? ", or -1 for \"" : "",
               column->any ? column->any : "", column->any ? "\"" : "");
}

/* ---- Fields ---- */

static bool is_blank(char c)
{
  return c == ' ' || c == '\t';
}

/* Takes the field at *at, up to a comma or the line's end, and steps over the comma. Quotes, which spreadsheets write
 * at times, are taken off; commas inside them belong to the value. */
static ncclResult_t take_field(const struct reader *reader, const char *line, const char **at, const char *end,
                               struct field *field)
{
  const char *c = *at;
  while (c < end && is_blank(*c)) c++;
  bool quoted = c < end && *c == '"';
  const char *stop = quoted ? ++c : c;
  while (stop < end && *stop != (quoted ? '"' : ',')) stop++;
  *field = (struct field){c, (size_t)(stop - c), (unsigned)(c - line) + 1};
  if (quoted) {
    if (stop == end) {
      return wrong(reader, field->column - 1,
                   "a quote is opened and not closed on the same line; close it or remove it");
    }
    for (stop++; stop < end && is_blank(*stop);) stop++;
    if (stop < end && *stop != ',') {
      struct shown shown = show(stop, (size_t)(end - stop));
      return wrong(reader, (unsigned)(stop - line) + 1,
                   "\"%s\" follows a closing quote, where only a comma may; put all of the value inside the quotes",
                   shown.text);
    }
  }
  while (field->bytes > 0 && is_blank(field->at[field->bytes - 1])) field->bytes--;
  *at = stop < end ? stop + 1 : NULL;
  return ncclSuccess;
}

/* Splits a line. *count leaves out empty fields at its end, which spreadsheets add to make all lines equally long. */
static ncclResult_t split(const struct reader *reader, const char *line, size_t bytes, struct field *fields, int *count)
{
  const char *at = line, *end = line + bytes;
  *count = 0;
  for (int i = 0; at; i++) {
    struct field field;
    TT_TRY(take_field(reader, line, &at, end, &field));
    if (field.bytes == 0) {
      if (i < COLUMNS) fields[i] = field;
      continue;
    }
    if (i >= COLUMNS) {
      struct shown shown = show(field.at, field.bytes);
      return wrong(reader, field.column,
                   "\"%s\" is in column %d, and there are %d; remove it (comments have lines of their own)", shown.text,
                   i + 1, COLUMNS);
    }
    fields[i] = field;
    *count = i + 1;
  }
  return ncclSuccess;
}

/* Case and underscores do not count: logs write NVLS_TREE, people NVLSTree. */
static bool same_name(const struct field *field, const char *name)
{
  size_t i = 0;
  for (;;) {
    while (i < field->bytes && field->at[i] == '_') i++;
    while (*name == '_') name++;
    if (i == field->bytes || !*name) return i == field->bytes && !*name;
    if (!tt_text_equal_nocase(field->at + i, 1, (const char[]){*name, 0})) return false;
    i++, name++;
  }
}

static bool read_digits(const struct field *field, uint64_t *value)
{
  *value = 0;
  for (size_t i = 0; i < field->bytes; i++) {
    unsigned digit = (unsigned)field->at[i] - '0';
    if (digit > 9 || *value > (UINT64_MAX - digit) / 10) return false;
    *value = *value * 10 + digit;
  }
  return field->bytes > 0;
}

static ncclResult_t read_value(const struct reader *reader, const struct field *field, const struct column *column,
                               uint64_t *value)
{
  if (field->bytes == 0)
    return wrong(reader, field->column, "%s is empty, and only the columns from %s on may be; write a value",
                 column->name, columns[NEEDED_COLUMNS].name);
  if (column->names) {
    for (int i = 0; i < column->count; i++) {
      if (!column->names[i] || !same_name(field, column->names[i])) continue;
      *value = (uint64_t)i;
      return ncclSuccess;
    }
    return wrong_name(reader, field, column);
  }
  if (column->any && field->bytes == 2 && memcmp(field->at, "-1", 2) == 0) {
    *value = ANY;
    return ncclSuccess;
  }
  if (!read_digits(field, value) || *value < column->least || *value > column->most)
    return wrong_number(reader, field, column);
  return ncclSuccess;
}

/* ---- Lines ---- */

/* Columns may be named in the first line. Names in another order mean that the values are, too. */
static ncclResult_t check_header(const struct reader *reader, const struct field *fields, int count)
{
  for (int i = 0; i < count; i++) {
    if (same_name(&fields[i], columns[i].name)) continue;
    struct shown shown = show(fields[i].at, fields[i].bytes);
    return wrong(reader, fields[i].column, "column %d is called \"%s\", and has to be %s; columns are known by order",
                 i + 1, shown.text, columns[i].name);
  }
  return ncclSuccess;
}

static ncclResult_t read_rule(const struct reader *reader, const struct field *fields, int count, size_t bytes,
                              struct tt_table_rule *rule)
{
  uint64_t value[COLUMNS];
  for (int i = 0; i < COLUMNS; i++) {
    value[i] = ANY;
    if (i < NEEDED_COLUMNS && i >= count)
      return wrong(reader, (unsigned)bytes + 1,
                   "the line has %d columns, and %s is missing; write at least %d, collective_type to nRanks", count,
                   columns[i].name, NEEDED_COLUMNS);
    if (i >= NEEDED_COLUMNS && (i >= count || fields[i].bytes == 0)) continue;
    TT_TRY(read_value(reader, &fields[i], &columns[i], &value[i]));
  }
  if (value[MIN_BYTES] > value[MAX_BYTES])
    return wrong(reader, fields[MIN_BYTES].column,
                 "\"%" PRIu64 "\" as min_bytes is more than max_bytes, %" PRIu64
                 ", so nothing can match; exchange them",
                 value[MIN_BYTES], value[MAX_BYTES]);
  *rule = (struct tt_table_rule){
      .line = reader->line,
      .collective = (int)value[COLLECTIVE],
      .min_bytes = value[MIN_BYTES],
      .max_bytes = value[MAX_BYTES],
      .algorithm = (int)value[ALGORITHM],
      .protocol = (int)value[PROTOCOL],
      .nchannels = value[CHANNELS] == ANY ? TT_RULE_ANY : (int)value[CHANNELS],
      .nnodes = value[NODES] == ANY ? TT_RULE_ANY : (int)value[NODES],
      .nranks = value[RANKS] == ANY ? TT_RULE_ANY : (int)value[RANKS],
      .pipe_ops = value[PIPE_OPS] == ANY ? TT_RULE_ANY : (int)value[PIPE_OPS],
      .reg_buff = value[REG_BUFF] == ANY ? TT_RULE_ANY : (int)value[REG_BUFF],
  };
  return ncclSuccess;
}

static bool is_comment(const char *line, size_t bytes)
{
  size_t i = 0;
  while (i < bytes && is_blank(line[i])) i++;
  if (i < bytes && line[i] == '"') i++; /* as spreadsheets save a comment with a comma in it */
  return i < bytes && line[i] == '#';
}

static ncclResult_t append(struct tt_table_rules *rules, const struct tt_table_rule *rule,
                           struct tt_table_mistake *mistake)
{
  if ((rules->count & (rules->count - 1)) == 0) { /* full at 0, 1, 2, 4, 8 and so on */
    size_t room = rules->count ? 2 * (size_t)rules->count : 1;
    struct tt_table_rule *more = realloc(rules->rule, room * sizeof *more);
    if (!more) {
      mistake->line = rule->line;
      mistake->column = 1;
      snprintf(mistake->text, sizeof mistake->text, "no memory for %zu rules; write fewer", room);
      return ncclSystemError;
    }
    rules->rule = more;
  }
  rules->rule[rules->count++] = *rule;
  return ncclSuccess;
}

static ncclResult_t read_line(struct reader *reader, const char *line, size_t bytes, struct tt_table_rules *rules)
{
  struct field fields[COLUMNS];
  struct tt_table_rule rule;
  int count;
  if (bytes > 0 && line[bytes - 1] == '\r') bytes--;
  if (is_comment(line, bytes)) return ncclSuccess;
  TT_TRY(split(reader, line, bytes, fields, &count));
  if (count == 0) return ncclSuccess;
  bool first = !reader->begun;
  reader->begun = true;
  if (first && same_name(&fields[0], columns[0].name)) return check_header(reader, fields, count);
  TT_TRY(read_rule(reader, fields, count, bytes, &rule));
  return append(rules, &rule, reader->mistake);
}

ncclResult_t tt_table_parse(const char *text, size_t bytes, struct tt_table_rules *rules,
                            struct tt_table_mistake *mistake)
{
  static const char mark[] = "\xef\xbb\xbf"; /* which spreadsheets put before UTF-8 */
  struct reader reader = {.mistake = mistake};
  ncclResult_t result = ncclSuccess;
  memset(rules, 0, sizeof *rules);
  memset(mistake, 0, sizeof *mistake);
  const char *at = text, *end = text + bytes;
  if (bytes >= 3 && memcmp(text, mark, 3) == 0) at += 3;
  while (at < end && result == ncclSuccess) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    if (!stop) stop = end;
    reader.line++;
    result = read_line(&reader, at, (size_t)(stop - at), rules);
    at = stop < end ? stop + 1 : end;
  }
  if (result != ncclSuccess) tt_table_free(rules);
  return result;
}

void tt_table_free(struct tt_table_rules *rules)
{
  free(rules->rule);
  memset(rules, 0, sizeof *rules);
}

const char *tt_table_rule_text(const struct tt_table_rule *rule, char *text)
{
  char max[24] = "-1";
  if (rule->max_bytes != UINT64_MAX) snprintf(max, sizeof max, "%" PRIu64, rule->max_bytes);
  snprintf(text, TT_RULE_TEXT, "%s,%" PRIu64 ",%s,%s,%s,%d,%d,%d,%d,%d", tt_table_collective(rule->collective),
           rule->min_bytes, max, tt_table_algorithm(rule->algorithm), tt_table_protocol(rule->protocol),
           rule->nchannels, rule->nnodes, rule->nranks, rule->pipe_ops, rule->reg_buff);
  return text;
}
