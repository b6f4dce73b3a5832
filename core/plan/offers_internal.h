/* What the files of captured messages share; see offers.h. */
#ifndef TT_PLAN_OFFERS_INTERNAL_H
#define TT_PLAN_OFFERS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include "plan/offers.h"
#include "transport/user_range.h"

/* A note: kind, number of the message between the two ranks, then what belongs to the kind. */
enum tt_offer_kind {
  /* To the sender: */
  TT_OFFER_BUFFER,   /* where the receiver's output lies */
  TT_OFFER_WITHDRAW, /* there is no offer, or not any more */
  /* To the receiver: */
  TT_OFFER_ROUND,   /* the offer is good; the rank whose number is on its way round */
  TT_OFFER_TAKEN,   /* it is in place */
  TT_OFFER_DECLINED /* it is copied: text */
};
#define TT_OFFER_HEAD 9
#define TT_OFFER_BYTES (TT_OFFER_HEAD + 9 + TT_USER_RANGE_BYTES)

struct tt_offer_note {
  struct tt_offer_note *next;
  int rank;
  enum tt_offer_kind kind;
  uint64_t number;
  size_t bytes; /* of what follows the head */
  unsigned char data[];
};

struct tt_offers {
  struct ncclComm *comm;
  pthread_mutex_t lock; /* of the notes */
  pthread_cond_t changed;
  struct tt_offer_note *notes;
  uint64_t arrived;     /* so far */
  uint64_t patience_ms; /* TUTTI_CAPTURE_WAIT */
  _Atomic int nnotes;
  /* By rank: messages to it, and from it, with lower numbers are settled. */
  _Atomic uint64_t *sent, *received;
  /* By rank: one more than the last message to it for which this rank did not wait any longer; 0: it has come to that
   * message since. Under the lock. */
  uint64_t *given_up;
  /* By rank: waits in vain, one after another, for its offers, and for its answers. */
  unsigned char *no_offers, *no_answers;
  /* Of the group; of the thread that runs it. */
  const struct tt_task *tasks; /* NULL: there is nothing to agree on */
  uint64_t graph;
  struct tt_exchange exchange;
  bool possible; /* the exchange is one */
  bool agreed;
  struct tt_user_range output; /* of this rank */
};

/* offers_mail.c */
ncclResult_t tt_offers_mail_open(struct tt_offers *offers);
void tt_offers_mail_close(struct tt_offers *offers);
ncclResult_t tt_offers_tell(struct tt_offers *offers, int rank, enum tt_offer_kind kind, uint64_t number,
                            const void *data, size_t bytes);
/* The oldest note of a rank about a message of one of the kinds (bits), the caller's to free; NULL: none. */
struct tt_offer_note *tt_offers_take(struct tt_offers *offers, int rank, uint64_t number, uint32_t kinds);
/* Whether there is one. */
bool tt_offers_has(struct tt_offers *offers, int rank, uint64_t number, uint32_t kinds);
/* A rank has not come to a message to it, unless it has just now; whether there are such ranks. */
void tt_offers_give_up(struct tt_offers *offers, int rank, uint64_t number);
bool tt_offers_gave_up(struct tt_offers *offers);
/* How many have come so far; and a wait until there are others, or a little while is over. */
uint64_t tt_offers_arrived(struct tt_offers *offers);
void tt_offers_wait(struct tt_offers *offers, uint64_t arrived);
/* Notes about messages that are settled: offers are declined. After a number was raised. */
void tt_offers_sweep(struct tt_offers *offers);

/* offers_deal.c: agrees on the group's exchange. */
ncclResult_t tt_offers_deal(struct tt_offers *offers);

#endif
