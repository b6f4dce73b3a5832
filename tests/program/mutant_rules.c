/* The rules by which a changed program is still right; see mutant.h. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "mutant.h"

struct meaning {
  uint64_t *words;
  size_t count, room;
  bool order_matters, sends_sources; /* write a send of the result as one of the source, where that is the same */
};

static void add_word(struct meaning *meaning, uint64_t word)
{
  if (meaning->count == meaning->room) {
    meaning->room = meaning->room ? 2 * meaning->room : 64;
    meaning->words = realloc(meaning->words, meaning->room * sizeof(*meaning->words));
    ck_assert_ptr_nonnull(meaning->words);
  }
  meaning->words[meaning->count++] = word;
}

static int compare_words(const void *one, const void *other)
{
  const uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
  return (a > b) - (a < b);
}

static void sort_from(struct meaning *meaning, size_t first)
{
  if (meaning->count > first)
    qsort(meaning->words + first, meaning->count - first, sizeof(*meaning->words), compare_words);
}

static bool is_input(const struct tt_operand *operand)
{
  return operand->kind == TT_SRC || (operand->kind == TT_RECV && operand->buffer == TT_RESULT);
}

/* The only source of an instruction that does nothing but send it on. */
static const struct tt_operand *sent_source(const struct tt_program *program, const struct tt_instruction *instruction)
{
  const struct tt_operand *source = NULL;
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    if (operand->kind == TT_SEND) continue;
    if (operand->kind != TT_SRC || source) return NULL;
    source = operand;
  }
  return instruction->flags ? NULL : source;
}

bool is_of_member(const struct tt_program *program, const struct tt_operand *operand)
{
  bool local = operand->kind == TT_SRC || operand->kind == TT_DST;
  return local && operand->peer < program->nmembers &&
         (operand->buffer == TT_MEMBER_INPUT || operand->buffer == TT_MEMBER_OUTPUT);
}

bool is_of_other_member(const struct tt_program *program, const struct tt_operand *operand)
{
  if (!is_of_member(program, operand)) return false;
  return operand->peer >= program->nmembers || program->members[operand->peer] != program->rank;
}

uint8_t own_buffer(const struct tt_program *program, const struct tt_operand *operand)
{
  if (!is_of_member(program, operand)) return operand->buffer;
  return operand->buffer == TT_MEMBER_INPUT ? TT_INPUT : TT_OUTPUT;
}

static uint64_t operand_word(const struct meaning *meaning, const struct tt_program *program,
                             const struct tt_instruction *instruction, const struct tt_operand *operand,
                             uint32_t repetition, uint32_t piece)
{
  bool local = operand->kind == TT_SRC || operand->kind == TT_DST;
  bool others = local && is_of_other_member(program, operand);
  uint64_t buffer = others ? operand->buffer : own_buffer(program, operand);
  uint32_t chunk = tt_operand_piece(operand, repetition, piece), count = (uint32_t)operand->count;
  if (meaning->sends_sources && buffer == TT_RESULT && operand->kind == TT_SEND) {
    const struct tt_operand *source = sent_source(program, instruction);
    bool same_chunk = source && source->modulo == operand->modulo && source->count == operand->count &&
                      tt_operand_piece(source, repetition, piece) == chunk;
    if (same_chunk) buffer = source->buffer;
  }
  if (buffer == TT_RESULT) chunk %= program->parts;
  if (!count) chunk = 0;
  /* A mutant may name a member or a peer that there is not. */
  uint64_t peer = 0xffff;
  if (others)
    peer = operand->peer < program->nmembers ? (uint16_t)program->members[operand->peer] : 0xfffe;
  else if (!local)
    peer =
        operand->peer < program->npeers ? (uint16_t)(program->peers[operand->peer] - 1) : 0xfffe; /* networks below */
  return (uint64_t)operand->kind << 60 | buffer << 48 | peer << 32 | count << 24 | piece << 16 | chunk;
}

static bool has_outputs(const struct tt_program *program, const struct tt_instruction *instruction)
{
  for (uint32_t i = 0; i < instruction->noperands; i++) {
    const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
    if (operand->kind == TT_DST || (operand->kind == TT_SEND && operand->buffer == TT_RESULT)) return true;
  }
  return false;
}

