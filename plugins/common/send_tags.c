/* See send_tags.h. */
#include "send_tags.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "tutti/net.h"

struct tt_send_tag *tt_send_tags_find(struct tt_send_tags *tags, int32_t number)
{
  if (tags->last && tags->last->number == number) return tags->last;
  struct tt_send_tag *tag = tags->first;
  while (tag && tag->number != number) tag = tag->next;
  if (tag) tags->last = tag;
  return tag;
}

static ncclResult_t make(struct tt_send_tags *tags, struct tt_send_tag **out)
{
  size_t bytes = sizeof(struct tt_send_tag) + NCCL_NET_MAX_REQUESTS * tags->request_bytes;
  struct tt_send_tag *tag = calloc(1, bytes);
  if (!tag) return TT_FAIL(ncclSystemError, "no memory for the requests of another tag (%zu bytes)", bytes);
  tt_sending_clear(&tag->held);
  for (int i = NCCL_NET_MAX_REQUESTS - 1; i >= 0; i--) {
    struct tt_sending *sending = (struct tt_sending *)(tag->requests + (size_t)i * tags->request_bytes);
    sending->tag = tag;
    sending->next = tag->free;
    tag->free = sending;
  }
  tag->next = tags->first;
  tags->first = tag;
  tags->count++;
  *out = tag;
  return ncclSuccess;
}

ncclResult_t tt_send_tags_get(struct tt_send_tags *tags, int32_t number, struct tt_send_tag **out)
{
  *out = tt_send_tags_find(tags, number);
  if (*out) return ncclSuccess;
  struct tt_send_tag *tag = tags->first;
  while (tag && tag->in_use) tag = tag->next;
  if (!tag && tags->count == TT_SEND_TAGS) return ncclSuccess;
  if (!tag) TT_TRY(make(tags, &tag));
  tag->number = number;
  tag->state = 0;
  *out = tags->last = tag;
  return ncclSuccess;
}

void tt_send_tags_free(struct tt_send_tags *tags)
{
  while (tags->first) {
    struct tt_send_tag *tag = tags->first;
    tags->first = tag->next;
    free(tag);
  }
  tags->last = NULL;
  tags->count = 0;
}

void *tt_send_tag_take(struct tt_send_tag *tag)
{
  struct tt_sending *sending = tag->free;
  if (!sending) return NULL;
  tag->free = sending->next;
  tag->in_use++;
  return sending;
}

void tt_send_tag_return(void *request)
{
  struct tt_sending *sending = request;
  sending->next = sending->tag->free;
  sending->tag->free = sending;
  sending->tag->in_use--;
}
