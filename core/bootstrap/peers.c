/* What a peer's connections and messages mean: ready, idle, gone for good, dead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "bootstrap/internal.h"

/* Gives the link what waited for one. */
static void send_waiting(struct tt_peer *p)
{
  while (p->waiting) {
    struct tt_message *message = p->waiting;
    if (tt_link_send(p->out->link, message->tag, message->data, message->bytes) != ncclSuccess) return;
    p->waiting = message->next;
    if (!p->waiting) p->waiting_tail = NULL;
    p->waiting_bytes -= message->bytes;
    free(message);
  }
}

void tt_peer_ready(struct tt_bootstrap *b, struct tt_service_link *l)
{
  struct tt_peer *p = &b->peers[l->peer];
  p->links++;
  p->absent = false;
  if (l->link->dialled) p->dialling = false;
  /* While an idle link closes, nothing may overtake what is on it in either direction. */
  if (!p->out && !p->closing) {
    p->out = l;
    send_waiting(p);
  }
  pthread_cond_broadcast(&b->changed);
}

/* Nobody answers where a peer listened that may have left. */
static void be_absent(struct tt_peer *p)
{
  p->absent = true;
  tt_mail_free(p->waiting);
  p->waiting = p->waiting_tail = NULL;
  p->waiting_bytes = 0;
}

/* After an idle link is gone: any other takes over, or a new one is dialled. */
static void closed_idle(struct tt_bootstrap *b, struct tt_service_link *l)
{
  struct tt_peer *p = &b->peers[l->peer];
  if (l->link->dialled) p->closing = false;
  if (p->closing) return;
  for (int i = 0; i < b->nlinks && !p->out; i++) {
    struct tt_service_link *other = b->links[i];
    if (other != l && other->peer == l->peer && other->ready && !other->closing && !other->gone) p->out = other;
  }
  if (p->out)
    send_waiting(p);
  else if (p->waiting)
    (void)tt_service_dial(b, l->peer);
  tt_service_wake(b); /* messages of other links were held back */
}

void tt_peer_ended(struct tt_bootstrap *b, struct tt_service_link *l)
{
  struct tt_peer *p = &b->peers[l->peer];
  char why[240];
  if (p->out == l) p->out = NULL;
  if (l->ready) p->links--;
  if (!l->ready) {
    p->dialling = false;
    snprintf(why, sizeof(why), "cannot be reached: %.200s", l->link->why);
    if (!p->out && p->optional)
      be_absent(p);
    else if (!p->out && !p->left)
      tt_peer_dead(b, l->peer, why, false);
  } else if (l->closing) {
    closed_idle(b, l);
  } else if (!p->left && !b->leaving) {
    snprintf(why, sizeof(why), "is gone: %.150s without a goodbye; it was killed, crashed, exited or aborted",
             l->link->why);
    tt_peer_dead(b, l->peer, why, true);
  }
  pthread_cond_broadcast(&b->changed);
}

static void tell(struct tt_service_link *l, int rank, const char *why)
{
  unsigned char note[4 + sizeof(((struct tt_bootstrap *)0)->dead_why)];
  size_t length = strnlen(why, sizeof(note) - 5);
  tt_wire_put_u32(note, (uint32_t)rank);
  memcpy(note + 4, why, length);
  (void)tt_link_send(l->link, TT_TAG_DEAD, note, 4 + length);
}

void tt_peer_tell_dead(struct tt_bootstrap *b, struct tt_service_link *l)
{
  if (b->first_dead >= 0 && l->peer != b->first_dead && !b->outcast) tell(l, b->first_dead, b->dead_why);
}

void tt_peer_dead(struct tt_bootstrap *b, int rank, const char *why, bool tell_others)
{
  if (rank == b->rank || b->peers[rank].dead || b->peers[rank].left) return;
  b->peers[rank].dead = true;
  if (b->first_dead < 0) {
    b->first_dead = rank;
    snprintf(b->dead_why, sizeof(b->dead_why), "%s", why);
  }
  TT_INFO(TT_INIT | TT_BOOTSTRAP, "Bootstrap: rank %d knows that rank %d %s", b->rank, rank, why);
  pthread_cond_broadcast(&b->changed);
  if (!tell_others || b->outcast) return;
  /* The dead rank, too, where its connection is still there: it reads that if it is not dead but was only stopped. */
  for (int i = 0; i < b->nlinks; i++) {
    struct tt_service_link *l = b->links[i];
    if (l->ready && !l->gone && !l->said && b->peers[l->peer].out == l) tell(l, rank, why);
  }
}

