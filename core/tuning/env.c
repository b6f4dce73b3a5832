/* Parses NCCL_ALGO and NCCL_PROTO; see env.h. */
#include "tuning/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/text.h"
#include "program/emit.h"

static const char *const algorithm_names[TT_NUM_ALGORITHMS] = {
    [TT_ALGO_TREE] = "Tree",
    [TT_ALGO_RING] = "Ring",
    [TT_ALGO_COLLNET_DIRECT] = "CollNetDirect",
    [TT_ALGO_COLLNET_CHAIN] = "CollNetChain",
    [TT_ALGO_NVLS] = "NVLS",
    [TT_ALGO_NVLS_TREE] = "NVLSTree",
    [TT_ALGO_PAT] = "PAT",
    [TT_ALGO_ONE_SHOT] = "OneShot",
    [TT_ALGO_TWO_SHOT] = "TwoShot",
    [TT_ALGO_DIRECT] = "Direct",
    [TT_ALGO_MAPPED] = "Mapped",
};
static const char *const protocol_names[TT_NUM_PROTOCOLS] = {"LL", "LL128", "Simple"};
const struct tt_env_names tt_env_algorithms = {algorithm_names, TT_NUM_ALGORITHMS};
const struct tt_env_names tt_env_protocols = {protocol_names, TT_NUM_PROTOCOLS};

/* Collectives that may stand before a colon: those that choose an algorithm. */
#define NAMED_COLLECTIVES (TT_FUNC_ALL_REDUCE + 1)

/* Underscores do not count: logs write NVLS_TREE, NCCL's documents NVLSTree. */
static int find_name(const struct tt_env_names *names, const char *piece, size_t bytes)
{
  char plain[32];
  size_t length = 0;
  for (size_t i = 0; i < bytes && length < sizeof(plain); i++)
    if (piece[i] != '_') plain[length++] = piece[i];
  for (int i = 0; i < names->count; i++)
    if (names->names[i] && tt_text_equal_nocase(plain, length, names->names[i])) return i;
  return -1;
}

static int find_collective(const char *piece, size_t bytes)
{
  for (int i = 0; i < NAMED_COLLECTIVES; i++)
    if (tt_text_equal_nocase(piece, bytes, tt_collective_name(i))) return i;
  return -1;
}

static ncclResult_t wrong_name(const struct tt_env_list *list, const struct tt_env_names *names, const char *piece,
                               size_t bytes)
{
  char allowed[256];
  size_t at = 0;
  for (int i = 0; i < names->count; i++)
    if (names->names[i])
      at += (size_t)snprintf(allowed + at, sizeof(allowed) - at, at ? ", %s" : "%s", names->names[i]);
  return TT_FAIL(ncclInvalidUsage, "%s is \"%s\": \"%.*s\" is not one of %s", list->variable, list->value, (int)bytes,
                 piece, allowed);
}

/* [^]name,name,... to bits. */
static ncclResult_t parse_names(const struct tt_env_list *list, const struct tt_env_names *names, const char *text,
                                uint32_t *allowed, bool *inverted)
{
  const char *cursor = text, *piece;
  size_t bytes;
  uint32_t bits = 0;
  while (*cursor == ' ' || *cursor == '\t') cursor++;
  *inverted = *cursor == '^';
  if (*inverted) cursor++;
  while (tt_text_next(&cursor, ',', &piece, &bytes)) {
    if (bytes == 0) continue; /* a comma too many */
    int index = find_name(names, piece, bytes);
    if (index < 0) return wrong_name(list, names, piece, bytes);
    bits |= 1u << index;
  }
  if (bits == 0)
    return TT_FAIL(ncclInvalidUsage, "%s is \"%s\": \"%s\" names nothing; write [^]name,name or function:[^]name,name",
                   list->variable, list->value, text);
  *allowed = *inverted ? ~bits : bits;
  return ncclSuccess;
}

/* One entry between semicolons. */
static ncclResult_t parse_entry(struct tt_env_list *list, const struct tt_env_names *names, char *entry, bool first)
{
  char *colon = strchr(entry, ':');
  uint32_t allowed;
  bool inverted;
  if (!colon) {
    if (!first)
      return TT_FAIL(ncclInvalidUsage,
                     "%s is \"%s\": only the first entry may lack a function, \"%s\" needs one, as in "
                     "AllReduce:%s",
                     list->variable, list->value, entry, entry);
    TT_TRY(parse_names(list, names, entry, &allowed, &inverted));
    for (int c = 0; c < TT_NUM_FUNCS; c++) {
      list->allowed[c] = allowed;
      list->inverted[c] = inverted;
      list->set[c] = true;
    }
    return ncclSuccess;
  }
  *colon = 0;
  const char *cursor = entry, *piece;
  size_t bytes;
  tt_text_next(&cursor, ':', &piece, &bytes);
  int collective = find_collective(piece, bytes);
  if (collective < 0)
    return TT_FAIL(ncclInvalidUsage,
                   "%s is \"%s\": \"%.*s\" before the colon is not one of Broadcast, Reduce, AllGather, "
                   "ReduceScatter, AllReduce",
                   list->variable, list->value, (int)bytes, piece);
  TT_TRY(parse_names(list, names, colon + 1, &allowed, &inverted));
  list->allowed[collective] = allowed;
  list->inverted[collective] = inverted;
  list->set[collective] = true;
  return ncclSuccess;
}

ncclResult_t tt_env_parse(const char *variable, const char *value, const struct tt_env_names *names,
                          struct tt_env_list *list)
{
  memset(list, 0, sizeof(*list));
  list->variable = variable;
  for (int c = 0; c < TT_NUM_FUNCS; c++) list->allowed[c] = UINT32_MAX;
  if (!value || !*value) return ncclSuccess;
  list->value = value;
  const char *cursor = value, *piece;
  size_t bytes;
  ncclResult_t result = ncclSuccess;
  for (bool first = true; result == ncclSuccess && tt_text_next(&cursor, ';', &piece, &bytes); first = false) {
    if (bytes == 0) continue; /* a semicolon too many */
    char *entry = strndup(piece, bytes);
    if (!entry) return TT_FAIL(ncclSystemError, "out of memory for the %zu bytes of %s", bytes, variable);
    result = parse_entry(list, names, entry, first);
    free(entry);
  }
  return result;
}
