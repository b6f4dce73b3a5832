/* Writes a report in memory: JSON, or the same things as indented "key: value" lines for people. */
#ifndef TT_REPORT_WRITER_H
#define TT_REPORT_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tt_writer {
  bool json;
  char *text; /* malloc'ed, NUL-terminated; NULL: nothing yet */
  size_t used, room;
  bool failed; /* no memory; the text is cut */
  bool first;  /* nothing yet in the innermost bracket */
  bool dash;   /* text: the next line begins an item of a list */
  int depth;   /* objects that are open */
};

/* `key` is NULL for the outermost object and in lists. `bracket` is '{' or '['; lists hold objects. */
void tt_writer_open(struct tt_writer *writer, const char *key, char bracket);
void tt_writer_close(struct tt_writer *writer, char bracket);
void tt_writer_text(struct tt_writer *writer, const char *key, const char *value); /* NULL: null, and no line of text */
void tt_writer_format(struct tt_writer *writer, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void tt_writer_number(struct tt_writer *writer, const char *key, uint64_t value);
void tt_writer_signed(struct tt_writer *writer, const char *key, int64_t value);
/* sum / count, cut after one decimal; 0 of nothing. */
void tt_writer_mean(struct tt_writer *writer, const char *key, uint64_t sum, uint64_t count);
void tt_writer_seconds(struct tt_writer *writer, const char *key, uint64_t ns);
void tt_writer_flag(struct tt_writer *writer, const char *key, bool value);
void tt_writer_list(struct tt_writer *writer, const char *key, const int *values, int count);

#endif
