/* Formats: what is packed is parsed alike; everything else is refused and never harms. */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"
#include "bootstrap/link.h"
#include "bootstrap/wire.h"
#include "tests/common/effort.h"

static struct tt_endpoint sample_endpoint(void)
{
  struct tt_endpoint e = {.count = 2};
  ck_assert_int_eq(tt_address_parse("192.0.2.7:4711", &e.addresses[0]), ncclSuccess);
  ck_assert_int_eq(tt_address_parse("[2001:db8::9]:40001", &e.addresses[1]), ncclSuccess);
  e.addresses[1].v6.sin6_scope_id = 3;
  return e;
}

static void same_endpoint(const struct tt_endpoint *a, const struct tt_endpoint *b)
{
  ck_assert_int_eq(a->count, b->count);
  for (int i = 0; i < a->count; i++)
    ck_assert_mem_eq(&a->addresses[i], &b->addresses[i], tt_address_bytes(&a->addresses[i]));
}

START_TEST(id_round_trip)
{
  struct tt_id id = {.key = {1, 2}, .nonce = 3, .host = 4, .root = sample_endpoint()}, got;
  ncclUniqueId bytes;
  tt_wire_put_id(&bytes, &id);
  ck_assert_int_eq(tt_wire_get_id(&bytes, &got), ncclSuccess);
  ck_assert(got.key.k0 == 1 && got.key.k1 == 2 && got.nonce == 3 && got.host == 4 && !got.fixed);
  same_endpoint(&got.root, &id.root);
  /* Every single changed byte is noticed. */
  for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++) {
    ncclUniqueId wrong = bytes;
    wrong.internal[i] ^= 0x40;
    ck_assert_int_eq(tt_wire_get_id(&wrong, &got), ncclInvalidArgument);
  }
}
END_TEST

START_TEST(id_junk)
{
  ncclUniqueId id;
  struct tt_id got;
  memset(&id, 0, sizeof(id));
  ck_assert_int_eq(tt_wire_get_id(&id, &got), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "all zeros"));
  memset(&id, 0x5a, sizeof(id));
  ck_assert_int_eq(tt_wire_get_id(&id, &got), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "another library"));
  struct tt_bootstrap *b = (void *)1;
  ck_assert_int_eq(tt_bootstrap_create(&id, 0, 2, NULL, &b), ncclInvalidArgument);
  ck_assert_ptr_null(b);
}
END_TEST

START_TEST(checkin_and_answer_round_trip)
{
  unsigned char bytes[TT_ANSWER_BYTES];
  struct tt_checkin in = {.rank = 5, .nranks = 9, .place = 2, .places = 4, .list = 77, .endpoint = sample_endpoint()},
                    out;
  tt_wire_put_checkin(bytes, &in);
  ck_assert(tt_wire_get_checkin(bytes, TT_CHECKIN_BYTES, &out));
  ck_assert(out.rank == 5 && out.nranks == 9 && out.place == 2 && out.places == 4 && out.list == 77);
  same_endpoint(&in.endpoint, &out.endpoint);
  ck_assert(!tt_wire_get_checkin(bytes, TT_CHECKIN_BYTES - 1, &out));
  in.rank = 9; /* outside */
  tt_wire_put_checkin(bytes, &in);
  ck_assert(!tt_wire_get_checkin(bytes, TT_CHECKIN_BYTES, &out));
  in = (struct tt_checkin){.rank = 5, .nranks = 9, .place = 4, .places = 4, .endpoint = sample_endpoint()};
  tt_wire_put_checkin(bytes, &in);
  ck_assert(!tt_wire_get_checkin(bytes, TT_CHECKIN_BYTES, &out));
  in = (struct tt_checkin){.rank = 5, .nranks = 9, .place = 4, .places = 10, .endpoint = sample_endpoint()};
  tt_wire_put_checkin(bytes, &in);
  ck_assert(!tt_wire_get_checkin(bytes, TT_CHECKIN_BYTES, &out));

  struct tt_answer answer = {.result = ncclRemoteError, .text = "because"}, got;
  size_t size = tt_wire_put_answer(bytes, &answer);
  ck_assert(tt_wire_get_answer(bytes, size, &got));
  ck_assert_int_eq(got.result, ncclRemoteError);
  ck_assert_str_eq(got.text, "because");
  ck_assert(!tt_wire_get_answer(bytes, size - 1, &got));
  answer = (struct tt_answer){.result = ncclSuccess, .previous = sample_endpoint(), .next = sample_endpoint()};
  size = tt_wire_put_answer(bytes, &answer);
  ck_assert(tt_wire_get_answer(bytes, size, &got));
  same_endpoint(&got.next, &answer.next);
}
END_TEST

