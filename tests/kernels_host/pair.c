/* See pair.h. */
#include "pair.h"

#include <string.h>
#include "base/check.h"
#include "base/log.h"

static void make_small(struct small *small, int peer, bool receives)
{
  *small = (struct small){
      .strand = {0, 1},
      .instruction = {.opcode = TT_OP_DATA, .repeat = 1, .noperands = 1},
      .operands =
          {{.kind = receives ? TT_RECV : TT_SEND, .buffer = receives ? TT_OUTPUT : TT_INPUT, .modulo = 1, .count = 1}},
      .peer = peer,
  };
  small->program = (struct tt_program){
      .size = sizeof(struct tt_program),
      .parts = 1,
      .nranks = 2,
      .npeers = 1,
      .nstrands = 1,
      .ninstructions = 1,
      .noperands = 1,
      .peers = &small->peer,
      .strands = &small->strand,
      .instructions = &small->instruction,
      .operands = small->operands,
  };
}

void open_pair(struct pair *pair, int protocol, bool proxied)
{
  struct world_options options = {.nranks = 2,
                                  .slot_bytes = {[TT_PROTO_LL] = 1024, [TT_PROTO_SIMPLE] = 1024},
                                  .proxied = proxied,
                                  .proxy_protocol = protocol,
                                  .seed = 5};
  memset(pair, 0, sizeof(*pair));
  world_open(&pair->world, &options);
  memset(pair->output, 0xaa, COUNT);
  for (int i = 0; i < COUNT; i++) pair->input[i] = (uint8_t)(i * 7 + 1);
  for (int r = 0; r < 2; r++) {
    make_small(&pair->programs[r], 1 - r, r == 1);
    const struct tt_program *program = &pair->programs[r].program;
    pair->works[r] = world_work(&pair->world, r, &program, 1, protocol);
    pair->works[r]->input = pair->input;
    pair->works[r]->output = pair->output;
    pair->works[r]->reduction.datatype = ncclUint8;
    pair->works[r]->signature = (struct tt_signature){.sequence = 7,
                                                      .count = COUNT,
                                                      .root = 1,
                                                      .collective = TT_FUNC_BROADCAST,
                                                      .datatype = ncclUint8,
                                                      .algorithm = TT_ALGO_RING,
                                                      .protocol = (uint8_t)protocol,
                                                      .nchannels = 1};
    world_cut(pair->works[r], COUNT, 100);
    pair->rows[r] = &pair->works[r];
  }
}

void close_pair(struct pair *pair)
{
  for (int r = 0; r < 2; r++) world_free_work(pair->works[r]);
  world_close(&pair->world);
}

void expect_untouched(const struct pair *pair)
{
  for (int i = 0; i < COUNT; i++) ck_assert_uint_eq(pair->output[i], 0xaa);
}

int protocol_of(int kind)
{
  return kind % 2 ? TT_PROTO_LL : TT_PROTO_SIMPLE;
}

void expect_error(const char *what)
{
  ck_assert_msg(strstr(tt_log_thread_error(), what) != NULL, "\"%s\" does not name \"%s\"", tt_log_thread_error(),
                what);
}
