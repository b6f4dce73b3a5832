/* The builder behind all emitters: growing arrays, then one packed allocation. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "program/builder.h"

void tt_builder_start(struct tt_builder *builder, const struct tt_emit_request *request, uint32_t parts,
                      uint32_t input_blocks, uint32_t output_blocks)
{
  memset(builder, 0, sizeof(*builder));
  builder->head = (struct tt_program){.size = sizeof(struct tt_program),
                                      .version = TT_PROGRAM_VERSION,
                                      .collective = request->collective,
                                      .algorithm = request->algorithm,
                                      .nranks = request->nranks,
                                      .rank = request->rank,
                                      .root = request->root,
                                      .parts = parts,
                                      .input_blocks = input_blocks,
                                      .output_blocks = output_blocks};
}

/* Makes room for entry `count` of an array; NULL once an allocation has failed. */
static void *grow(struct tt_builder *builder, void *array, uint32_t count, uint32_t *room, size_t size)
{
  if (builder->failed != ncclSuccess) return NULL;
  if (count < *room) return array;
  uint32_t wanted = *room ? 2 * *room : 8;
  void *bigger = realloc(array, wanted * size);
  if (!bigger) {
    builder->failed = TT_FAIL(ncclSystemError, "out of memory for a program of rank %d: %zu bytes", builder->head.rank,
                              wanted * size);
    return NULL;
  }
  *room = wanted;
  return bigger;
}

uint16_t tt_builder_peer(struct tt_builder *builder, int32_t rank)
{
  uint32_t index = builder->head.npeers;
  if (builder->failed == ncclSuccess && index > UINT16_MAX) {
    builder->failed = TT_FAIL(ncclInvalidUsage, "%s with algorithm %s: rank %d would talk to more than %d peers",
                              tt_collective_name(builder->head.collective), tt_algorithm_name(builder->head.algorithm),
                              builder->head.rank, UINT16_MAX + 1);
  }
  int32_t *peers = grow(builder, builder->peers, index, &builder->peer_room, sizeof(*peers));
  if (!peers) return 0;
  builder->peers = peers;
  peers[index] = rank;
  builder->head.npeers++;
  return (uint16_t)index;
}

uint16_t tt_builder_semaphore(struct tt_builder *builder)
{
  return (uint16_t)builder->head.nsemaphores++;
}

void tt_builder_share(struct tt_builder *builder, uint32_t blocks, const int32_t *members, uint32_t nmembers)
{
  if (builder->failed != ncclSuccess) return;
  builder->members = malloc(nmembers * sizeof(*members));
  if (!builder->members) {
    builder->failed =
        TT_FAIL(ncclSystemError, "out of memory for a program of rank %d: %u members", builder->head.rank, nmembers);
    return;
  }
  memcpy(builder->members, members, nmembers * sizeof(*members));
  builder->head.nmembers = nmembers;
  builder->head.shared_blocks = blocks;
}

void tt_builder_strand(struct tt_builder *builder)
{
  uint32_t index = builder->head.nstrands;
  struct tt_strand *strands = grow(builder, builder->strands, index, &builder->strand_room, sizeof(*strands));
  if (!strands) return;
  builder->strands = strands;
  strands[index] = (struct tt_strand){.first_instruction = builder->head.ninstructions};
  builder->head.nstrands++;
}

static void add_instruction(struct tt_builder *builder, struct tt_instruction instruction)
{
  uint32_t index = builder->head.ninstructions;
  struct tt_instruction *instructions =
      grow(builder, builder->instructions, index, &builder->instruction_room, sizeof(*instructions));
  if (!instructions) return;
  builder->instructions = instructions;
  instruction.first_operand = builder->head.noperands;
  instructions[index] = instruction;
  builder->head.ninstructions++;
  builder->strands[builder->head.nstrands - 1].ninstructions++;
}

void tt_builder_data(struct tt_builder *builder, uint32_t repeat, uint8_t flags)
{
  add_instruction(builder, (struct tt_instruction){.opcode = TT_OP_DATA, .flags = flags, .repeat = repeat});
}

void tt_builder_signal(struct tt_builder *builder, uint16_t semaphore)
{
  add_instruction(builder, (struct tt_instruction){.opcode = TT_OP_SIGNAL, .semaphore = semaphore, .repeat = 1});
}

void tt_builder_wait(struct tt_builder *builder, uint16_t semaphore)
{
  add_instruction(builder, (struct tt_instruction){.opcode = TT_OP_WAIT, .semaphore = semaphore, .repeat = 1});
}

