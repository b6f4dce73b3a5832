/* Strings: lists, numbers, nearest names. */
#ifndef TT_BASE_TEXT_H
#define TT_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads a whole integer, base by prefix as strtoll(..., 0), blanks around it allowed; false for junk, overflow or an
 * empty text. */
bool tt_text_int(const char *text, int64_t *value);
/* Reads a whole finite decimal number with a point, whatever the program's locale; false for anything else. */
bool tt_text_float(const char *text, float *value);
/* The number that a text begins with, as strtod reads it, with a point whatever the program's locale; *end is what
 * comes behind it, all of the text if that begins with none. */
double tt_text_leading(const char *text, const char **end);
/* Writes the shortest number that tt_text_float reads as this one, with 6 digits or more; returns `text`. */
const char *tt_text_print_float(float value, char *text, size_t size);
/* Reads "first-last", ports from 1 up, first <= last; false for anything else. */
bool tt_text_port_range(const char *text, uint16_t *first, uint16_t *last);
/* The index of the entry with the smallest edit distance to `name`, or -1 if none is near (distance > 1/3 of it). Case
 * does not count. */
int tt_text_nearest(const char *name, const char *const *names, int count);
/* Takes the next piece of a `separator` list: sets *piece and *bytes (blanks trimmed), advances *cursor; false at the
 * end. Empty pieces are returned too: "" is one empty piece. */
bool tt_text_next(const char **cursor, char separator, const char **piece, size_t *bytes);
bool tt_text_equal_nocase(const char *piece, size_t bytes, const char *word);

#endif
