/* The two forms of tutti-info's output; see info.h. */
#include "info.h"

#include <stdio.h>
#include <string.h>

void info_begin(struct info_out *out, const char *kind, const char *name)
{
  if (!out->json) {
    printf("%s:\t%s\n", kind, name);
    return;
  }
  tool_json_open(out->json, NULL, '{');
  tool_json_string(out->json, "name", name);
}

void info_end(struct info_out *out)
{
  if (out->json)
    tool_json_close(out->json, '{');
  else
    putchar('\n');
}

static void print_key(const char *key)
{
  int tabs = (24 - (int)strlen(key) - 1 + 7) / 8;
  printf("\t%s:", key);
  for (int i = 0; i < (tabs > 1 ? tabs : 1); i++) putchar('\t');
}

void info_text(struct info_out *out, const char *key, const char *value)
{
  if (out->json) {
    tool_json_string(out->json, key, value);
  } else {
    print_key(key);
    puts(value ? value : "-");
  }
}

void info_number(struct info_out *out, const char *key, long long value)
{
  if (out->json) {
    tool_json_integer(out->json, key, value);
  } else {
    print_key(key);
    printf("%lld\n", value);
  }
}

void info_words(struct info_out *out, const char *key, const char *const *words, int count)
{
  if (out->json) {
    tool_json_open(out->json, key, '[');
    for (int i = 0; i < count; i++) tool_json_string(out->json, NULL, words[i]);
    tool_json_close(out->json, '[');
    return;
  }
  print_key(key);
  if (count == 0) putchar('-');
  for (int i = 0; i < count; i++) printf("%s%s", i ? " " : "", words[i]);
  putchar('\n');
}