static void add_repetition(struct meaning *meaning, const struct tt_program *program,
                           const struct tt_instruction *instruction, uint32_t repetition)
{
  add_word(meaning, has_outputs(program, instruction));
  for (int inputs = 1; inputs >= 0; inputs--) {
    size_t first = meaning->count;
    for (uint32_t i = 0; i < instruction->noperands; i++) {
      const struct tt_operand *operand = &program->operands[instruction->first_operand + i];
      uint32_t words = operand->count > 0 ? (uint32_t)operand->count : 1;
      for (uint32_t piece = 0; is_input(operand) == inputs && piece < words; piece++)
        add_word(meaning, operand_word(meaning, program, instruction, operand, repetition, piece));
    }
    if (!inputs || !meaning->order_matters) sort_from(meaning, first);
  }
}

static void find_meaning(struct meaning *meaning, const struct tt_program *program)
{
  for (uint32_t i = 0; i < program->nmembers; i++) add_word(meaning, (uint32_t)program->members[i]);
  for (uint32_t strand = 0; strand < program->nstrands; strand++) {
    add_word(meaning, UINT64_MAX);
    for (uint32_t i = 0; i < program->strands[strand].ninstructions; i++) {
      const struct tt_instruction *instruction = &program->instructions[program->strands[strand].first_instruction + i];
      for (uint32_t repetition = 0; repetition < instruction->repeat; repetition++) {
        add_word(meaning, (uint64_t)0xf << 60 | (uint64_t)instruction->opcode << 32 |
                              (uint64_t)instruction->flags << 16 | instruction->semaphore);
        add_repetition(meaning, program, instruction, repetition);
      }
    }
  }
}

bool same_meaning(const struct tt_program *original, const struct tt_program *changed, bool order_matters)
{
  bool same = false;
  for (int sends_sources = 0; !same && sends_sources < 2; sends_sources++) {
    struct meaning one = {.order_matters = order_matters, .sends_sources = sends_sources}, other = one;
    find_meaning(&one, original);
    find_meaning(&other, changed);
    same = one.count == other.count && !memcmp(one.words, other.words, one.count * sizeof(*one.words));
    free(one.words);
    free(other.words);
  }
  return same;
}

/* Whether it reads shared memory alone and writes the output alone. */
static bool only_shared_to_output(const struct tt_program *program, const struct tt_instruction *copy)
{
  for (uint32_t i = 0; i < copy->noperands; i++) {
    const struct tt_operand *operand = &program->operands[copy->first_operand + i];
    bool shared = operand->buffer == TT_SHARED || operand->buffer == TT_MULTICAST;
    bool reads = operand->kind == TT_SRC && shared, stores = operand->kind == TT_DST && operand->buffer == TT_OUTPUT;
    if (!reads && !stores) return false;
  }
  return true;
}

/* A member's output to which the instruction does not write. */
static bool is_left_alone(const struct tt_program *program, const struct tt_instruction *copy,
                          const struct tt_operand *source)
{
  if (source->kind != TT_SRC || source->buffer != TT_MEMBER_OUTPUT) return false;
  for (uint32_t i = 0; i < copy->noperands; i++) {
    const struct tt_operand *operand = &program->operands[copy->first_operand + i];
    if (operand->kind == TT_DST && (operand->buffer != TT_MEMBER_OUTPUT || operand->peer == source->peer)) return false;
  }
  return true;
}

bool may_repeat(const struct tt_program *program, uint32_t instruction)
{
  const struct tt_instruction *copy = &program->instructions[instruction];
  bool reduces = program->collective == TT_FUNC_ALL_REDUCE || program->collective == TT_FUNC_REDUCE ||
                 program->collective == TT_FUNC_REDUCE_SCATTER;
  if (copy->opcode != TT_OP_DATA) return false;
  if (only_shared_to_output(program, copy)) return true;
  for (uint32_t i = 0; i < copy->noperands; i++) {
    const struct tt_operand *operand = &program->operands[copy->first_operand + i];
    bool from_input =
        (operand->kind == TT_SRC && own_buffer(program, operand) == TT_INPUT) || is_left_alone(program, copy, operand);
    bool to_memory = operand->kind == TT_DST && (!reduces || own_buffer(program, operand) >= TT_SCRATCH);
    if (!from_input && !to_memory) return false;
  }
  return true;
}

bool holds_the_same(const struct tt_program *program, const struct tt_operand *source, uint8_t buffer)
{
  return program->collective == TT_FUNC_BROADCAST && source->kind == TT_SRC && source->buffer == TT_MEMBER_OUTPUT &&
         buffer == TT_MEMBER_INPUT;
}
