/* Cards and shapes as bytes: what is packed comes back, and damaged bytes are refused or mean something sensible. The
 * exchange, with a thread a rank. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "graph/join_exchange.h"
#include "join_check.h"
#include "join_machine.h"
#include "join_suites.h"

#define CONST(graphs) ((const struct tt_graph *const *)(graphs).kinds)

static struct tt_join_shape *random_shape(uint64_t *state, int nlocal, int nchannels, int nheads)
{
  struct graphs graphs = graphs_random(state, nlocal, nchannels, nheads);
  int32_t *ranks = malloc((size_t)nlocal * sizeof(*ranks));
  struct tt_join_shape *shape;
  for (int i = 0; i < nlocal; i++) ranks[i] = i;
  ck_assert_int_eq(tt_join_shape_new(CONST(graphs), ranks, nlocal, &shape), ncclSuccess);
  graphs_free(&graphs);
  free(ranks);
  return shape;
}

/* In memory of exactly its size, so that the address sanitizer sees each byte too many. */
static uint8_t *pack(const struct tt_join_shape *shape)
{
  uint8_t *bytes = malloc(shape->bytes);
  ck_assert_uint_eq(tt_join_shape_pack(shape, bytes), shape->bytes);
  return bytes;
}

static void same_graph(const struct tt_join_graph *a, const struct tt_join_graph *b, size_t orders, bool places)
{
  ck_assert_int_eq(a->pattern, b->pattern);
  ck_assert_int_eq(a->cross_nic, b->cross_nic);
  ck_assert_int_eq(a->nchannels, b->nchannels);
  ck_assert_int_eq(a->same_channels, b->same_channels);
  ck_assert_int_eq(a->type_intra, b->type_intra);
  ck_assert_int_eq(a->type_inter, b->type_inter);
  ck_assert_float_eq(a->bandwidth_intra, b->bandwidth_intra);
  ck_assert_float_eq(a->bandwidth_inter, b->bandwidth_inter);
  ck_assert_float_eq(a->latency_inter, b->latency_inter);
  ck_assert_mem_eq(a->order, b->order, orders * sizeof(*a->order));
  if (places) ck_assert_mem_eq(a->place, b->place, orders * sizeof(*a->place));
}

START_TEST(shapes_come_back)
{
  static const int sizes[][3] = {{1, 1, 1}, {8, 12, 8}, {16, 32, 16}, {256, 3, 2}, {257, 3, 2}, {1024, 64, 64}};
  uint64_t state = 3;
  for (size_t i = 0; i < TT_COUNT(sizes); i++) {
    struct tt_join_shape *shape = random_shape(&state, sizes[i][0], sizes[i][1], sizes[i][2]), *back;
    uint8_t *bytes = pack(shape);
    ck_assert_uint_le(shape->bytes, TT_JOIN_MOST_BYTES);
    ck_assert_int_eq(tt_join_shape_unpack(bytes, shape->bytes, &back), ncclSuccess);
    ck_assert_uint_eq(back->digest, shape->digest);
    ck_assert_uint_eq(back->bytes, shape->bytes);
    ck_assert_int_eq(back->nranks, shape->nranks);
    for (int k = 0; k < TT_GRAPH_KINDS; k++) {
      const bool heads = k == TT_GRAPH_NVLS || k == TT_GRAPH_COLLNET_DIRECT;
      same_graph(&shape->graphs[k], &back->graphs[k],
                 (size_t)shape->graphs[k].nchannels * (heads ? 1 : (size_t)shape->nranks), !heads);
    }
    tt_join_shape_free(back);
    tt_join_shape_free(shape);
    free(bytes);
  }
}
END_TEST

/* Channels that are equal take a byte. 8 GPUs and 32 channels, as they are found on real machines. */
START_TEST(shapes_are_small)
{
  uint64_t state = 3;
  struct graphs graphs = graphs_random(&state, 8, 32, 8);
  const int32_t ranks[] = {0, 1, 2, 3, 4, 5, 6, 7};
  struct tt_join_shape *shape;
  for (int k = TT_GRAPH_RING; k <= TT_GRAPH_COLLNET_CHAIN; k++)
    for (int c = 1; c < 32; c++) memcpy(&graphs.kinds[k]->ranks[c * 8], graphs.kinds[k]->ranks, 8 * sizeof(int32_t));
  ck_assert_int_eq(tt_join_shape_new(CONST(graphs), ranks, 8, &shape), ncclSuccess);
  ck_assert_uint_le(shape->bytes, 256);
  tt_join_shape_free(shape);
  graphs_free(&graphs);
}
END_TEST

