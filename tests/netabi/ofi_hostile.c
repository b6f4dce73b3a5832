/* net-ofi and packets that no peer of its kind sends: each is an error that names what came, and nothing is read or
 * written for it. Both ends in the test's process; the libfabric between them spoils one packet, or one write, of a
 * connection that is well. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "../../plugins/net-ofi/wire.h"
#include "ofi_fixture.h"

enum { SMALL = 100, LARGE = 100000, CUT = 1 << 20 };
enum { WRITE = 0 };

#define HEADER(member) offsetof(struct tt_ofi_header, member)

static const struct {
  uint32_t kind;
  int nth;
  size_t offset;
  uint32_t value;
  size_t bytes; /* of the messages */
  const char *says;
} list[] = {
    /* To the receiver. */
    {TT_OFI_EAGER, 1, HEADER(kind), 0x0f1b0009, SMALL, "a packet of kind 253427721; the stream is corrupt"},
    {TT_OFI_EAGER, 1, HEADER(kind), TT_OFI_CTS, SMALL, "a packet of kind 253427716; the stream is corrupt"},
    {TT_OFI_EAGER, 1, HEADER(kind), TT_OFI_HELLO, SMALL, "a packet of kind 253427713; the stream is corrupt"},
    {TT_OFI_EAGER, 1, HEADER(bytes), SMALL - 1, SMALL, "a message whose packet does not fit its size of 99"},
    {TT_OFI_EAGER, 1, HEADER(bytes), SMALL + 1, SMALL, "a message whose packet does not fit its size of 101"},
    {TT_OFI_EAGER, 1, HEADER(bytes) + 4, 1, SMALL, "a message whose packet does not fit its size of 4294967396"},
    {TT_OFI_EAGER, 2, HEADER(number), 0, SMALL, "a second message of number 0"},
    {TT_OFI_EAGER, 1, CUT, sizeof(struct tt_ofi_header) - 1, SMALL, "sent a packet of 23 bytes"},
    {TT_OFI_EAGER, 1, CUT, sizeof(struct tt_ofi_header), SMALL, "a message whose packet does not fit its size of 100"},
    {TT_OFI_RTS, 1, HEADER(bytes) + 4, 0x7fffffff, LARGE, "a message whose packet does not fit its size of"},
    {TT_OFI_RTS, 1, HEADER(bytes), LARGE + 1, LARGE, "100001 bytes with tag 3"},
    {TT_OFI_RTS, 1, HEADER(kind), TT_OFI_EAGER, LARGE, "a message whose packet does not fit its size of 100000"},
    {WRITE, 1, 0, 0, LARGE, "a part for a place 0"},
    {WRITE, 1, 0, 0x01000000, LARGE, "a part for a place 16777216"},
    {WRITE, 1, 0, TT_OFI_WHOLE, LARGE, "a part for a place 0"},
    {WRITE, 1, 0, 0x7fffffff, LARGE, "a part for a place 2147483647"},
    {WRITE, 2, 4, 0, LARGE, "a part of no bytes for place"},
    {WRITE, 2, 4, LARGE + 1, LARGE, "100001 bytes with tag 3"},
    {WRITE, 2, 4, 0xffffffff, LARGE, "4294967295 bytes with tag 3"},
    /* To the sender. */
    {TT_OFI_CTS, 1, HEADER(kind), TT_OFI_RTS, LARGE, "sent a packet of kind 0xf1b0003"},
    {TT_OFI_CTS, 1, HEADER(kind), TT_OFI_HELLO, LARGE, "sent a packet of kind 0xf1b0001"},
    {TT_OFI_CTS, 1, offsetof(struct tt_ofi_clear, place), TT_OFI_WHOLE | 1, LARGE, "for place 2147483649"},
    {TT_OFI_CTS, 1, CUT, sizeof(struct tt_ofi_header), LARGE, "and 24 bytes, which is no number of places"},
    {TT_OFI_CTS, 1, CUT, 3, LARGE, "sent a packet of 3 bytes"},
};

/* The upper half of immediate data. */
static bool is_wide(int i)
{
  return list[i].kind == WRITE && list[i].offset == 4;
}

START_TEST(spoilt)
{
  static char out[LARGE], in[LARGE];
  char words[64];
  void *send, *recv, *out_memory, *in_memory;
  ncclResult_t result = ncclSuccess;
  snprintf(words, sizeof words, "%sspoil=%u/%d/%zu/%u", is_wide(_i) ? "wide," : "", list[_i].kind, list[_i].nth,
           list[_i].offset, list[_i].value);
  start_tcp(words);
  ck_assert_int_eq(try_connect(&send, &recv), ncclSuccess);
  ck_assert_int_eq(net->regMr(send, out, sizeof out, NCCL_PTR_HOST, &out_memory), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, in, sizeof in, NCCL_PTR_HOST, &in_memory), ncclSuccess);
  for (int i = 0; i < list[_i].nth && result == ncclSuccess; i++) {
    memset(out, i + 1, sizeof out);
    result = transfer(send, recv, out, in, list[_i].bytes, out_memory, in_memory);
  }
  ck_assert_msg(result != ncclSuccess, "all arrived");
  expect_logged(list[_i].says);
  /* Of a packet that is not believed nothing is used; a write has written before it is seen. */
  for (size_t i = 0; list[_i].kind != WRITE && i < sizeof in; i++)
    ck_assert_int_eq(in[i], i < list[_i].bytes ? list[_i].nth - 1 : 0);
  ck_assert_int_eq(net->deregMr(send, out_memory), ncclSuccess);
  ck_assert_int_eq(net->deregMr(recv, in_memory), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("hostile");
  tcase_add_loop_test(tcase, spoilt, 0, (int)(sizeof list / sizeof list[0]));
  return run(argc, argv, tcase);
}
