/* Too few descriptors: how long that may last, and who is dropped for it. */
#include "ranks.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/check.h"
#include "bootstrap/link.h"
#include "bootstrap/listen.h"
#include "bootstrap/root.h"
#include "tests/common/scarce.h"

/* Five seconds, from the first attempt in vain to the first that succeeds. */
START_TEST(what_lasts)
{
  const uint64_t second = 1000000000u;
  struct tt_shortage shortage = {0};
  ck_assert(!tt_shortage_note(&shortage, false));
  ck_assert(!tt_shortage_lasts(&shortage));
  ck_assert(tt_shortage_note(&shortage, true));
  ck_assert_uint_ne(shortage.since_ns, 0);
  ck_assert(!tt_shortage_lasts(&shortage));
  shortage.since_ns = tt_timer_ns() - 4 * second;
  ck_assert(!tt_shortage_lasts(&shortage));
  shortage.since_ns = tt_timer_ns() - 6 * second;
  ck_assert(tt_shortage_note(&shortage, true));
  ck_assert(tt_shortage_lasts(&shortage));
  ck_assert(!tt_shortage_note(&shortage, false));
  ck_assert(!tt_shortage_lasts(&shortage));
  ck_assert(tt_shortage_note(&shortage, true));
  ck_assert(!tt_shortage_lasts(&shortage));
}
END_TEST

/* A client that says nothing gets the last descriptor, and keeps it: that there is no second one is no reason to drop
 * it. Then another one waits, so it has to go. The error in words, NULL if all is well. */