/* What is read in spite of the damage can be packed and joined. */
static void use(struct tt_join_shape *shape)
{
  struct tt_join_shapes shapes = {malloc(sizeof(shape)), 1};
  const struct tt_join_rules rules = tt_join_rules_default();
  struct tt_join_card *cards = calloc((size_t)shape->nranks, sizeof(*cards));
  struct tt_joined *joined;
  uint8_t *bytes = malloc(tt_join_shape_pack(shape, NULL));
  tt_join_shape_pack(shape, bytes);
  free(bytes);
  shapes.shapes[0] = shape;
  for (int r = 0; r < shape->nranks; r++) cards[r].digest = shape->digest;
  if (tt_graph_join(cards, shape->nranks, &shapes, &rules, &joined) == ncclSuccess) {
    struct join_check check = {.joined = joined};
    ck_assert_msg(join_check_all(&check), "%s", check.why);
    tt_joined_free(joined);
  }
  free(cards);
}

START_TEST(damaged_shapes)
{
  uint64_t state = 300 + (uint64_t)_i;
  int read = 0;
  for (int i = 0; i < 2500; i++) {
    struct tt_join_shape *shape = random_shape(&state, 1 + random_below(&state, 9), 1 + random_below(&state, 5), 2),
                         *back;
    uint8_t *good = pack(shape);
    const size_t size = (i % 4 == 0) ? (size_t)random_below(&state, (int)shape->bytes + 1) : shape->bytes;
    uint8_t *bytes = malloc(size + 1);
    memcpy(bytes, good, size);
    bytes[size] = 0;
    for (int flips = random_below(&state, 4); flips > 0 && size > 0; flips--)
      bytes[random_below(&state, (int)size)] = (uint8_t)random_next(&state);
    if (tt_join_shape_unpack(bytes, size + (i % 7 == 0), &back) == ncclSuccess) {
      read++;
      use(back);
    } else {
      ck_assert_ptr_null(back);
    }
    tt_join_shape_free(shape);
    free(good);
    free(bytes);
  }
  ck_assert_int_gt(read, 100);
}
END_TEST

START_TEST(noise)
{
  uint64_t state = 900;
  for (int i = 0; i < 3000; i++) {
    const size_t size = (size_t)random_below(&state, 300);
    uint8_t *bytes = malloc(size);
    struct tt_join_shape *shape;
    for (size_t k = 0; k < size; k++) bytes[k] = (uint8_t)random_next(&state);
    if (size > 5) memcpy(bytes, "TTsh\1", 5);
    if (tt_join_shape_unpack(bytes, size, &shape) == ncclSuccess) use(shape);
    free(bytes);
  }
}
END_TEST

START_TEST(cards)
{
  const struct tt_join_card card = {.leader = 1234567,
                                    .digest = 0xfedcba9876543210,
                                    .shape_bytes = 4711,
                                    .peer_channels = 64,
                                    .sm = 120,
                                    .arch = TT_ARCH_ARM,
                                    .vendor = TT_VENDOR_AMD,
                                    .net_bandwidth = 12.5f};
  struct tt_join_card back;
  uint8_t bytes[TT_JOIN_CARD_BYTES];
  tt_join_card_pack(&card, bytes);
  ck_assert_int_eq(tt_join_card_unpack(bytes, 3, &back), ncclSuccess);
  ck_assert_int_eq(back.leader, card.leader);
  ck_assert_uint_eq(back.digest, card.digest);
  ck_assert_uint_eq(back.shape_bytes, card.shape_bytes);
  ck_assert_int_eq(back.peer_channels, card.peer_channels);
  ck_assert_int_eq(back.sm, card.sm);
  ck_assert_int_eq(back.arch, card.arch);
  ck_assert_int_eq(back.vendor, card.vendor);
  ck_assert_float_eq(back.net_bandwidth, card.net_bandwidth);
  for (int i = 0; i < TT_JOIN_CARD_BYTES; i++)
    for (int bit = 0; bit < 8; bit++) {
      bytes[i] ^= (uint8_t)(1 << bit);
      ck_assert_int_eq(tt_join_card_unpack(bytes, 3, &back), ncclInvalidUsage);
      ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "rank 3"));
      bytes[i] ^= (uint8_t)(1 << bit);
    }
}
END_TEST

/* Threads that gather as a bootstrap does. */
struct meeting {
  pthread_barrier_t barrier;
  uint8_t *blocks;
  int nranks, rounds, damage; /* damage: of the second round, one byte of this rank; -1: none */
  size_t bytes;
};

struct member {
  struct meeting *meeting;
  const struct tt_join_shape *shape;
  struct tt_join_card card;
  int rank;
  ncclResult_t result;
  struct tt_join_card *cards;
  struct tt_join_shapes shapes;
};