static void add_operand(struct tt_builder *builder, uint8_t kind, uint8_t buffer, uint16_t peer,
                        struct tt_chunks chunks)
{
  uint32_t index = builder->head.noperands;
  struct tt_operand *operands = grow(builder, builder->operands, index, &builder->operand_room, sizeof(*operands));
  if (!operands) return;
  builder->operands = operands;
  operands[index] = (struct tt_operand){.kind = kind,
                                        .buffer = buffer,
                                        .peer = peer,
                                        .start = chunks.start,
                                        .stride = chunks.stride,
                                        .modulo = chunks.modulo,
                                        .count = chunks.count > 1 ? chunks.count : 1,
                                        .step = chunks.count > 1 ? chunks.step : 0};
  builder->head.noperands++;
  builder->instructions[builder->head.ninstructions - 1].noperands++;
}

void tt_builder_source(struct tt_builder *builder, uint8_t buffer, struct tt_chunks chunks)
{
  add_operand(builder, TT_SRC, buffer, 0, chunks);
}

void tt_builder_destination(struct tt_builder *builder, uint8_t buffer, struct tt_chunks chunks)
{
  add_operand(builder, TT_DST, buffer, 0, chunks);
}

void tt_builder_member_source(struct tt_builder *builder, uint16_t member, uint8_t buffer, struct tt_chunks chunks)
{
  add_operand(builder, TT_SRC, buffer, member, chunks);
}

void tt_builder_member_destination(struct tt_builder *builder, uint16_t member, struct tt_chunks chunks)
{
  add_operand(builder, TT_DST, TT_MEMBER_OUTPUT, member, chunks);
}

void tt_builder_receive(struct tt_builder *builder, uint16_t peer, uint8_t buffer, struct tt_chunks chunks)
{
  add_operand(builder, TT_RECV, buffer, peer, chunks);
}

void tt_builder_send(struct tt_builder *builder, uint16_t peer, uint8_t buffer, struct tt_chunks chunks)
{
  add_operand(builder, TT_SEND, buffer, peer, chunks);
}

static void add_empty_message(struct tt_builder *builder, uint8_t kind, uint16_t peer)
{
  add_operand(builder, kind, TT_INPUT, peer, tt_chunk_one(0, 1));
  if (builder->failed == ncclSuccess) builder->operands[builder->head.noperands - 1].count = 0;
}

void tt_builder_tell(struct tt_builder *builder, uint16_t peer)
{
  add_empty_message(builder, TT_SEND, peer);
}

void tt_builder_hear(struct tt_builder *builder, uint16_t peer)
{
  add_empty_message(builder, TT_RECV, peer);
}

/* Copies an array to `at` and returns what follows it. All arrays hold 4-byte members, so no padding is needed. */
static unsigned char *pack(unsigned char *at, const void *array, size_t bytes)
{
  if (bytes) memcpy(at, array, bytes);
  return at + bytes;
}

ncclResult_t tt_builder_finish(struct tt_builder *builder, struct tt_program **program)
{
  struct tt_program *packed = NULL;
  size_t strands = builder->head.nstrands * sizeof(*builder->strands);
  size_t instructions = builder->head.ninstructions * sizeof(*builder->instructions);
  size_t operands = builder->head.noperands * sizeof(*builder->operands);
  size_t peers = builder->head.npeers * sizeof(*builder->peers);
  size_t members = builder->head.nmembers * sizeof(*builder->members);
  *program = NULL;
  if (builder->failed != ncclSuccess) goto out;
  size_t bytes = sizeof(*packed) + strands + instructions + operands + peers + members;
  packed = malloc(bytes);
  if (!packed) {
    builder->failed =
        TT_FAIL(ncclSystemError, "out of memory for a program of rank %d: %zu bytes", builder->head.rank, bytes);
    goto out;
  }
  unsigned char *at = (unsigned char *)(packed + 1);
  *packed = builder->head;
  packed->strands = (struct tt_strand *)at;
  at = pack(at, builder->strands, strands);
  packed->instructions = (struct tt_instruction *)at;
  at = pack(at, builder->instructions, instructions);
  packed->operands = (struct tt_operand *)at;
  at = pack(at, builder->operands, operands);
  packed->peers = (int32_t *)at;
  at = pack(at, builder->peers, peers);
  packed->members = members ? (int32_t *)at : NULL;
  pack(at, builder->members, members);
  *program = packed;
out:
  free(builder->strands);
  free(builder->instructions);
  free(builder->operands);
  free(builder->peers);
  free(builder->members);
  return builder->failed;
}