/* This rank was stopped, or could not be reached, for so long that the others went on without it. */
static void on_given_up(struct tt_bootstrap *b, int by, const char *why)
{
  char text[sizeof(b->dead_why)];
  b->outcast = true;
  snprintf(text, sizeof(text), "has given this rank up: rank %d %.150s", b->rank, why);
  tt_peer_dead(b, by, text, false);
}

static void on_dead(struct tt_bootstrap *b, int by, const struct tt_message *message)
{
  char why[sizeof(b->dead_why)];
  if (message->bytes < 4) return;
  uint32_t rank = tt_wire_get_u32(message->data);
  if (rank >= (uint32_t)b->nranks) return;
  snprintf(why, sizeof(why), "%.*s", (int)TT_MIN(message->bytes - 4, sizeof(why) - 1), (const char *)message->data + 4);
  if ((int)rank == b->rank)
    on_given_up(b, by, why);
  else
    tt_peer_dead(b, (int)rank, why, true);
}

/* Messages between services; true if it was one. */
static bool own_message(struct tt_bootstrap *b, struct tt_service_link *l, const struct tt_message *message)
{
  struct tt_peer *p = &b->peers[l->peer];
  switch (message->tag) {
  case TT_TAG_LEAVE:
    p->left = true;
    p->links--;
    l->gone = true;
    if (l->closing && l->link->dialled) p->closing = false;
    if (p->out == l) p->out = NULL;
    pthread_cond_broadcast(&b->changed);
    tt_service_wake(b); /* for what was held back */
    return true;
  case TT_TAG_CLOSE:
    if (p->out == l) p->out = NULL;
    l->closing = tt_link_send(l->link, TT_TAG_CLOSED, NULL, 0) == ncclSuccess;
    if (p->waiting && !p->out) (void)tt_service_dial(b, l->peer);
    return true;
  case TT_TAG_CLOSED:
    if (!l->closing) return true;
    p->links--;
    l->gone = true;
    closed_idle(b, l);
    return true;
  case TT_TAG_DEAD:
    on_dead(b, l->peer, message);
    return true;
  case TT_TAG_ASK:
    (void)tt_link_send(l->link, TT_TAG_HERE, NULL, 0);
    tt_liveness_asked(b, message->data, message->bytes);
    return true;
  case TT_TAG_HERE:
    return true;
  case TT_TAG_GAVE_UP:
    tt_calls_heard(b, message);
    return true;
  default:
    return false;
  }
}

/* Calls the handler without the mutex, if there is one for the tag. */
static bool handled(struct tt_bootstrap *b, int peer, const struct tt_message *message)
{
  if (message->tag < TT_TAG_USER) return false;
  for (int i = 0; i < TT_HANDLERS; i++) {
    struct tt_handler handler = b->handlers[i];
    if (!handler.call || (message->tag & handler.mask) != handler.tag) continue;
    b->handling = true;
    pthread_mutex_unlock(&b->mutex);
    handler.call(handler.context, peer, message->tag, message->data, message->bytes);
    pthread_mutex_lock(&b->mutex);
    b->handling = false;
    pthread_cond_broadcast(&b->changed);
    return true;
  }
  return false;
}

void tt_peer_message(struct tt_bootstrap *b, struct tt_service_link *l, struct tt_message *message)
{
  struct tt_peer *p = &b->peers[l->peer];
  if (b->handler_new) tt_peer_rehandle(b); /* what came before goes first */
  if (own_message(b, l, message) || handled(b, l->peer, message)) {
    free(message);
    return;
  }
  if (!p->wanted) b->stats.early++;
  tt_mail_append(&p->inbox, &p->inbox_tail, message);
  pthread_cond_broadcast(&b->changed);
}

void tt_peer_rehandle(struct tt_bootstrap *b)
{
  b->handler_new = false;
  for (int r = 0; r < b->nranks; r++) {
    struct tt_message *list = b->peers[r].inbox;
    b->peers[r].inbox = b->peers[r].inbox_tail = NULL;
    while (list) {
      struct tt_message *message = list;
      list = message->next;
      message->next = NULL;
      if (handled(b, r, message))
        free(message);
      else
        tt_mail_append(&b->peers[r].inbox, &b->peers[r].inbox_tail, message);
    }
  }
}
