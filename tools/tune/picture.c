/* A simulation as text: time across, a row for each strand, a letter for each instruction. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tune.h"

/* More than fits any screen, and less than fills a disk. */
#define MOST_CELLS 10000000.

const struct tune_kind_look tune_looks[TUNE_KINDS] = {
    [TUNE_SEND] = {'s', "sends", "#4e79a7"},
    [TUNE_RECEIVE] = {'r', "receives", "#76b7b2"},
    [TUNE_FORWARD] = {'f', "receives and sends on", "#59a14f"},
    [TUNE_EXCHANGE] = {'x', "sends and receives", "#b6992d"},
    [TUNE_ADD] = {'+', "reduces", "#e15759"},
    [TUNE_ADD_SEND] = {'A', "reduces and sends", "#f28e2b"},
    [TUNE_COPY] = {'c', "copies", "#9c755f"},
    [TUNE_MULTICAST] = {'m', "multicast memory", "#af7aa1"},
    [TUNE_NOTE] = {'n', "message without data", "#86bcb6"},
    [TUNE_SEMAPHORE] = {'w', "waits at a semaphore", "#d3b5d0"},
};

enum tune_kind tune_kind_of(const struct tt_program *program, uint32_t index)
{
  const struct tt_instruction *instruction = &program->instructions[index];
  uint32_t inputs = 0, moved = 0, received = 0, sent = 0, pieces = 0;
  if (instruction->opcode != TT_OP_DATA) return TUNE_SEMAPHORE;
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    bool result = operand->buffer == TT_RESULT;
    if (operand->buffer == TT_MULTICAST) return TUNE_MULTICAST;
    inputs += operand->kind == TT_SRC || (operand->kind == TT_RECV && result);
    moved += !result && (operand->kind == TT_RECV || operand->kind == TT_SEND);
    received += operand->kind == TT_RECV;
    sent += operand->kind == TT_SEND;
    pieces += (uint32_t)operand->count;
  }
  if (!pieces) return TUNE_NOTE;
  if (inputs > 1) return sent ? TUNE_ADD_SEND : TUNE_ADD;
  if (received && sent) return moved ? TUNE_EXCHANGE : TUNE_FORWARD;
  return sent ? TUNE_SEND : received ? TUNE_RECEIVE : TUNE_COPY;
}

/* Row of a rank's first strand. */
static size_t row_of(const struct tune_set *set, int rank)
{
  size_t row = 0;
  for (int r = 0; r < rank; r++) row += set->programs[r] ? set->programs[r]->nstrands : 1;
  return row;
}

static void fill(char *cells, size_t from, size_t to, char letter)
{
  for (size_t i = from; i < to; i++) cells[i] = letter;
}

static void print_ruler(size_t columns)
{
  printf("%-12s", "");
  for (size_t i = 0; i < columns; i += 10) printf(columns - i >= 10 ? "%-10zu" : "%zu", i);
  printf("\n%-12s", "");
  for (size_t i = 0; i < columns; i++) putchar(i % 10 ? '.' : '|');
  putchar('\n');
}

static void print_rows(const struct tune_set *set, const char *cells, size_t columns)
{
  for (int rank = 0; rank < set->nranks; rank++) {
    uint32_t strands = set->programs[rank] ? set->programs[rank]->nstrands : 1;
    for (uint32_t strand = 0; strand < strands; strand++, cells += columns) {
      size_t used = columns;
      while (used > 0 && cells[used - 1] == ' ') used--;
      if (strands == 1)
        printf("rank %-7d%.*s\n", rank, (int)used, cells);
      else if (strand == 0)
        printf("rank %3d.0  %.*s\n", rank, (int)used, cells);
      else
        printf("%8s.%-3u%.*s\n", "", strand, (int)used, cells);
    }
  }
}

static void print_legend(const char *cells, size_t count)
{
  putchar('\n');
  for (int kind = 0; kind < TUNE_KINDS; kind++)
    if (memchr(cells, tune_looks[kind].letter, count))
      printf("%c %s\n", tune_looks[kind].letter, tune_looks[kind].name);
  if (memchr(cells, '.', count)) puts(". waits for a message, or for room to send one");
}

bool tune_picture(const struct tune_set *set, const struct tt_simulation *simulation, const char *title, char *error,
                  size_t size)
{
  size_t columns = (size_t)ceil(simulation->time), rows = row_of(set, set->nranks);
  if (columns * (double)rows > MOST_CELLS) {
    snprintf(error, size, "--picture: %zu columns and %zu rows are too many; take fewer ranks or loops", columns, rows);
    return false;
  }
  unsigned nranks = set->nranks > 0 ? (unsigned)set->nranks : 1;
  char *cells = malloc(columns * rows + 1);
  size_t *first = calloc(nranks, sizeof(*first));
  bool good = cells && first;
  if (!good) snprintf(error, size, "out of memory");
  for (int rank = 0; good && rank < set->nranks; rank++) first[rank] = row_of(set, rank);
  if (good) memset(cells, ' ', columns * rows);
  for (size_t i = 0; good && i < simulation->nspans; i++) {
    const struct tt_simulate_span *span = &simulation->spans[i];
    enum tune_kind kind = tune_kind_of(set->programs[span->rank], span->instruction);
    char *row = cells + (first[span->rank] + span->strand) * columns;
    char waits = kind == TUNE_SEMAPHORE ? tune_looks[TUNE_SEMAPHORE].letter : '.';
    fill(row, (size_t)span->arrived, (size_t)span->start, waits);
    fill(row, (size_t)span->start, (size_t)span->end, tune_looks[kind].letter);
  }
  if (good) {
    printf("%s: %zu instructions one after the other\n", title, columns);
    print_ruler(columns);
    print_rows(set, cells, columns);
    print_legend(cells, columns * rows);
  }
  free(cells);
  free(first);
  return good;
}
