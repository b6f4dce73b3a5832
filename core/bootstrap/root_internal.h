/* Shared by root.c (thread, sockets, clients) and root_id.c (ids and their check-ins). Everything here is guarded by
 * the service's mutex. */
#ifndef TT_BOOTSTRAP_ROOT_INTERNAL_H
#define TT_BOOTSTRAP_ROOT_INTERNAL_H

#include "bootstrap/link.h"
#include "bootstrap/listen.h"

struct tt_root_id;

struct tt_root_client {
  struct tt_root_client *next;
  struct tt_link *link;
  struct tt_root_id *id; /* NULL until checked in */
  int place;             /* its slot; valid when id is set */
  tt_deadline until;     /* when it must have checked in, or taken its answer; NEVER while its answer is not known */
  bool answered;
};

enum tt_root_state { TT_ROOT_OPEN, TT_ROOT_ANSWERED, TT_ROOT_FAILED };

struct tt_root_slot {
  bool came;                     /* at any time: the rank knows, or will be told, how it ended */
  struct tt_root_client *client; /* NULL: did not come, or is gone again */
  struct tt_endpoint endpoint;
};

struct tt_root_id {
  struct tt_root_id *next;
  struct tt_key key;
  uint64_t nonce;
  bool fixed;
  struct tt_listener listener; /* of a fixed one; else the service's listeners serve it */
  enum tt_root_state state;
  int holders;
  bool lost;         /* FAILED because a rank left: those that did not come yet may be on their way */
  int places, came;  /* places is 0 until the first check-in */
  int nranks, first; /* of the communicator; place p is rank (first + p) mod nranks */
  uint64_t list;     /* hash of the communicator's unique ids */
  struct tt_root_slot *slots;
  tt_deadline deadline;     /* OPEN: when it fails; FAILED: until when latecomers are told why */
  tt_deadline warn_at;      /* OPEN: when the missing ranks are named next */
  int warned;               /* times that they were */
  int waiting;              /* clients whose link still belongs to this id */
  uint64_t dropped_before;  /* the service's counter when the id was made */
  struct tt_answer failure; /* FAILED */
};

/* In root_id.c. `dropped` is the service's counter of dropped clients. */
ncclResult_t tt_root_id_new(const struct tt_id *id, uint64_t dropped, struct tt_root_id **out);
void tt_root_id_free(struct tt_root_id *id);
/* A client's first message. `id` is NULL if its id is used up. */
void tt_root_id_checkin(struct tt_root_id *id, struct tt_root_client *client, const struct tt_message *message);
/* A rank will not come; nothing where it has come already, or the meeting is over. */
void tt_root_id_give_up(struct tt_root_id *id, int rank, const char *why);
/* A checked-in client's connection ended. */
void tt_root_id_left(struct tt_root_id *id, struct tt_root_client *client);
/* warn_at came: tells those that wait which ranks are missing, and sets the next time. */
void tt_root_id_warn(struct tt_root_id *id);
/* The deadline came. */
void tt_root_id_expire(struct tt_root_id *id, uint64_t dropped);
/* Ranks cannot come, since there are no descriptors for them. */
void tt_root_id_short(struct tt_root_id *id);
bool tt_root_id_finished(const struct tt_root_id *id);
/* Whether ranks are on their way, most likely, that will find the root's failure nowhere but here. */
bool tt_root_id_expects(const struct tt_root_id *id);

#endif
