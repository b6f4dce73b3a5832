/* Agreeing on what a captured group sends and receives in place; see offers.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "base/timer.h"
#include "plan/offers_internal.h"
#include "transport/user_buffers.h"

/* A receiver waits so many times as long for the sender to come to a message as a sender waits for an offer. */
#define ANSWER_TIMES 5

enum answer {
  OPEN,
  ROUND, /* the offer is good, and who is in a ring is being found out */
  TAKEN,
  DECLINED,
};

struct deal {
  struct tt_offers *offers;
  int to, from;
  bool both;
  uint64_t send_number, recv_number;
  enum answer send;              /* what this rank has told `to` */
  enum answer recv;              /* what `from` has told */
  bool withdrawn;                /* `from` knows, or will know, that the offer is none any more */
  bool late;                     /* no offer has come in time */
  struct tt_user_import *import; /* of the buffer of `to` */
  char why[TT_USER_WHY];         /* not in place; "": not known yet */
  uint64_t start;
  tt_deadline deadline;
  int warned;
};

static ncclResult_t tell_sender(const struct deal *deal, enum tt_offer_kind kind, const void *data, size_t bytes)
{
  return tt_offers_tell(deal->offers, deal->from, kind, deal->recv_number, data, bytes);
}

static ncclResult_t tell_receiver(const struct deal *deal, enum tt_offer_kind kind, const void *data, size_t bytes)
{
  return tt_offers_tell(deal->offers, deal->to, kind, deal->send_number, data, bytes);
}

static ncclResult_t malformed(int rank)
{
  return TT_FAIL(ncclRemoteError, "rank %d sent a malformed message about a captured send or receive", rank);
}

static void set_why(struct deal *deal, const char *why)
{
  if (deal->why[0] == '\0') snprintf(deal->why, sizeof deal->why, "%.*s", TT_USER_WHY - 1, why);
}

/* ---- The receiver ---- */

static ncclResult_t withdraw(struct deal *deal)
{
  if (deal->withdrawn || deal->from < 0 || deal->recv != OPEN) return ncclSuccess;
  deal->withdrawn = true;
  return tell_sender(deal, TT_OFFER_WITHDRAW, NULL, 0);
}

/* Nothing is shown before that. *offered false: others cannot map the buffer. */
static ncclResult_t offer(struct deal *deal, bool *offered)
{
  struct tt_offers *offers = deal->offers;
  struct tt_user_buffers *users = offers->comm->env->users;
  const struct tt_exchange *exchange = &offers->exchange;
  unsigned char *message;
  TT_TRY(tt_user_range_describe(users, exchange->recv->output, exchange->bytes, &offers->output));
  tt_user_range_export(users, exchange->recv->output, &offers->output);
  *offered = offers->output.why[0] == '\0';
  if (!*offered) {
    set_why(deal, offers->output.why);
    return withdraw(deal);
  }
  TT_TRY(TT_CALLOC(&message, TT_OFFER_BYTES));
  struct tt_wire_writer w = {.data = message, .size = TT_OFFER_BYTES};
  tt_wire_put_int(&w, deal->both, 1);
  tt_wire_put_int(&w, exchange->bytes, 8);
  tt_user_range_put(&w, &offers->output);
  ncclResult_t result = tell_sender(deal, TT_OFFER_BUFFER, message, w.at);
  free(message);
  return result;
}

/* ---- The sender ---- */

/* For good, also what is still to come. */
static ncclResult_t decline(struct deal *deal, const char *why, bool told)
{
  struct tt_offers *offers = deal->offers;
  set_why(deal, why);
  deal->send = DECLINED;
  if (!told) TT_TRY(tell_receiver(deal, TT_OFFER_DECLINED, deal->why, TT_USER_WHY));
  atomic_store(&offers->sent[deal->to], deal->send_number + 1);
  tt_offers_sweep(offers);
  return withdraw(deal);
}

static ncclResult_t take(struct deal *deal)
{
  deal->send = TAKEN;
  return tell_receiver(deal, TT_OFFER_TAKEN, NULL, 0);
}

