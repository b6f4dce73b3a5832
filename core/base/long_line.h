/* A long line of the log while it grows. */
#ifndef TT_BASE_LONG_LINE_H
#define TT_BASE_LONG_LINE_H

#include <stdbool.h>
#include <stddef.h>

/* Begins as {.at = 0}. */
struct tt_long_line {
  char text[1920]; /* always ends; with what is put before it, it fits a line of the log */
  size_t at;
};

/* Appends; a line that gets too long ends with "...". */
__attribute__((format(printf, 2, 3))) void tt_long_line_add(struct tt_long_line *line, const char *format, ...);
/* Whether more would change nothing. */
static inline bool tt_long_line_full(const struct tt_long_line *line)
{
  return line->at == sizeof(line->text) - 1;
}

#endif
