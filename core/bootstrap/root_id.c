/* One unique id at its root: who has checked in, what is wrong, what each rank is told. See root.h. */
#include "bootstrap/root_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "bootstrap/root.h"

/* How long a failed id is remembered with its reason, and a client may take to read its answer. */
#define AFTER_FAILURE_MS 10000
#define ANSWER_MS 10000
/* An id that nobody came with is kept for this many times NCCL_BOOTSTRAP_TIMEOUT: applications may do much between
 * making an id and using it. */
#define UNUSED_TIMEOUTS 4

static int64_t timeout_ms(void)
{
  return tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT) * 1000;
}

ncclResult_t tt_root_id_new(const struct tt_id *id, uint64_t dropped, struct tt_root_id **out)
{
  struct tt_root_id *entry;
  TT_TRY(TT_CALLOC(&entry, 1));
  entry->key = id->key;
  entry->nonce = id->nonce;
  entry->fixed = id->fixed;
  entry->state = TT_ROOT_OPEN;
  entry->dropped_before = dropped;
  entry->deadline = tt_deadline_in_ms(UNUSED_TIMEOUTS * timeout_ms());
  *out = entry;
  return ncclSuccess;
}

void tt_root_id_free(struct tt_root_id *id)
{
  tt_listener_close(&id->listener);
  free(id->slots);
  free(id);
}

static void answer(struct tt_root_client *client, const struct tt_answer *what)
{
  unsigned char bytes[TT_ANSWER_BYTES];
  size_t size = tt_wire_put_answer(bytes, what);
  client->answered = true;
  client->until = tt_deadline_in_ms(ANSWER_MS);
  /* Without memory the client is closed unanswered, which it reports. */
  if (client->link->state == TT_LINK_READY) (void)tt_link_send(client->link, TT_TAG_ANSWER, bytes, size);
}

static void refuse(struct tt_root_client *client, ncclResult_t result, const char *text)
{
  struct tt_answer what = {.result = result};
  snprintf(what.text, sizeof(what.text), "%s", text);
  answer(client, &what);
}

/* Gives everybody who waits, and for a while everybody who comes, the reason. */
__attribute__((format(printf, 3, 4))) static void fail(struct tt_root_id *id, ncclResult_t result, const char *format,
                                                       ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(id->failure.text, sizeof(id->failure.text), format, args);
  va_end(args);
  id->failure.result = result;
  id->state = TT_ROOT_FAILED;
  id->deadline = tt_deadline_in_ms(AFTER_FAILURE_MS);
  for (int r = 0; r < id->places; r++)
    if (id->slots[r].client) answer(id->slots[r].client, &id->failure);
}

/* Everybody is here: each rank learns its neighbours and the salt of the communicator's key. */
static void answer_all(struct tt_root_id *id)
{
  struct tt_answer what = {.result = ncclSuccess};
  if (tt_random(what.salt, sizeof(what.salt)) != ncclSuccess) {
    fail(id, ncclSystemError, "the bootstrap root got no random numbers from the system");
    return;
  }
  id->state = TT_ROOT_ANSWERED;
  tt_listener_close(&id->listener); /* the same fixed address may soon serve the next communicator */
  for (int r = 0; r < id->places; r++) {
    what.previous = id->slots[(r + id->places - 1) % id->places].endpoint;
    what.next = id->slots[(r + 1) % id->places].endpoint;
    answer(id->slots[r].client, &what);
  }
}

/* The first after TUTTI_INIT_WARN, then each after twice the time. */
static void set_warning(struct tt_root_id *id)
{
  int64_t seconds = tt_param_int(TT_PARAM_TUTTI_INIT_WARN);
  id->warn_at = seconds > 0 ? tt_deadline_in_ms(seconds * 1000 << TT_MIN(id->warned, 10)) : TT_DEADLINE_NEVER;
}

/* Which rank has a place. */
static int rank_at(const struct tt_root_id *id, int place)
{
  return (id->first + place) % id->nranks;
}

/* What the ranks of this id are, where they are not all. */
static const char *part(const struct tt_root_id *id)
{
  return id->places == id->nranks ? "" : " that share one of several unique ids";
}

static bool first_checkin(struct tt_root_id *id, const struct tt_checkin *checkin)
{
  id->slots = calloc((size_t)checkin->places, sizeof(*id->slots));
  if (!id->slots) return false;
  id->places = checkin->places;
  id->nranks = checkin->nranks;
  id->first = (checkin->rank - checkin->place + checkin->nranks) % checkin->nranks;
  id->list = checkin->list;
  id->deadline = tt_deadline_in_ms(timeout_ms());
  set_warning(id);
  return true;
}

