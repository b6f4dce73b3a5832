/* See options_values.h. */
#include "options_values.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "pairs.h"

bool perf_parser_wrong(struct perf_parser *parser, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(parser->error, parser->size, format, args);
  va_end(args);
  return false;
}

bool perf_size_parse(const char *text, uint64_t *bytes)
{
  static const char units[] = "KMGT";
  char *end;
  if (!((*text >= '0' && *text <= '9') || *text == '.')) return false;
  double value = strtod(text, &end);
  if (end == text || (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))) return false;
  const char *unit = isalpha((unsigned char)*end) ? strchr(units, toupper((unsigned char)*end)) : NULL;
  if (unit) {
    value = ldexp(value, 10 * (int)(unit - units + 1));
    end++;
    if (*end == 'i' && toupper((unsigned char)end[1]) == 'B') end++;
  }
  if (toupper((unsigned char)*end) == 'B') end++;
  if (*end || !isfinite(value) || value < 0 || value >= 0x1p62 || value != floor(value)) return false;
  *bytes = (uint64_t)value;
  return true;
}

bool perf_value_integer(struct perf_parser *parser, const char *flag, const char *text, int min, int max, int *out)
{
  char *end;
  long value = strtol(text, &end, 10);
  if (end == text || *end || value < min || value > max)
    return perf_parser_wrong(parser, "%s %s: must be a whole number from %d to %d", flag, text, min, max);
  *out = (int)value;
  return true;
}

bool perf_value_flag(struct perf_parser *parser, const char *flag, const char *text, bool *out)
{
  int value = 0;
  if (!perf_value_integer(parser, flag, text, 0, 1, &value)) return false;
  *out = value;
  return true;
}

bool perf_value_size(struct perf_parser *parser, const char *flag, const char *text, uint64_t *out)
{
  if (perf_size_parse(text, out)) return true;
  return perf_parser_wrong(parser, "%s %s: is not a size in whole bytes, such as 8, 64K, 1.5M or 1G", flag, text);
}

bool perf_value_type(struct perf_parser *parser, const char *text)
{
  struct perf_options *o = parser->options;
  o->all_types = !strcasecmp(text, "all");
  if (o->all_types || (o->type = perf_type_find(text))) return true;
  return perf_parser_wrong(parser,
                           "-d %s: no such type; there are int8 uint8 int32 uint32 int64 uint64 half float double "
                           "bfloat16 f8e4m3 f8e5m2 and all (--device chooses between host and cuda)",
                           text);
}

bool perf_value_op(struct perf_parser *parser, const char *text)
{
  struct perf_options *o = parser->options;
  o->all_ops = !strcasecmp(text, "all");
  if (o->all_ops || (o->op = perf_op_find(text))) return true;
  return perf_parser_wrong(parser, "-o %s: no such operation; there are sum prod min max avg and all", text);
}

bool perf_value_step_factor(struct perf_parser *parser, const char *text)
{
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !(value > 1) || value > 1e9)
    return perf_parser_wrong(parser, "-f %s: the factor between sizes must be greater than 1", text);
  parser->options->step_factor = value;
  return true;
}

bool perf_value_root(struct perf_parser *parser, const char *text)
{
  parser->options->all_roots = !strcasecmp(text, "all");
  return parser->options->all_roots || perf_value_integer(parser, "-r", text, 0, 1 << 24, &parser->options->root);
}

/* "32,64K,2M". */
bool perf_value_sizes(struct perf_parser *parser, const char *text)
{
  struct perf_options *o = parser->options;
  char piece[32];
  o->size_count = 0;
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    if (o->size_count == PERF_MOST_SIZES) return perf_parser_wrong(parser, "--sizes: at most %d", PERF_MOST_SIZES);
    snprintf(piece, sizeof(piece), "%.*s", (int)length, at);
    if (length >= sizeof(piece) || !perf_size_parse(piece, &o->sizes[o->size_count++]))
      return perf_parser_wrong(parser, "--sizes %s: must be sizes with commas between them, such as 32,64K,2M", text);
    at += length;
    if (!*at) return true;
  }
}

/* Which of a few words `text` is. */
static bool perf_value_word(struct perf_parser *parser, const char *flag, const char *text, const char *const *words,
                            int *out)
{
  char allowed[96] = "";
  for (*out = 0; words[*out]; ++*out) {
    if (!strcasecmp(text, words[*out])) return true;
    size_t used = strlen(allowed);
    snprintf(allowed + used, sizeof(allowed) - used, " %s", words[*out]);
  }
  return perf_parser_wrong(parser, "%s %s: must be one of%s", flag, text, allowed);
}

bool perf_value_form(struct perf_parser *parser, const char *text)
{
  static const char *const words[] = {"out", "in", "both", NULL};
  int form = 0;
  if (!perf_value_word(parser, "--form", text, words, &form)) return false;
  parser->options->out_of_place = form != 1;
  parser->options->in_place = form != 0;
  return true;
}

bool perf_value_device(struct perf_parser *parser, const char *flag, const char *text)
{
  static const char *const devices[] = {"auto", "host", "cuda", NULL};
  static const char *const memories[] = {"plain", "nccl", "registered", "window", NULL};
  bool memory = !strcmp(flag, "--alloc");
  int which = 0;
  if (!perf_value_word(parser, flag, text, memory ? memories : devices, &which)) return false;
  if (memory)
    parser->options->memory = (enum perf_memory)which;
  else
    parser->options->device = (enum perf_device_choice)which;
  return true;
}

/* "p2p,ll". */
bool perf_value_settings(struct perf_parser *parser, const char *text)
{
  char piece[16], known[64] = "";
  parser->options->settings = 0;
  parser->options->settings_given = true;
  for (int s = 0; perf_setting_at(s); s++) {
    size_t used = strlen(known);
    snprintf(known + used, sizeof(known) - used, " %s", perf_setting_at(s)->name);
  }
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    int s = 0;
    snprintf(piece, sizeof(piece), "%.*s", (int)length, at);
    while (perf_setting_at(s) && strcasecmp(piece, perf_setting_at(s)->name)) s++;
    if (!perf_setting_at(s))
      return perf_parser_wrong(parser, "--settings %s: must be some of%s, with commas", text, known);
    parser->options->settings |= 1u << s;
    at += length;
    if (!*at) return true;
  }
}

/* nccl-tests' -R: 1 registers buffers of ncclMemAlloc, 2 makes windows of them. */
bool perf_value_register(struct perf_parser *parser, const char *text)
{
  static const enum perf_memory memories[] = {PERF_MEMORY_PLAIN, PERF_MEMORY_REGISTERED, PERF_MEMORY_WINDOW};
  int which = 0;
  if (!perf_value_integer(parser, "-R", text, 0, 2, &which)) return false;
  parser->options->memory = memories[which];
  return true;
}
