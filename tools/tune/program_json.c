/* Programs as JSON: the members of tutti/program.h by name, peers as ranks (below 0: networks, as there). */
#include <stdio.h>
#include "tune.h"

static const char *buffer_name(uint8_t buffer, char *text, size_t size)
{
  if (buffer == TT_INPUT) return "input";
  if (buffer == TT_OUTPUT) return "output";
  if (buffer == TT_RESULT) return "result";
  if (buffer == TT_SHARED) return "shared";
  if (buffer == TT_MULTICAST) return "multicast";
  if (buffer == TT_MEMBER_INPUT) return "input of a member";
  if (buffer == TT_MEMBER_OUTPUT) return "output of a member";
  snprintf(text, size, "scratch%d", buffer - TT_SCRATCH);
  return text;
}

static void operand_to_json(struct tool_json *json, const struct tt_program *program, const struct tt_operand *operand)
{
  static const char *const kinds[] = {
      [TT_SRC] = "source", [TT_RECV] = "receive", [TT_DST] = "destination", [TT_SEND] = "send"};
  char scratch[16];
  tool_json_open(json, NULL, '{');
  tool_json_string(json, "kind", kinds[operand->kind]);
  tool_json_string(json, "buffer", buffer_name(operand->buffer, scratch, sizeof(scratch)));
  if (operand->kind == TT_RECV || operand->kind == TT_SEND)
    tool_json_integer(json, "peer", program->peers[operand->peer]);
  else if (operand->buffer == TT_MEMBER_INPUT || operand->buffer == TT_MEMBER_OUTPUT)
    tool_json_integer(json, "member", program->members[operand->peer]);
  tool_json_integer(json, "start", operand->start);
  tool_json_integer(json, "stride", operand->stride);
  tool_json_integer(json, "modulo", operand->modulo);
  tool_json_integer(json, "count", operand->count);
  tool_json_integer(json, "step", operand->step);
  tool_json_close(json, '{');
}

static void instruction_to_json(struct tool_json *json, const struct tt_program *program,
                                const struct tt_instruction *instruction)
{
  static const char *const names[] = {[TT_OP_DATA] = "data", [TT_OP_SIGNAL] = "signal", [TT_OP_WAIT] = "wait"};
  tool_json_open(json, NULL, '{');
  tool_json_string(json, "op", names[instruction->opcode]);
  if (instruction->opcode == TT_OP_DATA) {
    tool_json_integer(json, "repeat", instruction->repeat);
    tool_json_bool(json, "final", instruction->flags & TT_FLAG_FINAL);
    tool_json_open(json, "operands", '[');
    for (uint32_t i = 0; i < instruction->noperands; i++)
      operand_to_json(json, program, &program->operands[instruction->first_operand + i]);
    tool_json_close(json, '[');
  } else {
    tool_json_integer(json, "semaphore", instruction->semaphore);
  }
  tool_json_close(json, '{');
}

void tune_program_json(struct tool_json *json, const struct tt_program *program)
{
  tool_json_open(json, NULL, '{');
  tool_json_integer(json, "rank", program->rank);
  tool_json_integer(json, "parts", program->parts);
  tool_json_integer(json, "input_blocks", program->input_blocks);
  tool_json_integer(json, "output_blocks", program->output_blocks);
  tool_json_integer(json, "scratch_buffers", program->nscratch);
  tool_json_integer(json, "scratch_blocks", program->scratch_blocks);
  tool_json_integer(json, "shared_blocks", program->shared_blocks);
  tool_json_integer(json, "semaphores", program->nsemaphores);
  tool_json_open(json, "peers", '[');
  for (uint32_t i = 0; i < program->npeers; i++) tool_json_integer(json, NULL, program->peers[i]);
  tool_json_close(json, '[');
  tool_json_open(json, "members", '[');
  for (uint32_t i = 0; i < program->nmembers; i++) tool_json_integer(json, NULL, program->members[i]);
  tool_json_close(json, '[');
  tool_json_open(json, "strands", '[');
  for (uint32_t s = 0; s < program->nstrands; s++) {
    tool_json_open(json, NULL, '[');
    for (uint32_t i = 0; i < program->strands[s].ninstructions; i++)
      instruction_to_json(json, program, &program->instructions[program->strands[s].first_instruction + i]);
    tool_json_close(json, '[');
  }
  tool_json_close(json, '[');
  tool_json_close(json, '{');
}
