/* Random texts for the parsers, with fixed seeds: they must hold their invariants whatever comes. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/log_filter.h"
#include "base/param_file.h"
#include "base/socket.h"
#include "base/text.h"

#define ROUNDS 20000

/* A text over characters that matter to the parser, in memory of exactly its size, so that ASan sees each overrun. */
static char *random_text(uint64_t *state, const char *alphabet, size_t most)
{
  size_t bytes = next_random(state) % (most + 1), letters = strlen(alphabet);
  char *text = malloc(bytes + 1);
  for (size_t i = 0; i < bytes; i++) text[i] = alphabet[next_random(state) % letters];
  text[bytes] = 0;
  return text;
}

START_TEST(addresses)
{
  uint64_t state = 1;
  for (int i = 0; i < ROUNDS; i++) {
    /* No letters but hexadecimal ones, and brackets first or no dots: no text that would ask a name server. */
    char *text = random_text(&state, "0123456789abcdef:[]%. -", 40);
    union tt_address address;
    char printed[TT_ADDRESS_TEXT];
    if (text[0] == '[' && tt_address_parse(text, &address) == ncclSuccess) {
      ck_assert_int_eq(address.sa.sa_family, AF_INET6);
      tt_address_print(&address, printed);
      ck_assert_uint_lt(strlen(printed), TT_ADDRESS_TEXT);
    }
    free(text);
  }
  /* Nearly right ones. */
  for (int i = 0; i < ROUNDS; i++) {
    char text[] = "[2001:db8::17%lo]:40001";
    text[next_random(&state) % (sizeof(text) - 1)] = "0:%][.f"[next_random(&state) % 7];
    union tt_address address;
    if (text[0] == '[') tt_address_parse(text, &address);
  }
}
END_TEST

START_TEST(filters)
{
  uint64_t state = 2;
  for (int i = 0; i < ROUNDS; i++) {
    char *filter = random_text(&state, "^=,: \tehlo01", 24), *name = random_text(&state, "ehlo01:", 8);
    bool passes = tt_ifname_match(filter, name);
    /* A filter and its exclusion never agree, unless neither names anything. */
    if (!strchr(filter, '^')) {
      char inverse[64] = "^";
      strcat(inverse, filter);
      bool names_something = strpbrk(filter, "ehlo01:") != NULL;
      ck_assert_msg(tt_ifname_match(inverse, name) == (names_something ? !passes : true), "\"%s\" \"%s\"", filter,
                    name);
    }
    free(filter);
    free(name);
  }
}
END_TEST

START_TEST(conf_files)
{
  uint64_t state = 3;
  for (int i = 0; i < ROUNDS / 10; i++) {
    struct tt_param_files files = {0};
    char *text = random_text(&state, "NCL_A=#\n\r \t9\"", 200);
    size_t bytes = strlen(text);
    if (bytes && i % 5 == 0) text[next_random(&state) % bytes] = 0;
    tt_param_files_parse(&files, "fuzz", TT_PARAM_FROM_USER_FILE, text, bytes);
    for (int s = 0; s < files.nsettings; s++) {
      const struct tt_param_setting *setting = &files.settings[s];
      ck_assert_int_gt(setting->line, 0);
      ck_assert_uint_gt(strlen(setting->name), 0);
      ck_assert_ptr_null(strpbrk(setting->name, " =#\n\r\t\""));
      ck_assert_ptr_null(strchr(setting->value, '\n'));
      ck_assert_str_eq(setting->file, "fuzz");
    }
    tt_param_files_free(&files);
    ck_assert_int_eq(files.nsettings, 0);
    free(text);
  }
}
END_TEST

START_TEST(log_settings)
{
  uint64_t state = 4;
  struct timespec now = {.tv_sec = 1700000000, .tv_nsec = 999999999};
  for (int i = 0; i < ROUNDS; i++) {
    char *text = random_text(&state, "%hp123456789fFTY_[]^,INT ", 60);
    char out[40];
    int unknown;
    memset(out, 'q', sizeof(out));
    if (tt_log_file_name(text, "host", 1, out, sizeof(out))) ck_assert_uint_lt(strlen(out), sizeof(out));
    tt_log_time(text, &now, out, sizeof(out));
    ck_assert_uint_lt(strlen(out), sizeof(out));
    tt_log_subsystems(text, &unknown);
    tt_log_level_bits(text, &unknown);
    tt_log_level(text);
    free(text);
  }
}
END_TEST

START_TEST(numbers_and_lists)
{
  uint64_t state = 5;
  for (int i = 0; i < ROUNDS; i++) {
    char *text = random_text(&state, "0123456789-xX ,af", 24);
    int64_t value;
    uint16_t first, last;
    tt_text_int(text, &value);
    if (tt_text_port_range(text, &first, &last)) ck_assert(first >= 1 && first <= last);
    const char *cursor = text, *piece;
    size_t bytes, pieces = 0, commas = 0;
    while (tt_text_next(&cursor, ',', &piece, &bytes)) {
      ck_assert(piece >= text && piece + bytes <= text + strlen(text));
      ck_assert_ptr_null(memchr(piece, ',', bytes));
      pieces++;
    }
    for (const char *at = text; *at; at++) commas += *at == ',';
    ck_assert_uint_eq(pieces, commas + 1);
    free(text);
  }
}
END_TEST

Suite *fuzz_suite(void)
{
  Suite *suite = suite_create("random texts");
  TCase *one = clean_case(suite, "random texts");
  tcase_add_test(one, addresses);
  tcase_add_test(one, filters);
  tcase_add_test(one, conf_files);
  tcase_add_test(one, log_settings);
  tcase_add_test(one, numbers_and_lists);
  return suite;
}
