/* A line of the log while it grows. */
#include "base/long_line.h"

#include <stdarg.h>
#include <stdio.h>

void tt_long_line_add(struct tt_long_line *line, const char *format, ...)
{
  static const char more[] = " ...";
  va_list arguments;
  const size_t left = sizeof(line->text) - line->at;
  va_start(arguments, format);
  int wrote = vsnprintf(line->text + line->at, left, format, arguments);
  va_end(arguments);
  if (wrote < 0) return;
  line->at += (size_t)wrote;
  if (line->at < sizeof(line->text)) return;
  snprintf(line->text + sizeof(line->text) - sizeof(more), sizeof(more), "%s", more);
  line->at = sizeof(line->text) - 1;
}
