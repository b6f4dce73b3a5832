/* The grammar of NCCL_IB_HCA. */
#include "hca.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "base/text.h"

#define MOST_NUMBER 32767 /* rails and planes are 16 bits in the ABI */

static bool read_number(const char *piece, size_t bytes, int least, int *number)
{
  char text[16];
  int64_t value;
  if (bytes == 0) return true; /* not given */
  if (bytes >= sizeof text) return false;
  memcpy(text, piece, bytes);
  text[bytes] = 0;
  if (!tt_text_int(text, &value) || value < least || value > MOST_NUMBER) return false;
  *number = (int)value;
  return true;
}

static bool read_entry(struct tt_ib_hca_filter *filter, const char *piece, size_t bytes, bool exact, char *why,
                       size_t size)
{
  static const char *const what[] = {"port", "rail", "plane"};
  const char *end = piece + bytes;
  const char *colon = memchr(piece, ':', bytes);
  size_t length = colon ? (size_t)(colon - piece) : bytes;
  if (filter->count == TT_IB_HCA_ENTRIES) {
    snprintf(why, size, "it has more than %d entries", TT_IB_HCA_ENTRIES);
    return false;
  }
  int numbers[3] = {-1, -1, -1};
  if (length == 0 || length >= sizeof filter->entry[0].name) {
    snprintf(why, size, "\"%.*s\" has %s", (int)bytes, piece, length ? "too long a name" : "no name");
    return false;
  }
  for (int i = 0; colon; i++) {
    const char *from = colon + 1;
    colon = memchr(from, ':', (size_t)(end - from));
    const char *to = colon ? colon : end;
    if (i == 3) {
      snprintf(why, size, "\"%.*s\" has more than a name, a port, a rail and a plane", (int)bytes, piece);
      return false;
    }
    if (!read_number(from, (size_t)(to - from), i == 0 ? 1 : 0, &numbers[i])) {
      snprintf(why, size, "\"%.*s\" has the %s \"%.*s\", which is no number from %d on", (int)bytes, piece, what[i],
               (int)(to - from), from, i == 0 ? 1 : 0);
      return false;
    }
  }
  memcpy(filter->entry[filter->count].name, piece, length);
  filter->entry[filter->count].name[length] = 0;
  filter->entry[filter->count].exact = exact;
  filter->entry[filter->count].port = numbers[0];
  filter->entry[filter->count].rail = numbers[1];
  filter->entry[filter->count].plane = numbers[2];
  filter->count++;
  return true;
}

bool tt_ib_hca_parse(const char *text, struct tt_ib_hca_filter *filter, char *why, size_t size)
{
  const char *piece;
  size_t bytes;
  bool exact = false;
  memset(filter, 0, sizeof *filter);
  if (!text) return true;
  text += strspn(text, " \t");
  if (*text == '^') {
    filter->excludes = true;
    text++;
  }
  text += strspn(text, " \t");
  if (*text == '=') {
    exact = true;
    text++;
  }
  while (tt_text_next(&text, ',', &piece, &bytes)) {
    bool entry_exact = exact;
    if (bytes && filter->excludes && *piece == '^') piece++, bytes--;
    if (bytes && *piece == '=') piece++, bytes--, entry_exact = true;
    if (bytes && !read_entry(filter, piece, bytes, entry_exact, why, size)) return false;
  }
  return true;
}

bool tt_ib_hca_match(const struct tt_ib_hca_filter *filter, const char *name, int port, int *rail, int *plane)
{
  *rail = *plane = -1;
  if (filter->count == 0) return true;
  for (int i = 0; i < filter->count; i++) {
    const char *wanted = filter->entry[i].name;
    bool named = filter->entry[i].exact ? strcmp(name, wanted) == 0 : strncmp(name, wanted, strlen(wanted)) == 0;
    if (!named || (filter->entry[i].port >= 0 && filter->entry[i].port != port)) continue;
    if (filter->excludes) return false;
    *rail = filter->entry[i].rail;
    *plane = filter->entry[i].plane;
    return true;
  }
  return filter->excludes;
}