/* Whether a rank was given the same arguments as those before it. */
static bool agrees(struct tt_root_id *id, const struct tt_checkin *checkin)
{
  if (checkin->nranks != id->nranks)
    fail(id, ncclInvalidUsage,
         "rank %d passed nranks %d, but a rank that came before it passed %d: all ranks must pass "
         "the same number",
         checkin->rank, checkin->nranks, id->nranks);
  else if (checkin->list != id->list)
    fail(id, ncclInvalidUsage,
         "rank %d passed other unique ids than a rank that came before it: all ranks must pass the same ids in the "
         "same order (ncclCommInitRankScalable)",
         checkin->rank);
  else if (checkin->places != id->places || rank_at(id, checkin->place) != checkin->rank)
    fail(id, ncclInternalError, "rank %d checked in at a place that is not its own", checkin->rank);
  return id->state == TT_ROOT_OPEN;
}

static void admit(struct tt_root_id *id, struct tt_root_client *client, const struct tt_checkin *checkin)
{
  char before[TT_ADDRESS_TEXT], now[TT_ADDRESS_TEXT];
  if (!agrees(id, checkin)) {
    answer(client, &id->failure);
    return;
  }
  struct tt_root_slot *slot = &id->slots[checkin->place];
  if (slot->client) {
    fail(id, ncclInvalidUsage, "rank %d came twice, from %s and from %s: each rank number must be used once",
         checkin->rank, tt_address_print(&slot->endpoint.addresses[0], before),
         tt_address_print(&checkin->endpoint.addresses[0], now));
    answer(client, &id->failure);
    return;
  }
  slot->client = client;
  slot->came = true;
  slot->endpoint = checkin->endpoint;
  client->until = TT_DEADLINE_NEVER;
  if (++id->came == id->places) answer_all(id);
}

static bool has_come(const struct tt_root_id *id, int rank)
{
  for (int p = 0; p < id->places; p++)
    if (rank_at(id, p) == rank) return id->slots[p].client != NULL;
  return false;
}

void tt_root_id_give_up(struct tt_root_id *id, int rank, const char *why)
{
  if (id->state != TT_ROOT_OPEN || has_come(id, rank)) return;
  id->lost = true;
  fail(id, ncclRemoteError, "rank %d cannot come: %s", rank, why);
}

/* Its own words, as far as they are text. */
static void take_give_up(struct tt_root_id *id, struct tt_root_client *client, const struct tt_message *message)
{
  char why[TT_GIVE_UP_BYTES + 1] = "";
  size_t n = TT_MIN(message->bytes, sizeof(why) - 1);
  for (size_t c = 0; c < n; c++) why[c] = message->data[c] < ' ' ? ' ' : (char)message->data[c];
  client->answered = true; /* there is nothing that it waits for */
  client->until = tt_deadline_in_ms(ANSWER_MS);
  if (id) tt_root_id_give_up(id, client->link->hello.rank, why);
}

void tt_root_id_checkin(struct tt_root_id *id, struct tt_root_client *client, const struct tt_message *message)
{
  struct tt_checkin checkin;
  if (message->tag == TT_TAG_GIVE_UP) {
    take_give_up(id, client, message);
    return;
  }
  if (message->tag != TT_TAG_CHECKIN || !tt_wire_get_checkin(message->data, message->bytes, &checkin)) {
    refuse(client, ncclInternalError, "the bootstrap root did not understand the check-in");
    return;
  }
  if (id && id->state == TT_ROOT_ANSWERED && checkin.list != id->list) {
    char text[320];
    snprintf(
        text, sizeof(text),
        "rank %d passed other unique ids than the ranks that came before it, or this unique id was used before: all "
        "ranks must pass the same new ids in the same order (ncclCommInitRankScalable)",
        checkin.rank);
    refuse(client, ncclInvalidUsage, text);
    return;
  }
  if (!id || id->state == TT_ROOT_ANSWERED) {
    refuse(client, ncclInvalidUsage,
           "this unique id was used before: every communicator needs an id of its own from "
           "ncclGetUniqueId, and an id whose time ran out cannot be used either");
    return;
  }
  client->id = id;
  client->place = checkin.place;
  id->waiting++;
  if (id->state == TT_ROOT_FAILED && checkin.place < id->places) id->slots[checkin.place].came = true;
  if (id->state == TT_ROOT_FAILED)
    answer(client, &id->failure);
  else if (id->places == 0 && !first_checkin(id, &checkin))
    refuse(client, ncclSystemError, "the bootstrap root has no memory for so many ranks");
  else
    admit(id, client, &checkin);
}

