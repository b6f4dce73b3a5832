/* Notes about captured messages: they are kept until somebody asks for them, and answered where nobody will. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/check.h"
#include "plan/offers_internal.h"

#define TAG (TT_TAG_USER + 0x3200u)
#define TAG_ALL_BITS 0xffffffffu
/* How often a wait looks for failures and at the time. */
#define LOOK_NS 20000000l

static const char declined[] = "it is not captured there, or has waited in vain, or is among others in its group";

static bool to_sender(enum tt_offer_kind kind)
{
  return kind == TT_OFFER_BUFFER || kind == TT_OFFER_WITHDRAW;
}

static bool is_settled(const struct tt_offers *offers, const struct tt_offer_note *note)
{
  return note->number < atomic_load(&(to_sender(note->kind) ? offers->sent : offers->received)[note->rank]);
}

static void put_head(unsigned char *message, enum tt_offer_kind kind, uint64_t number)
{
  struct tt_wire_writer w = {.data = message, .size = TT_OFFER_HEAD};
  tt_wire_put_int(&w, kind, 1);
  tt_wire_put_int(&w, number, 8);
}

static void decline(struct tt_offers *offers, int rank, uint64_t number)
{
  unsigned char message[TT_OFFER_HEAD + TT_USER_WHY] = {0};
  put_head(message, TT_OFFER_DECLINED, number);
  memcpy(message + TT_OFFER_HEAD, declined, sizeof declined);
  tt_bootstrap_notify(offers->comm->bootstrap, rank, TAG, message, sizeof message);
}

static struct tt_offer_note **find(struct tt_offers *offers, int rank, uint64_t number, uint32_t kinds)
{
  struct tt_offer_note **place = &offers->notes;
  while (*place != NULL &&
         ((*place)->rank != rank || (*place)->number != number || (kinds & 1u << (*place)->kind) == 0))
    place = &(*place)->next;
  return place;
}

static struct tt_offer_note *take_out(struct tt_offers *offers, struct tt_offer_note **place)
{
  struct tt_offer_note *note = *place;
  if (note == NULL) return NULL;
  *place = note->next;
  note->next = NULL;
  atomic_fetch_sub(&offers->nnotes, 1);
  return note;
}

static void append(struct tt_offers *offers, struct tt_offer_note *note)
{
  struct tt_offer_note **place = &offers->notes;
  while (*place != NULL) place = &(*place)->next;
  *place = note;
  atomic_fetch_add(&offers->nnotes, 1);
}

static struct tt_offer_note *take_settled(struct tt_offers *offers)
{
  struct tt_offer_note *taken = NULL;
  pthread_mutex_lock(&offers->lock);
  for (struct tt_offer_note **place = &offers->notes; *place != NULL;) {
    if (!is_settled(offers, *place)) {
      place = &(*place)->next;
      continue;
    }
    struct tt_offer_note *note = take_out(offers, place);
    note->next = taken;
    taken = note;
  }
  pthread_mutex_unlock(&offers->lock);
  return taken;
}

void tt_offers_sweep(struct tt_offers *offers)
{
  if (atomic_load(&offers->nnotes) == 0) return;
  for (struct tt_offer_note *note = take_settled(offers), *next; note != NULL; note = next) {
    next = note->next;
    if (note->kind == TT_OFFER_BUFFER) decline(offers, note->rank, note->number);
    free(note);
  }
}

/* An offer that nobody has taken is gone with its withdrawal; who has taken it answers it. */
static bool withdraw(struct tt_offers *offers, const struct tt_offer_note *note)
{
  struct tt_offer_note *offer = take_out(offers, find(offers, note->rank, note->number, 1u << TT_OFFER_BUFFER));
  free(offer);
  return offer != NULL;
}