static ncclResult_t pass_round(struct deal *deal, int rank)
{
  unsigned char number[4];
  struct tt_wire_writer w = {.data = number, .size = sizeof number};
  tt_wire_put_int(&w, (uint64_t)rank, 4);
  deal->send = ROUND;
  return tell_receiver(deal, TT_OFFER_ROUND, number, sizeof number);
}

/* Maps what was offered. `why` is "" if it could. */
static void map(struct deal *deal, const struct tt_user_range *range, char why[TT_USER_WHY])
{
  struct tt_offers *offers = deal->offers;
  tt_log_hush(true);
  ncclResult_t mapped =
      tt_user_range_map(offers->comm->env->users, deal->to, range, &deal->import, &offers->exchange.target);
  tt_log_hush(false);
  if (mapped == ncclSuccess) return;
  deal->import = NULL;
  snprintf(why, TT_USER_WHY, "%.*s", TT_USER_WHY - 1, tt_log_thread_error());
  if (why[0] == '\0') snprintf(why, TT_USER_WHY, "error %d", (int)mapped);
}

static ncclResult_t consider(struct deal *deal, const struct tt_offer_note *note)
{
  struct tt_offers *offers = deal->offers;
  struct tt_wire_reader r = {.data = note->data, .size = note->bytes};
  struct tt_user_range range = {0};
  char why[TT_USER_WHY] = "";
  bool both = tt_wire_get_int(&r, 1) != 0;
  uint64_t bytes = tt_wire_get_int(&r, 8);
  tt_user_range_get(&r, &range);
  if (r.bad || r.at != note->bytes || range.bytes != bytes) {
    tt_user_range_free(&range);
    return malformed(note->rank);
  }
  if (bytes != offers->exchange.bytes)
    snprintf(why, sizeof why, "it is of another size there");
  else if (both != deal->both)
    snprintf(why, sizeof why, "one of its ranks sends and receives in the group, and the other does not");
  else
    map(deal, &range, why);
  tt_user_range_free(&range);
  offers->no_offers[deal->to] = 0;
  if (why[0] != '\0') return decline(deal, why, false);
  return deal->both ? pass_round(deal, offers->comm->rank) : take(deal);
}

/* ---- Both ---- */

/* The ranks of the ring have offers all, or this rank's partner declines. */
static ncclResult_t hear(struct deal *deal, const struct tt_offer_note *note)
{
  struct tt_wire_reader r = {.data = note->data, .size = note->bytes};
  char why[TT_USER_WHY] = "";
  if (note->kind == TT_OFFER_TAKEN) {
    deal->recv = TAKEN;
    if (!deal->both || deal->send == TAKEN) return ncclSuccess; /* it has gone round, or ends here */
    if (deal->send == ROUND) return take(deal);
    return TT_FAIL(ncclInternalError, "rank %d: rank %d has taken an offer of a ring that is none",
                   deal->offers->comm->rank, deal->from);
  }
  if (note->kind == TT_OFFER_DECLINED) {
    tt_wire_get_text(&r, why, sizeof why);
    if (r.bad) return malformed(note->rank);
    deal->recv = DECLINED;
    set_why(deal, why);
    bool open = deal->send == OPEN || deal->send == ROUND;
    return deal->both && open ? decline(deal, why, deal->send == OPEN) : ncclSuccess;
  }
  int rank = (int)tt_wire_get_int(&r, 4), own = deal->offers->comm->rank;
  if (r.bad) return malformed(note->rank);
  deal->recv = ROUND;
  if (deal->send != ROUND) return ncclSuccess;
  if (rank == own) return take(deal);
  return rank < own ? pass_round(deal, rank) : ncclSuccess;
}

/* Numbers on their way round stay where they are until this rank has an offer. */
static uint32_t heard_kinds(const struct deal *deal)
{
  uint32_t ends = 1u << TT_OFFER_TAKEN | 1u << TT_OFFER_DECLINED;
  return deal->both && deal->send == OPEN ? ends : ends | 1u << TT_OFFER_ROUND;
}

