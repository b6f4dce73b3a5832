/* See names.h. */
#include "names.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include "program/emit.h"

static const char *const collectives[TT_NUM_FUNCS] = {
    [TT_FUNC_BROADCAST] = "broadcast",
    [TT_FUNC_REDUCE] = "reduce",
    [TT_FUNC_ALL_GATHER] = "all_gather",
    [TT_FUNC_REDUCE_SCATTER] = "reduce_scatter",
    [TT_FUNC_ALL_REDUCE] = "all_reduce",
    [TT_FUNC_SEND_RECV] = "sendrecv",
    [TT_FUNC_SEND] = "send",
    [TT_FUNC_RECV] = "recv",
    [TT_FUNC_ALL_TO_ALL] = "alltoall",
    [TT_FUNC_SCATTER] = "scatter",
    [TT_FUNC_GATHER] = "gather",
};

static const char *const algorithms[TT_NUM_ALGORITHMS] = {
    [TT_ALGO_TREE] = "tree",
    [TT_ALGO_RING] = "ring",
    [TT_ALGO_COLLNET_DIRECT] = "collnet_direct",
    [TT_ALGO_COLLNET_CHAIN] = "collnet_chain",
    [TT_ALGO_NVLS] = "nvls",
    [TT_ALGO_NVLS_TREE] = "nvls_tree",
    [TT_ALGO_PAT] = "pat",
    [TT_ALGO_ONE_SHOT] = "one_shot",
    [TT_ALGO_TWO_SHOT] = "two_shot",
    [TT_ALGO_POINT_TO_POINT] = "p2p",
    [TT_ALGO_DIRECT] = "direct",
    [TT_ALGO_MAPPED] = "mapped",
};

static bool same(const char *a, const char *b)
{
  for (;; a++, b++) {
    while (*a == '_' || *a == '-') a++;
    while (*b == '_' || *b == '-') b++;
    if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return false;
    if (!*a) return true;
  }
}

int tune_collective_find(const char *name)
{
  for (int i = 0; i < TT_NUM_FUNCS; i++)
    if (same(name, collectives[i])) return i == TT_FUNC_SEND || i == TT_FUNC_RECV ? TT_FUNC_SEND_RECV : i;
  return -1;
}

int tune_algorithm_find(const char *name)
{
  for (int i = 0; i < TT_NUM_ALGORITHMS; i++)
    if (same(name, algorithms[i])) return i;
  return -1;
}

const char *tune_collective_word(int collective)
{
  return collectives[collective];
}

const char *tune_algorithm_word(int algorithm)
{
  return algorithms[algorithm];
}

int tune_supports(int collective, int algorithm)
{
  if (collective == TT_FUNC_SEND || collective == TT_FUNC_RECV) return 0;
  return tt_program_supports(collective == TT_FUNC_SEND_RECV ? TT_FUNC_SEND : collective, algorithm);
}

static void append(char *text, size_t size, const char *word)
{
  size_t used = 0;
  while (text[used]) used++;
  snprintf(text + used, size - used, "%s%s", used ? " " : "", word);
}

void tune_collective_list(char *text, size_t size)
{
  text[0] = '\0';
  for (int i = 0; i < TT_NUM_FUNCS; i++)
    if (i != TT_FUNC_SEND && i != TT_FUNC_RECV) append(text, size, collectives[i]);
}

void tune_algorithm_list(int collective, char *text, size_t size)
{
  text[0] = '\0';
  for (int i = 0; i < TT_NUM_ALGORITHMS; i++)
    if (tune_supports(collective, i)) append(text, size, algorithms[i]);
}