/* On the bootstrap's service thread. Either this sees that the message is settled, or who settles it sees the note. */
static void on_message(void *context, int peer, uint32_t tag, const void *data, size_t bytes)
{
  struct tt_offers *offers = context;
  struct tt_wire_reader r = {.data = data, .size = bytes};
  uint64_t kind = tt_wire_get_int(&r, 1), number = tt_wire_get_int(&r, 8);
  (void)tag;
  if (r.bad || kind > TT_OFFER_DECLINED || bytes > TT_OFFER_BYTES) return;
  struct tt_offer_note *note = calloc(1, sizeof *note + bytes - r.at);
  if (note == NULL) return; /* the rank that waits for it says so */
  *note =
      (struct tt_offer_note){.rank = peer, .kind = (enum tt_offer_kind)kind, .number = number, .bytes = bytes - r.at};
  memcpy(note->data, r.data + r.at, note->bytes);
  pthread_mutex_lock(&offers->lock);
  bool answer = kind == TT_OFFER_WITHDRAW && withdraw(offers, note);
  bool settled = is_settled(offers, note);
  append(offers, note);
  offers->arrived++;
  if (to_sender(note->kind) && number + 1 >= offers->given_up[peer]) offers->given_up[peer] = 0;
  pthread_cond_broadcast(&offers->changed);
  pthread_mutex_unlock(&offers->lock);
  if (answer) decline(offers, peer, number);
  if (settled) tt_offers_sweep(offers);
}

ncclResult_t tt_offers_tell(struct tt_offers *offers, int rank, enum tt_offer_kind kind, uint64_t number,
                            const void *data, size_t bytes)
{
  unsigned char *message;
  TT_TRY(TT_CALLOC(&message, TT_OFFER_HEAD + bytes));
  put_head(message, kind, number);
  if (bytes > 0) memcpy(message + TT_OFFER_HEAD, data, bytes);
  ncclResult_t result = tt_bootstrap_send(offers->comm->bootstrap, rank, TAG, message, TT_OFFER_HEAD + bytes);
  free(message);
  return result;
}

struct tt_offer_note *tt_offers_take(struct tt_offers *offers, int rank, uint64_t number, uint32_t kinds)
{
  pthread_mutex_lock(&offers->lock);
  struct tt_offer_note *note = take_out(offers, find(offers, rank, number, kinds));
  pthread_mutex_unlock(&offers->lock);
  return note;
}

bool tt_offers_has(struct tt_offers *offers, int rank, uint64_t number, uint32_t kinds)
{
  pthread_mutex_lock(&offers->lock);
  bool has = *find(offers, rank, number, kinds) != NULL;
  pthread_mutex_unlock(&offers->lock);
  return has;
}

void tt_offers_give_up(struct tt_offers *offers, int rank, uint64_t number)
{
  pthread_mutex_lock(&offers->lock);
  bool here = *find(offers, rank, number, 1u << TT_OFFER_BUFFER | 1u << TT_OFFER_WITHDRAW) != NULL;
  if (!here) offers->given_up[rank] = number + 1;
  pthread_mutex_unlock(&offers->lock);
}

bool tt_offers_gave_up(struct tt_offers *offers)
{
  bool any = false;
  pthread_mutex_lock(&offers->lock);
  for (int r = 0; r < offers->comm->nranks; r++) any = any || offers->given_up[r] != 0;
  pthread_mutex_unlock(&offers->lock);
  return any;
}

uint64_t tt_offers_arrived(struct tt_offers *offers)
{
  pthread_mutex_lock(&offers->lock);
  uint64_t arrived = offers->arrived;
  pthread_mutex_unlock(&offers->lock);
  return arrived;
}

void tt_offers_wait(struct tt_offers *offers, uint64_t arrived)
{
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += LOOK_NS;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_mutex_lock(&offers->lock);
  while (offers->arrived == arrived && pthread_cond_timedwait(&offers->changed, &offers->lock, &until) == 0) continue;
  pthread_mutex_unlock(&offers->lock);
}

/* ---- Life ---- */

ncclResult_t tt_offers_mail_open(struct tt_offers *offers)
{
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&offers->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  pthread_mutex_init(&offers->lock, NULL);
  return tt_bootstrap_set_handler(offers->comm->bootstrap, TAG, TAG_ALL_BITS, on_message, offers);
}

void tt_offers_mail_close(struct tt_offers *offers)
{
  tt_bootstrap_set_handler(offers->comm->bootstrap, TAG, TAG_ALL_BITS, NULL, NULL);
  for (struct tt_offer_note *note = offers->notes, *next; note != NULL; note = next) {
    next = note->next;
    free(note);
  }
  pthread_cond_destroy(&offers->changed);
  pthread_mutex_destroy(&offers->lock);
}
