/* See writer.h. */
#include "report/writer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(struct tt_writer *writer, const char *text, size_t bytes)
{
  if (writer->used + bytes + 1 > writer->room) {
    size_t room = 2 * (writer->used + bytes + 1);
    char *grown = realloc(writer->text, room);
    if (grown == NULL) {
      writer->failed = true;
      return;
    }
    writer->text = grown;
    writer->room = room;
  }
  memcpy(writer->text + writer->used, text, bytes);
  writer->used += bytes;
  writer->text[writer->used] = '\0';
}

static void add_string(struct tt_writer *writer, const char *text)
{
  add(writer, text, strlen(text));
}

/* Control characters are escaped in both forms: a line stays a line. */
static void add_escaped(struct tt_writer *writer, const char *text)
{
  for (; *text != '\0'; text++) {
    unsigned char c = (unsigned char)*text;
    char escape[8];
    if (writer->json && (c == '"' || c == '\\'))
      snprintf(escape, sizeof escape, "\\%c", c);
    else if (c < 0x20)
      snprintf(escape, sizeof escape, "\\u%04x", c);
    else
      snprintf(escape, sizeof escape, "%c", c);
    add_string(writer, escape);
  }
}

/* What comes before a value: in JSON comma and key, in text indentation and key. */
static void begin(struct tt_writer *writer, const char *key)
{
  if (writer->json) {
    if (writer->used > 0 && !writer->first) add(writer, ",", 1);
    if (writer->used > 0) add(writer, "\n", 1);
    if (key != NULL) {
      add(writer, "\"", 1);
      add_string(writer, key);
      add(writer, "\": ", 3);
    }
  } else if (key != NULL) {
    for (int d = 1; d < writer->depth; d++) add_string(writer, d + 1 == writer->depth && writer->dash ? "- " : "  ");
    writer->dash = false;
    add_string(writer, key);
    add(writer, ":", 1);
  }
  writer->first = false;
}

void tt_writer_open(struct tt_writer *writer, const char *key, char bracket)
{
  begin(writer, key);
  if (writer->json)
    add(writer, &bracket, 1);
  else if (key != NULL)
    add(writer, "\n", 1);
  if (bracket == '{') {
    writer->depth++;
    writer->dash = key == NULL && writer->depth > 1;
  }
  writer->first = true;
}

void tt_writer_close(struct tt_writer *writer, char bracket)
{
  if (writer->json) add(writer, bracket == '{' ? "}" : "]", 1);
  if (bracket == '{') writer->depth--;
  writer->first = false;
  if (writer->json && writer->depth == 0) add(writer, "\n", 1);
}

/* A value as it is: in text after a blank. */
static void add_plain(struct tt_writer *writer, const char *key, const char *value)
{
  begin(writer, key);
  if (!writer->json) add(writer, " ", 1);
  add_string(writer, value);
  if (!writer->json) add(writer, "\n", 1);
}

void tt_writer_text(struct tt_writer *writer, const char *key, const char *value)
{
  if (value == NULL) {
    if (writer->json) add_plain(writer, key, "null");
    return;
  }
  begin(writer, key);
  add_string(writer, writer->json ? "\"" : " ");
  add_escaped(writer, value);
  add_string(writer, writer->json ? "\"" : "\n");
}

void tt_writer_format(struct tt_writer *writer, const char *key, const char *format, ...)
{
  char text[1200];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  tt_writer_text(writer, key, text);
}

void tt_writer_number(struct tt_writer *writer, const char *key, uint64_t value)
{
  char text[32];
  snprintf(text, sizeof text, "%" PRIu64, value);
  add_plain(writer, key, text);
}

void tt_writer_signed(struct tt_writer *writer, const char *key, int64_t value)
{
  char text[32];
  snprintf(text, sizeof text, "%" PRId64, value);
  add_plain(writer, key, text);
}

void tt_writer_mean(struct tt_writer *writer, const char *key, uint64_t sum, uint64_t count)
{
  char text[40];
  uint64_t whole = count > 0 ? sum / count : 0, rest = count > 0 ? sum % count : 0;
  snprintf(text, sizeof text, "%" PRIu64 ".%u", whole, count > 0 ? (unsigned)((double)rest / (double)count * 10) : 0);
  add_plain(writer, key, text);
}

void tt_writer_seconds(struct tt_writer *writer, const char *key, uint64_t ns)
{
  char text[40];
  snprintf(text, sizeof text, "%" PRIu64 ".%03u", ns / 1000000000u, (unsigned)(ns / 1000000u % 1000u));
  add_plain(writer, key, text);
}

void tt_writer_flag(struct tt_writer *writer, const char *key, bool value)
{
  add_plain(writer, key, writer->json ? (value ? "true" : "false") : (value ? "yes" : "no"));
}

void tt_writer_list(struct tt_writer *writer, const char *key, const int *values, int count)
{
  begin(writer, key);
  add_string(writer, writer->json ? "[" : count > 0 ? " " : " none");
  for (int i = 0; i < count; i++) {
    char text[16];
    snprintf(text, sizeof text, "%s%d", i > 0 ? ", " : "", values[i]);
    add_string(writer, text);
  }
  add_string(writer, writer->json ? "]" : "\n");
}