void tt_root_id_left(struct tt_root_id *id, struct tt_root_client *client)
{
  id->waiting--;
  client->id = NULL;
  if (client->place < id->places && id->slots[client->place].client == client) {
    char text[TT_ADDRESS_TEXT];
    id->slots[client->place].client = NULL;
    if (id->state != TT_ROOT_OPEN) return;
    id->lost = true;
    fail(id, ncclRemoteError,
         "rank %d (%s) left while the other ranks were still awaited (%d of %d had come): it ended, was killed, or "
         "gave up; its own log says why",
         rank_at(id, client->place), tt_address_print(&id->slots[client->place].endpoint.addresses[0], text), id->came,
         id->places);
  }
}

/* "3, 7-9, 12": the ranks that did not come, cut where the text is full. */
static void list_missing(const struct tt_root_id *id, char *text, size_t size)
{
  size_t at = 0;
  text[0] = 0;
  for (int r = 0; r < id->places; r++) {
    if (id->slots[r].client) continue;
    int last = r;
    while (last + 1 < id->places && !id->slots[last + 1].client && rank_at(id, last + 1) > 0) last++;
    if (at + 32 > size) {
      snprintf(text + at, size - at, ", ...");
      return;
    }
    at += (size_t)snprintf(text + at, size - at, last > r ? "%s%d-%d" : "%s%d", at ? ", " : "", rank_at(id, r),
                           rank_at(id, last));
    r = last;
  }
}

void tt_root_id_warn(struct tt_root_id *id)
{
  char missing[512];
  unsigned char bytes[TT_ANSWER_BYTES];
  struct tt_answer what = {.result = ncclInProgress};
  list_missing(id, missing, sizeof(missing));
  snprintf(what.text, sizeof(what.text),
           "%d of %d ranks%s have come so far; missing rank%s %s. Waiting until %lld s have passed "
           "(NCCL_BOOTSTRAP_TIMEOUT)",
           id->came, id->places, part(id), id->places - id->came == 1 ? "" : "s", missing,
           (long long)tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT));
  size_t size = tt_wire_put_answer(bytes, &what);
  for (int p = 0; p < id->places; p++) {
    const struct tt_root_client *client = id->slots[p].client;
    /* Without memory it is not told this time. */
    if (client && client->link->state == TT_LINK_READY) (void)tt_link_send(client->link, TT_TAG_ANSWER, bytes, size);
  }
  id->warned++;
  set_warning(id);
}

void tt_root_id_expire(struct tt_root_id *id, uint64_t dropped)
{
  if (id->state != TT_ROOT_OPEN || id->places == 0) return;
  char missing[512], clients[160] = "";
  list_missing(id, missing, sizeof(missing));
  uint64_t count = dropped - id->dropped_before;
  if (count)
    snprintf(
        clients, sizeof(clients),
        "; %llu connections were dropped because they did not complete the handshake (no or a wrong proof, silent, "
        "or another program)",
        (unsigned long long)count);
  fail(id, ncclRemoteError, "%d of %d ranks%s did not come within %lld s (NCCL_BOOTSTRAP_TIMEOUT): missing rank%s %s%s",
       id->places - id->came, id->places, part(id), (long long)tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT),
       id->places - id->came == 1 ? "" : "s", missing, clients);
}

void tt_root_id_short(struct tt_root_id *id)
{
  char missing[512], hint[100];
  list_missing(id, missing, sizeof(missing));
  fail(id, ncclSystemError,
       "the process of the root has no descriptors left for connections%s: %d of %d ranks%s have come; missing rank%s "
       "%s",
       tt_host_file_hint(EMFILE, hint, sizeof(hint)), id->came, id->places, part(id),
       id->places - id->came == 1 ? "" : "s", missing);
}

bool tt_root_id_expects(const struct tt_root_id *id)
{
  if (id->state != TT_ROOT_FAILED || !id->lost) return false;
  for (int p = 0; p < id->places; p++)
    if (!id->slots[p].came) return true;
  return false;
}

bool tt_root_id_finished(const struct tt_root_id *id)
{
  if (id->waiting > 0) return false;
  if (id->state == TT_ROOT_ANSWERED) return id->holders == 0;
  return tt_deadline_passed(id->deadline);
}