/* One note of those that have come. */
static ncclResult_t next(struct deal *deal, bool *any)
{
  struct tt_offers *offers = deal->offers;
  struct tt_offer_note *note = NULL;
  ncclResult_t result = ncclSuccess;
  bool withdrawn = false, offered = false;
  if (deal->to >= 0 && deal->send == OPEN) {
    note = tt_offers_take(offers, deal->to, deal->send_number, 1u << TT_OFFER_WITHDRAW);
    withdrawn = note != NULL;
    if (note == NULL) note = tt_offers_take(offers, deal->to, deal->send_number, 1u << TT_OFFER_BUFFER);
    offered = note != NULL && !withdrawn;
  }
  if (note == NULL && deal->from >= 0) note = tt_offers_take(offers, deal->from, deal->recv_number, heard_kinds(deal));
  *any = note != NULL;
  if (withdrawn)
    result = decline(deal, "the receiver has withdrawn it, or cannot have it in place", true);
  else if (offered)
    result = consider(deal, note);
  else if (note != NULL)
    result = hear(deal, note);
  free(note);
  return result;
}

static bool is_over(const struct deal *deal)
{
  bool sent = deal->to < 0 || deal->send == TAKEN || deal->send == DECLINED;
  return sent && (deal->from < 0 || deal->recv == TAKEN || deal->recv == DECLINED);
}

/* ---- Waiting ---- */

static uint64_t patience_ns(const struct tt_offers *offers, unsigned char in_vain)
{
  return (offers->patience_ms >> TT_MIN(in_vain, 10)) * 1000000;
}

static void count(unsigned char *in_vain)
{
  if (*in_vain < UINT8_MAX) ++*in_vain;
}

static ncclResult_t lose_patience(struct deal *deal)
{
  struct tt_offers *offers = deal->offers;
  uint64_t waited = tt_timer_ns() - deal->start;
  if (deal->to >= 0 && deal->send == OPEN && waited > patience_ns(offers, offers->no_offers[deal->to])) {
    count(&offers->no_offers[deal->to]);
    tt_offers_give_up(offers, deal->to, deal->send_number);
    TT_TRY(decline(deal, "the receiver did not come to it in time", true));
  }
  if (deal->from < 0 || deal->recv != OPEN || deal->withdrawn ||
      waited <= ANSWER_TIMES * patience_ns(offers, offers->no_answers[deal->from]))
    return ncclSuccess;
  if (tt_offers_has(offers, deal->from, deal->recv_number, 1u << TT_OFFER_ROUND)) return ncclSuccess;
  count(&offers->no_answers[deal->from]);
  return withdraw(deal);
}

/* Who has not come yet, or has not heard from its own partners. */
static int awaited(const struct deal *deal)
{
  return deal->to >= 0 && deal->send == OPEN ? deal->to : deal->from;
}

static void warn_if_due(struct deal *deal)
{
  const struct ncclComm *comm = deal->offers->comm;
  uint64_t seconds = (uint64_t)tt_param_int(TT_PARAM_TUTTI_INIT_WARN) << TT_MIN(deal->warned, 10);
  uint64_t waited = tt_timer_ns() - deal->start;
  if (seconds == 0 || waited < seconds * 1000000000u) return;
  deal->warned++;
  TT_WARN("rank %d captures messages and has waited %llu s for rank %d to come to its end of one, to use buffers in "
          "place: one thread with several ranks must call both in one group; NCCL_GRAPH_REGISTER=0 does without",
          comm->rank, (unsigned long long)(waited / 1000000000u), awaited(deal));
}