START_TEST(header_is_authenticated)
{
  struct tt_key key = {11, 22}, other = {11, 23};
  struct tt_header header = {.tag = 7, .bytes = 1000}, got;
  unsigned char bytes[TT_HEADER_BYTES];
  tt_wire_put_header(bytes, &header, &key, 5);
  ck_assert_ptr_null(tt_wire_get_header(bytes, &got, &key, 5));
  ck_assert(got.tag == 7 && got.bytes == 1000);
  ck_assert_ptr_nonnull(tt_wire_get_header(bytes, &got, &key, 6)); /* replayed or dropped */
  ck_assert_ptr_nonnull(tt_wire_get_header(bytes, &got, &other, 5));
  for (int i = 0; i < TT_HEADER_BYTES; i++) {
    bytes[i] ^= 1;
    ck_assert_ptr_nonnull(tt_wire_get_header(bytes, &got, &key, 5));
    bytes[i] ^= 1;
  }
  header.bytes = TT_MESSAGE_MAX + 1; /* authentic and too long all the same */
  tt_wire_put_header(bytes, &header, &key, 5);
  ck_assert_ptr_nonnull(strstr(tt_wire_get_header(bytes, &got, &key, 5), "limit"));
}
END_TEST

/* Random bytes, and good bytes with random changes: parsers may accept or refuse, within memory that sanitizers watch.
 */
START_TEST(fuzz_parsers)
{
  uint64_t seed = 0x9e3779b97f4a7c15ull;
  struct tt_key key = {1, 2};
  for (int i = 0; i < EFFORT_ALONE(200000, 2000); i++) {
    size_t size = random_next(&seed) % (TT_ANSWER_BYTES + 8);
    unsigned char *bytes = malloc(size + 1);
    for (size_t k = 0; k < size; k++) bytes[k] = (unsigned char)(random_next(&seed) >> 20);
    if (i % 2 && size >= 64) memset(bytes, 0, 24); /* deeper into the answers */
    struct tt_checkin checkin;
    struct tt_answer answer;
    struct tt_header header;
    struct tt_hello hello;
    struct tt_challenge challenge;
    struct tt_endpoint endpoint;
    if (tt_wire_get_checkin(bytes, size, &checkin)) {
      ck_assert(checkin.rank < checkin.nranks);
      ck_assert(checkin.place < checkin.places);
    }
    if (tt_wire_get_answer(bytes, size, &answer)) ck_assert_int_lt(answer.result, ncclNumResults);
    if (size >= TT_HEADER_BYTES) ck_assert_ptr_nonnull(tt_wire_get_header(bytes, &header, &key, 0));
    if (size >= TT_HELLO_BYTES) ck_assert(!tt_wire_get_hello(bytes, &hello));
    if (size >= TT_CHALLENGE_BYTES) ck_assert(!tt_wire_get_challenge(bytes, &challenge));
    if (size >= TT_ENDPOINT_BYTES && tt_wire_get_endpoint(bytes, &endpoint)) ck_assert_int_le(endpoint.count, 3);
    free(bytes);
  }
}
END_TEST

static const struct tt_key link_key = {77, 88};

static enum tt_challenge_status link_lookup(void *context, const struct tt_hello *hello, struct tt_key *key)
{
  (void)context;
  (void)hello;
  *key = link_key;
  return TT_CHALLENGE_OK;
}

/* A server link fed with random bytes, or with a good hello and random bytes: it closes or waits, it never gets ready.
 */
