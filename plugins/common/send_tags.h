/* The sending side's requests, by tag. Each tag in use has a pool of requests of its own, so that one which waits keeps
 * no other from sending, and a list in which those may wait that shall not be sent yet. A plugin's request begins with
 * a struct tt_sending.
 *
 * Threads: that of the comm. */
#ifndef TT_PLUGINS_SEND_TAGS_H
#define TT_PLUGINS_SEND_TAGS_H

#include <stddef.h>
#include <stdint.h>
#include "nccl.h"

#define TT_SEND_TAGS 256 /* in use at once; each takes some kilobytes */

struct tt_send_tag;
struct tt_sending {
  struct tt_sending *next; /* in the list that it is in: free, held or one of the plugin's */
  struct tt_send_tag *tag;
};
struct tt_sending_list {
  struct tt_sending *first, **end;
};

struct tt_send_tag {
  int32_t number;
  int in_use;     /* requests, and what else keeps the tag: while it is 0 another number may take its place */
  uint32_t state; /* the plugin's own; 0 at first */
  struct tt_sending_list held;
  struct tt_sending *free;
  struct tt_send_tag *next;
  _Alignas(max_align_t) char requests[]; /* NCCL_NET_MAX_REQUESTS */
};

struct tt_send_tags {
  size_t request_bytes; /* the caller's, set before anything else; all other members begin as 0 */
  int count;
  struct tt_send_tag *first, *last; /* `last`: found last */
};

static inline void tt_sending_clear(struct tt_sending_list *list)
{
  list->first = NULL;
  list->end = &list->first;
}

static inline void tt_sending_append(struct tt_sending_list *list, void *request)
{
  struct tt_sending *sending = request;
  sending->next = NULL;
  *list->end = sending;
  list->end = &sending->next;
}

/* The oldest; there is one. */
static inline void *tt_sending_take(struct tt_sending_list *list)
{
  struct tt_sending *sending = list->first;
  list->first = sending->next;
  if (!list->first) list->end = &list->first;
  return sending;
}

/* NULL: it is not in use. */
struct tt_send_tag *tt_send_tags_find(struct tt_send_tags *tags, int32_t number);
/* Takes the tag into use. *out NULL: too many are. */
ncclResult_t tt_send_tags_get(struct tt_send_tags *tags, int32_t number, struct tt_send_tag **out);
void tt_send_tags_free(struct tt_send_tags *tags);
/* A request of the tag, with what is left of its last use; NULL: none is free. */
void *tt_send_tag_take(struct tt_send_tag *tag);
void tt_send_tag_return(void *request);

#endif