/* Whether it is in vain. `arrived`: as many notes have been looked at; that of a rank that has left may be another. */
static ncclResult_t look(const struct deal *deal, uint64_t arrived)
{
  struct ncclComm *comm = deal->offers->comm;
  int peer = awaited(deal);
  if (atomic_load(&comm->abort))
    return TT_FAIL(ncclInternalError, "rank %d: aborted while it captured messages", comm->rank);
  if (atomic_load(&comm->revoked))
    return TT_FAIL(ncclInvalidUsage, "rank %d: the communicator was revoked while it captured messages", comm->rank);
  TT_TRY(tt_health_check(comm->health, true));
  if (tt_bootstrap_left(comm->bootstrap, peer) && tt_offers_arrived(deal->offers) == arrived)
    return TT_FAIL(ncclRemoteError, "rank %d captures a message and waits for rank %d, which has left the communicator",
                   comm->rank, peer);
  if (!tt_deadline_passed(deal->deadline)) return ncclSuccess;
  return TT_FAIL(ncclRemoteError,
                 "rank %d captures a message and waited in vain for rank %d to come to it; NCCL_BOOTSTRAP_TIMEOUT is "
                 "%lld s, and NCCL_GRAPH_REGISTER=0 does without",
                 comm->rank, peer, (long long)tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT));
}

/* ---- A deal ---- */

static ncclResult_t talk(struct deal *deal)
{
  bool offered = true;
  if (deal->from >= 0) TT_TRY(offer(deal, &offered));
  if (!offered) deal->recv = DECLINED; /* which nobody says */
  if (!offered && deal->to >= 0) TT_TRY(decline(deal, deal->why, true));
  while (!is_over(deal)) {
    uint64_t arrived = tt_offers_arrived(deal->offers);
    bool any;
    TT_TRY(next(deal, &any));
    if (any) continue;
    TT_TRY(lose_patience(deal));
    if (is_over(deal)) break;
    warn_if_due(deal);
    TT_TRY(look(deal, arrived));
    tt_offers_wait(deal->offers, arrived);
  }
  if (deal->from >= 0 && (deal->recv == TAKEN || !deal->withdrawn)) deal->offers->no_answers[deal->from] = 0;
  return ncclSuccess;
}

static void say(const struct deal *deal)
{
  const struct ncclComm *comm = deal->offers->comm;
  const char *what = deal->both ? "a send and a receive" : deal->to >= 0 ? "a send" : "a receive";
  if (deal->offers->agreed)
    TT_INFO(TT_REG, "rank %d: %s of %zu bytes captured, and in place", comm->rank, what, deal->offers->exchange.bytes);
  else
    TT_INFO(TT_REG, "rank %d: %s of %zu bytes captured, and copied through buffers, since %s", comm->rank, what,
            deal->offers->exchange.bytes, deal->why);
}

/* What the graph holds until its end. */
static ncclResult_t hold(struct deal *deal)
{
  struct tt_offers *offers = deal->offers;
  const struct tt_user_range none = {0}, *ranges[] = {&offers->output, &none};
  struct tt_user_import *import = deal->import;
  deal->import = NULL; /* whatever comes of the call */
  TT_TRY(tt_user_graph_hold(offers->comm->env->users, offers->tasks->stream, offers->graph, &import, import != NULL,
                            ranges));
  offers->agreed = true;
  return ncclSuccess;
}

ncclResult_t tt_offers_deal(struct tt_offers *offers)
{
  const struct ncclComm *comm = offers->comm;
  const struct tt_exchange *exchange = &offers->exchange;
  struct deal deal = {.offers = offers,
                      .to = exchange->to,
                      .from = exchange->from,
                      .both = exchange->to >= 0 && exchange->from >= 0,
                      .start = tt_timer_ns(),
                      .deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT) * 1000)};
  if (deal.to >= 0) deal.send_number = comm->sends[deal.to];
  if (deal.from >= 0) deal.recv_number = comm->recvs[deal.from];
  ncclResult_t result = talk(&deal);
  bool taken = (deal.to < 0 || deal.send == TAKEN) && (deal.from < 0 || deal.recv == TAKEN);
  if (result == ncclSuccess && taken) result = hold(&deal);
  if (result == ncclSuccess) say(&deal);
  tt_user_import_end(offers->comm->env->users, deal.import);
  return result;
}
