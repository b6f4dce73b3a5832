/* Strings: lists, numbers, nearest names. Pure functions. */
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longer names are not compared: no known name comes near this. */
#define NEAREST_BYTES 127

bool tt_text_int(const char *text, int64_t *value)
{
  if (!text || !*text) return false;
  int saved = errno;
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 0);
  bool good = errno == 0 && end != text;
  errno = saved;
  while (good && isspace((unsigned char)*end)) end++;
  if (!good || *end) return false;
  *value = number;
  return true;
}

bool tt_text_float(const char *text, float *value)
{
  locale_t plain = newlocale(LC_ALL_MASK, "C", NULL);
  if (!plain) return false;
  int saved = errno;
  char *end = NULL;
  float number = text && *text && !isspace((unsigned char)*text) ? strtof_l(text, &end, plain) : 0;
  errno = saved;
  freelocale(plain);
  if (!end || end == text || *end || !isfinite(number)) return false;
  *value = number;
  return true;
}

double tt_text_leading(const char *text, const char **end)
{
  locale_t plain = newlocale(LC_ALL_MASK, "C", NULL);
  int saved = errno;
  char *behind = (char *)text;
  double number = plain ? strtod_l(text, &behind, plain) : 0;
  errno = saved;
  if (plain) freelocale(plain);
  *end = behind;
  return number;
}

const char *tt_text_print_float(float value, char *text, size_t size)
{
  float read = 0;
  locale_t plain = newlocale(LC_ALL_MASK, "C", NULL), before = plain ? uselocale(plain) : NULL;
  for (int digits = 6; digits <= 9; digits++) {
    snprintf(text, size, "%.*g", digits, (double)value);
    if (tt_text_float(text, &read) && read == value) break;
  }
  if (before) uselocale(before);
  if (plain) freelocale(plain);
  return text;
}

/* Digits only: strtol would take signs, blanks and hexadecimal. */
static bool read_port(const char *text, size_t bytes, uint16_t *port)
{
  unsigned value = 0;
  if (bytes == 0 || bytes > 5) return false;
  for (size_t i = 0; i < bytes; i++) {
    if (!isdigit((unsigned char)text[i])) return false;
    value = value * 10 + (unsigned)(text[i] - '0');
  }
  *port = (uint16_t)value;
  return value >= 1 && value <= 65535;
}

bool tt_text_port_range(const char *text, uint16_t *first, uint16_t *last)
{
  const char *cursor = text, *low, *high;
  size_t low_bytes, high_bytes;
  if (!tt_text_next(&cursor, '-', &low, &low_bytes) || !tt_text_next(&cursor, '-', &high, &high_bytes)) return false;
  return !cursor && read_port(low, low_bytes, first) && read_port(high, high_bytes, last) && *first <= *last;
}

static int smallest(int a, int b, int c)
{
  int least = a < b ? a : b;
  return least < c ? least : c;
}

/* Levenshtein distance with one row of memory; both texts are at most NEAREST_BYTES long. */
static int distance(const char *a, size_t na, const char *b, size_t nb)
{
  int row[NEAREST_BYTES + 1];
  for (size_t j = 0; j <= nb; j++) row[j] = (int)j;
  for (size_t i = 1; i <= na; i++) {
    int diagonal = row[0];
    row[0] = (int)i;
    for (size_t j = 1; j <= nb; j++) {
      int above = row[j];
      int change = toupper((unsigned char)a[i - 1]) != toupper((unsigned char)b[j - 1]);
      row[j] = smallest(diagonal + change, above + 1, row[j - 1] + 1);
      diagonal = above;
    }
  }
  return row[nb];
}

int tt_text_nearest(const char *name, const char *const *names, int count)
{
  size_t bytes = strlen(name);
  if (bytes > NEAREST_BYTES) return -1;
  int best = -1, best_distance = (int)(bytes / 3) + 1;
  for (int i = 0; i < count; i++) {
    size_t other = strlen(names[i]);
    if (other > NEAREST_BYTES) continue;
    int d = distance(name, bytes, names[i], other);
    if (d < best_distance) {
      best = i;
      best_distance = d;
    }
  }
  return best;
}

bool tt_text_next(const char **cursor, char separator, const char **piece, size_t *bytes)
{
  const char *start = *cursor;
  if (!start) return false;
  const char *end = strchr(start, separator);
  *cursor = end ? end + 1 : NULL;
  if (!end) end = start + strlen(start);
  while (start < end && isspace((unsigned char)*start)) start++;
  while (start < end && isspace((unsigned char)end[-1])) end--;
  *piece = start;
  *bytes = (size_t)(end - start);
  return true;
}

bool tt_text_equal_nocase(const char *piece, size_t bytes, const char *word)
{
  return strlen(word) == bytes && strncasecmp(piece, word, bytes) == 0;
}