static ncclResult_t gather(void *context, void *blocks, size_t bytes)
{
  struct member *m = context;
  struct meeting *meeting = m->meeting;
  if (pthread_barrier_wait(&meeting->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
    meeting->blocks = realloc(meeting->blocks, (size_t)meeting->nranks * bytes);
    meeting->bytes = bytes;
    meeting->rounds++;
  }
  pthread_barrier_wait(&meeting->barrier);
  ck_assert_uint_eq(meeting->bytes, bytes);
  memcpy(meeting->blocks + (size_t)m->rank * bytes, (uint8_t *)blocks + (size_t)m->rank * bytes, bytes);
  pthread_barrier_wait(&meeting->barrier);
  memcpy(blocks, meeting->blocks, (size_t)meeting->nranks * bytes);
  if (meeting->rounds == 2 && meeting->damage >= 0) ((uint8_t *)blocks)[(size_t)meeting->damage * bytes] ^= 0x10;
  pthread_barrier_wait(&meeting->barrier);
  return ncclSuccess;
}

static void *run(void *argument)
{
  struct member *m = argument;
  m->result = tt_join_exchange(&m->card, m->shape, m->rank, m->meeting->nranks, gather, m, &m->cards, &m->shapes);
  return NULL;
}

/* Machines of two ranks each, the n-th with shape kind[n]; returns how many all-gathers there were. */
static int meet(const int *kind, int nmachines, int damage, struct member *members)
{
  struct meeting meeting = {.nranks = 2 * nmachines, .damage = damage};
  struct tt_join_shape *shapes[4];
  pthread_t threads[16];
  for (int k = 0; k < 4; k++) {
    uint64_t state = 40 + (uint64_t)k;
    shapes[k] = random_shape(&state, 2, 3 + k, 2);
  }
  pthread_barrier_init(&meeting.barrier, NULL, (unsigned)meeting.nranks);
  for (int r = 0; r < meeting.nranks; r++) {
    const struct tt_join_shape *shape = shapes[kind[r / 2]];
    members[r] = (struct member){.meeting = &meeting, .shape = shape, .rank = r};
    members[r].card = (struct tt_join_card){
        .leader = r / 2 * 2, .digest = shape->digest, .shape_bytes = (uint32_t)shape->bytes, .peer_channels = 2 + r};
    ck_assert_int_eq(pthread_create(&threads[r], NULL, run, &members[r]), 0);
  }
  for (int r = 0; r < meeting.nranks; r++) pthread_join(threads[r], NULL);
  pthread_barrier_destroy(&meeting.barrier);
  for (int k = 0; k < 4; k++) tt_join_shape_free(shapes[k]);
  free(meeting.blocks);
  return meeting.rounds;
}

static void all_join_alike(struct member *members, int nranks)
{
  const struct tt_join_rules rules = tt_join_rules_default();
  struct tt_joined *joined[16];
  for (int r = 0; r < nranks; r++) {
    ck_assert_int_eq(members[r].result, ncclSuccess);
    for (int other = 0; other < nranks; other++) ck_assert_int_eq(members[r].cards[other].peer_channels, 2 + other);
    ck_assert_int_eq(tt_graph_join(members[r].cards, nranks, &members[r].shapes, &rules, &joined[r]), ncclSuccess);
    ck_assert_int_eq(joined[r]->nchannels, joined[0]->nchannels);
    for (int c = 0; c < joined[0]->nchannels; c++) {
      ck_assert_mem_eq(joined[r]->ring[c], joined[0]->ring[c], (size_t)nranks * sizeof(int32_t));
      struct tt_join_tree a = tt_join_tree_place(joined[r], c, r), b = tt_join_tree_place(joined[0], c, r);
      ck_assert_mem_eq(&a, &b, sizeof(a));
    }
    free(members[r].cards);
  }
  for (int r = 0; r < nranks; r++) tt_joined_free(joined[r]);
}

START_TEST(exchange)
{
  static const int kinds[][4] = {{0, 0, 0, 0}, {0, 1, 1, 0}, {0, 1, 2, 3}, {3, 3, 3, 1}};
  struct member members[16];
  for (size_t i = 0; i < TT_COUNT(kinds); i++) {
    ck_assert_int_eq(meet(kinds[i], 4, -1, members), i == 0 ? 1 : 2);
    all_join_alike(members, 8);
  }
}
END_TEST

START_TEST(damaged_exchange)
{
  static const int kinds[] = {0, 1, 2, 0};
  struct member members[16];
  meet(kinds, 4, 4, members);
  for (int r = 0; r < 8; r++) {
    ck_assert_int_eq(members[r].result, ncclInvalidUsage);
    ck_assert_ptr_null(members[r].cards);
    ck_assert_ptr_null(members[r].shapes.shapes);
  }
}
END_TEST

Suite *suite_join_exchange(void)
{
  Suite *suite = suite_create("join exchange");
  TCase *tcase = tcase_create("exchange");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, shapes_come_back);
  tcase_add_test(tcase, shapes_are_small);
  tcase_add_loop_test(tcase, damaged_shapes, 0, 2);
  tcase_add_test(tcase, noise);
  tcase_add_test(tcase, cards);
  tcase_add_test(tcase, exchange);
  tcase_add_test(tcase, damaged_exchange);
  suite_add_tcase(suite, tcase);
  return suite;
}