static const char *last_descriptor(const union tt_address *address)
{
  int fds[2];
  const char *trouble = NULL;
  for (int i = 0; i < 2; i++) fds[i] = socket(address->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct pollfd slow = {.fd = fds[0], .events = POLLIN};
  scarce_begin(1);
  if (connect(fds[0], &address->sa, tt_address_bytes(address)) != 0) trouble = "the first cannot connect";
  tt_deadline deadline = tt_deadline_in_ms(20000);
  while (!trouble && scarce_left() > 0 && !tt_deadline_passed(deadline)) usleep(1000);
  if (!trouble && scarce_left() > 0) trouble = "nobody accepted the client";
  if (!trouble && poll(&slow, 1, 500) != 0) trouble = "the client was dropped";
  if (!trouble && connect(fds[1], &address->sa, tt_address_bytes(address)) != 0) trouble = "the second cannot connect";
  if (!trouble && poll(&slow, 1, 20000) != 1) trouble = "the client that says nothing was not dropped";
  scarce_end();
  for (int i = 0; i < 2; i++) close(fds[i]);
  return trouble;
}

START_TEST(last_descriptor_of_a_root)
{
  environment(NULL);
  ncclUniqueId id;
  struct tt_id parsed;
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  ck_assert_int_eq(tt_wire_get_id(&id, &parsed), ncclSuccess);
  const char *trouble = last_descriptor(&parsed.root.addresses[0]);
  ck_assert_msg(!trouble, "%s", trouble);
  struct rank ranks[2] = {0};
  ranks_run(&id, 2, NULL, NULL, ranks);
  for (int r = 0; r < 2; r++) ck_assert_msg(ranks[r].result == ncclSuccess, "%s", ranks[r].error);
}
END_TEST

/* Drives the link for at most 60 s: its first message, or NULL. */
static struct tt_message *drive(struct tt_link *link, const struct tt_checkin *checkin)
{
  unsigned char bytes[TT_CHECKIN_BYTES];
  struct tt_message *message = NULL;
  bool sent = false;
  tt_wire_put_checkin(bytes, checkin);
  for (tt_deadline end = tt_deadline_in_ms(60000); !message && !tt_deadline_passed(end);) {
    struct pollfd set = {.fd = link->fd, .events = tt_link_events(link)};
    poll(&set, 1, tt_deadline_poll_ms(TT_MIN(end, link->timer), 20));
    tt_link_progress(link);
    if (link->state == TT_LINK_CLOSED) break;
    if (link->state != TT_LINK_READY) continue;
    if (!sent) ck_assert_int_eq(tt_link_send(link, TT_TAG_CHECKIN, bytes, sizeof(bytes)), ncclSuccess);
    sent = true;
    message = tt_link_receive(link);
  }
  return message;
}

/* The last descriptor is the client's, so that the root cannot even accept it, nor hear to which id it comes. */
START_TEST(root_says_so_to_the_first)
{
  environment((const char *const[]){"NCCL_BOOTSTRAP_TIMEOUT=300", NULL});
  ncclUniqueId id;
  struct tt_id parsed;
  struct tt_link *link;
  struct tt_answer answer;
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  ck_assert_int_eq(tt_wire_get_id(&id, &parsed), ncclSuccess);
  struct tt_link_patience patience = {.deadline = tt_deadline_in_ms(60000), .forever = true};
  struct tt_checkin checkin = {.nranks = 2, .places = 2, .endpoint = parsed.root};
  scarce_begin(1);
  ck_assert_int_eq(tt_link_dial(&parsed.root, NULL, &parsed.key, TT_PURPOSE_CHECKIN, parsed.nonce, 0, &patience, &link),
                   ncclSuccess);
  struct tt_message *message = drive(link, &checkin);
  scarce_end();
  ck_assert_msg(message != NULL, "no answer: %s", link->why);
  ck_assert(tt_wire_get_answer(message->data, message->bytes, &answer));
  ck_assert_int_eq(answer.result, ncclSystemError);
  const char *const parts[] = {"the process of the root has no descriptors left", "ulimit -n", "missing rank 1"};
  for (size_t i = 0; i < TT_COUNT(parts); i++)
    ck_assert_msg(strstr(answer.text, parts[i]), "\"%s\" is not in: %s", parts[i], answer.text);
  free(message);
  tt_link_free(link);
}
END_TEST

static ncclResult_t body_last_descriptor(struct rank *me)
{
  TT_TRY(tt_bootstrap_barrier(me->b));
  const char *trouble = me->rank == 0 ? last_descriptor(tt_bootstrap_address(me->b)) : NULL;
  TT_TRY(tt_bootstrap_barrier(me->b));
  return trouble ? TT_FAIL(ncclInternalError, "%s", trouble) : ncclSuccess;
}

START_TEST(last_descriptor_of_a_rank)
{
  environment(NULL);
  ranks_succeed(2, body_last_descriptor, NULL);
}
END_TEST

/* A client comes when no descriptor is left. */
static ncclResult_t receive_in_shortage(struct rank *me)
{
  void *data;
  size_t bytes;
  const union tt_address *address = tt_bootstrap_address(me->b);
  ncclResult_t result = ncclSuccess;
  int fd = socket(address->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  scarce_begin(0);
  if (connect(fd, &address->sa, tt_address_bytes(address)) == 0)
    result = tt_bootstrap_recv(me->b, 1, TT_TAG_USER, &data, &bytes, tt_deadline_in_ms(15000));
  scarce_end();
  close(fd);
  return result;
}

/* A rank that waits for a message, and cannot take the connections of others, says so long before its time is over. The
 * other rank's thread may close something meanwhile, and so leave a descriptor: then it is tried again. */
static ncclResult_t body_short(struct rank *me)
{
  TT_TRY(tt_bootstrap_barrier(me->b));
  ncclResult_t result = me->rank == 0 ? ncclRemoteError : ncclSuccess;
  for (int attempt = 0; attempt < 5 && result == ncclRemoteError; attempt++) {
    usleep(attempt * 200000);
    result = receive_in_shortage(me);
  }
  ncclResult_t barrier = tt_bootstrap_barrier(me->b);
  return result ? result : barrier;
}

START_TEST(rank_says_so)
{
  environment(NULL);
  ncclUniqueId id;
  struct rank ranks[2] = {0};
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  ranks_run(&id, 2, body_short, NULL, ranks);
  ck_assert_msg(ranks[0].result == ncclSystemError, "%d: %s", (int)ranks[0].result, ranks[0].error);
  const char *const parts[] = {"rank 0 waits for a message of rank 1", "no descriptors are left", "ulimit -n"};
  for (size_t i = 0; i < TT_COUNT(parts); i++)
    ck_assert_msg(strstr(ranks[0].error, parts[i]), "\"%s\" is not in: %s", parts[i], ranks[0].error);
}
END_TEST

Suite *suite_shortage(void)
{
  Suite *suite = suite_create("shortage");
  TCase *tests = tcase_create("shortage");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, what_lasts);
  tcase_add_test(tests, last_descriptor_of_a_root);
  tcase_add_test(tests, root_says_so_to_the_first);
  tcase_add_test(tests, last_descriptor_of_a_rank);
  tcase_add_test(tests, rank_says_so);
  suite_add_tcase(suite, tests);
  return suite;
}