START_TEST(fuzz_link)
{
  uint64_t seed = 4711;
  for (int i = 0; i < 2000; i++) {
    int pair[2];
    struct tt_link *link;
    unsigned char bytes[200], hello_bytes[TT_HELLO_BYTES];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    ck_assert_int_eq(tt_link_adopt(pair[0], link_lookup, NULL, &link), ncclSuccess);
    struct tt_hello hello = {.version = TT_WIRE_VERSION, .purpose = TT_PURPOSE_PEER};
    tt_wire_put_hello(hello_bytes, &hello);
    if (i % 2) ck_assert_int_gt(send(pair[1], hello_bytes, sizeof(hello_bytes), 0), 0);
    for (int part = 0; part < 4 && link->state != TT_LINK_CLOSED; part++) {
      size_t size = 1 + random_next(&seed) % sizeof(bytes);
      for (size_t k = 0; k < size; k++) bytes[k] = (unsigned char)(random_next(&seed) >> 30);
      ck_assert_int_gt(send(pair[1], bytes, size, MSG_NOSIGNAL), 0);
      tt_link_progress(link);
      ck_assert_int_ne(link->state, TT_LINK_READY);
      ck_assert_ptr_null(tt_link_receive(link));
    }
    close(pair[1]);
    tt_link_free(link);
  }
}
END_TEST

/* Random bytes in place of messages after a real handshake close the link with a reason. */
START_TEST(fuzz_messages)
{
  uint64_t seed = 1234567;
  for (int i = 0; i < 300; i++) {
    struct tt_endpoint target = {.count = 1};
    ck_assert_int_eq(tt_address_parse("127.0.0.1:1", &target.addresses[0]), ncclSuccess);
    target.addresses[0].v4.sin_port = 0;
    int listen_fd, fd;
    ck_assert_int_eq(tt_socket_listen(&target.addresses[0], &listen_fd), ncclSuccess);
    struct tt_link *client, *server;
    struct tt_link_patience patience = {.deadline = tt_deadline_in_ms(5000)};
    ck_assert_int_eq(tt_link_dial(&target, NULL, &link_key, TT_PURPOSE_PEER, 0, 0, &patience, &client), ncclSuccess);
    ck_assert_int_eq(tt_socket_accept(listen_fd, &fd, tt_deadline_in_ms(5000), NULL), ncclSuccess);
    ck_assert_int_eq(tt_link_adopt(fd, link_lookup, NULL, &server), ncclSuccess);
    while (client->state != TT_LINK_READY || server->state != TT_LINK_READY) {
      tt_link_progress(client);
      tt_link_progress(server);
      ck_assert(client->state != TT_LINK_CLOSED && server->state != TT_LINK_CLOSED);
    }
    /* First a good message, so that what follows is judged in its place. */
    ck_assert_int_eq(tt_link_send(client, 9, "good", 4), ncclSuccess);
    struct tt_message *message;
    while (!(message = tt_link_receive(server))) ck_assert_int_eq(server->state, TT_LINK_READY);
    ck_assert(message->tag == 9 && message->bytes == 4 && memcmp(message->data, "good", 4) == 0);
    free(message);
    unsigned char bytes[64];
    for (size_t k = 0; k < sizeof(bytes); k++) bytes[k] = (unsigned char)(random_next(&seed) >> 30);
    /* Sometimes with the right magic number, sometimes an authentic header whose payload is forged. */
    if (i % 3 == 1) memcpy(bytes, "TUTM", 4);
    if (i % 3 == 2) {
      struct tt_header header = {.tag = 3, .bytes = 16};
      tt_wire_put_header(bytes, &header, &client->tx, client->tx_sequence);
    }
    ck_assert_int_eq(send(client->fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    for (int turn = 0; turn < 1000 && server->state == TT_LINK_READY; turn++) {
      ck_assert_ptr_null(tt_link_receive(server));
      usleep(10);
    }
    ck_assert_int_eq(server->state, TT_LINK_CLOSED);
    ck_assert_ptr_nonnull(strstr(server->why, i % 3 == 2 ? "contents are not authentic" : "message"));
    tt_link_free(client);
    tt_link_free(server);
    close(listen_fd);
  }
}
END_TEST

Suite *suite_wire(void)
{
  Suite *suite = suite_create("wire");
  TCase *tests = tcase_create("formats");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, id_round_trip);
  tcase_add_test(tests, id_junk);
  tcase_add_test(tests, checkin_and_answer_round_trip);
  tcase_add_test(tests, header_is_authenticated);
  tcase_add_test(tests, fuzz_parsers);
  tcase_add_test(tests, fuzz_link);
  tcase_add_test(tests, fuzz_messages);
  suite_add_tcase(suite, tests);
  return suite;
}
