/* What the values of tutti-perf's flags may be. Each function reads the text of one into the options, or says in a
 * sentence, with the flag and the text, what is wrong with it, and returns false. */
#ifndef TUTTI_PERF_OPTIONS_VALUES_H
#define TUTTI_PERF_OPTIONS_VALUES_H

#include "options.h"

/* Options in the making, and room for a sentence. */
struct perf_parser {
  struct perf_options *options;
  char *error;
  size_t size;
};

/* False, with the sentence. */
bool perf_parser_wrong(struct perf_parser *parser, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool perf_value_integer(struct perf_parser *parser, const char *flag, const char *text, int min, int max, int *out);
bool perf_value_flag(struct perf_parser *parser, const char *flag, const char *text, bool *out);
bool perf_value_size(struct perf_parser *parser, const char *flag, const char *text, uint64_t *out);
bool perf_value_type(struct perf_parser *parser, const char *text);
bool perf_value_op(struct perf_parser *parser, const char *text);
bool perf_value_step_factor(struct perf_parser *parser, const char *text);
bool perf_value_root(struct perf_parser *parser, const char *text);
bool perf_value_sizes(struct perf_parser *parser, const char *text);
bool perf_value_form(struct perf_parser *parser, const char *text);
bool perf_value_device(struct perf_parser *parser, const char *flag, const char *text);
bool perf_value_settings(struct perf_parser *parser, const char *text);
bool perf_value_register(struct perf_parser *parser, const char *text);

#endif
