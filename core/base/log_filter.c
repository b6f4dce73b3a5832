/* Parsing of NCCL_DEBUG, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE and NCCL_DEBUG_TIMESTAMP_*. */
#include "base/log_filter.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"

struct word {
  const char *name;
  unsigned long bits;
};

static const struct word levels[] = {
    {"NONE", TT_LOG_NONE}, {"VERSION", TT_LOG_VERSION}, {"WARN", TT_LOG_WARN},
    {"INFO", TT_LOG_INFO}, {"ABORT", TT_LOG_ABORT},     {"TRACE", TT_LOG_TRACE},
};

static const struct word subsystems[] = {
    {"INIT", TT_INIT},
    {"COLL", TT_COLL},
    {"P2P", TT_P2P},
    {"SHM", TT_SHM},
    {"NET", TT_NET},
    {"GRAPH", TT_GRAPH},
    {"TUNING", TT_TUNING},
    {"ENV", TT_ENV},
    {"ALLOC", TT_ALLOC},
    {"CALL", TT_CALL},
    {"PROXY", TT_PROXY},
    {"NVLS", TT_NVLS},
    {"BOOTSTRAP", TT_BOOTSTRAP},
    {"REG", TT_REG},
    {"PROFILE", TT_PROFILE},
    {"RAS", TT_RAS},
    {"DESTROY", TT_DESTROY},
    {"ALLOC_HOST", TT_ALLOC_HOST},
    {"ALL", TT_ALL},
};

static const struct word *find_word(const struct word *words, size_t count, const char *piece, size_t bytes)
{
  for (size_t i = 0; i < count; i++)
    if (tt_text_equal_nocase(piece, bytes, words[i].name)) return &words[i];
  return NULL;
}

int tt_log_level(const char *text)
{
  const char *piece;
  size_t bytes;
  if (!tt_text_next(&text, '\0', &piece, &bytes)) return -1;
  const struct word *word = find_word(levels, TT_COUNT(levels), piece, bytes);
  return word ? (int)word->bits : -1;
}

/* Skips blanks and a leading ^, and tells whether there was one. */
static bool inverted(const char **text)
{
  while (**text == ' ') (*text)++;
  if (**text != '^') return false;
  (*text)++;
  return true;
}

unsigned long tt_log_subsystems(const char *text, int *unknown)
{
  bool invert = inverted(&text);
  unsigned long bits = 0;
  const char *piece;
  size_t bytes;
  *unknown = 0;
  while (tt_text_next(&text, ',', &piece, &bytes)) {
    const struct word *word = find_word(subsystems, TT_COUNT(subsystems), piece, bytes);
    if (word)
      bits |= word->bits;
    else if (bytes)
      ++*unknown;
  }
  return invert ? ~bits : bits;
}

unsigned tt_log_level_bits(const char *text, int *unknown)
{
  bool invert = inverted(&text);
  unsigned bits = 0;
  const char *piece;
  size_t bytes;
  *unknown = 0;
  while (tt_text_next(&text, ',', &piece, &bytes)) {
    const struct word *word = find_word(levels, TT_COUNT(levels), piece, bytes);
    if (word)
      bits |= 1u << word->bits;
    else if (tt_text_equal_nocase(piece, bytes, "ALL"))
      bits = ~0u;
    else if (bytes)
      ++*unknown;
  }
  return invert ? ~bits : bits;
}

bool tt_log_file_name(const char *pattern, const char *host, int pid, char *name, size_t size)
{
  size_t used = 0;
  while (*pattern) {
    char number[16];
    const char *part = pattern;
    size_t bytes = 1, step = 1;
    if (pattern[0] == '%' && (pattern[1] == 'h' || pattern[1] == 'p' || pattern[1] == '%')) {
      step = 2;
      if (pattern[1] == 'h') {
        part = host;
        bytes = strlen(host);
      } else if (pattern[1] == 'p') {
        bytes = (size_t)snprintf(number, sizeof(number), "%d", pid);
        part = number;
      }
    }
    if (used + bytes >= size) return false;
    memcpy(name + used, part, bytes);
    used += bytes;
    pattern += step;
  }
  if (used >= size) return false;
  name[used] = 0;
  return true;
}

void tt_log_time(const char *format, const struct timespec *now, char *text, size_t size)
{
  /* First the pieces that strftime does not know, then strftime. */
  char expanded[128];
  size_t used = 0;
  for (; *format && used + 12 < sizeof(expanded); format++) {
    if (format[0] == '%' && format[1] >= '1' && format[1] <= '9' && format[2] == 'f') {
      char digits[16];
      snprintf(digits, sizeof(digits), "%09ld", now->tv_nsec % 1000000000L);
      int count = format[1] - '0';
      memcpy(expanded + used, digits, (size_t)count);
      used += (size_t)count;
      format += 2;
    } else if (format[0] == '%' && format[1] == '%') {
      memcpy(expanded + used, "%%", 2);
      used += 2;
      format++;
    } else {
      expanded[used++] = *format == '_' ? ' ' : *format;
    }
  }
  expanded[used] = 0;
  struct tm broken_down;
  if (!used || !localtime_r(&now->tv_sec, &broken_down) || strftime(text, size, expanded, &broken_down) == 0)
    text[0] = 0;
}
