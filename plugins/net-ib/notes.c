/* What the two sides say over the socket once they are connected: little, and seldom. */
#include "net_ib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

void tt_ib_notes_flush(struct tt_ib_link *link)
{
  while (link->note_count && !link->lost_since) {
    /* A lost peer is found when the socket is read. */
    if (tt_ib_socket_move(link->fd, true, link->notes, sizeof *link->notes, &link->note_sent) != ncclSuccess) return;
    if (link->note_sent < sizeof *link->notes) return;
    link->note_sent = 0;
    link->note_count--;
    memmove(link->notes, link->notes + 1, (size_t)link->note_count * sizeof *link->notes);
  }
}

void tt_ib_note_send(struct tt_ib_link *link, const struct tt_ib_note *note)
{
  if (link->fd < 0) return;
  if (!link->notes) link->notes = malloc(TT_IB_NOTES * sizeof *link->notes);
  if (!link->notes || link->note_count == TT_IB_NOTES) return;
  link->notes[link->note_count++] = *note;
  tt_ib_notes_flush(link);
}

/* A socket that is closed with something unread is reset, which may take the last note along. */
void tt_ib_notes_discard(struct tt_ib_link *link)
{
  char unread[sizeof(struct tt_ib_note)];
  while (link->fd >= 0 && recv(link->fd, unread, sizeof unread, MSG_DONTWAIT) > 0) continue;
}

static bool is_understood(const struct tt_ib_link *link, const struct tt_ib_note *note)
{
  bool known = link->sends ? note->kind == TT_IB_STATE || note->kind == TT_IB_END : note->kind == TT_IB_DOWN;
  return known && note->value < (uint32_t)link->qps;
}

ncclResult_t tt_ib_notes_read(struct tt_ib_link *link)
{
  while (!link->lost_since) {
    if (tt_ib_socket_move(link->fd, false, &link->note, sizeof link->note, &link->note_got) != ncclSuccess) {
      link->lost_since = tt_deadline_in_ms(TT_IB_LINGER_MS);
      return ncclSuccess;
    }
    if (link->note_got < sizeof link->note) return ncclSuccess;
    link->note_got = 0;
    if (link->note.kind == TT_IB_FAILED) {
      link->note.text[sizeof link->note.text - 1] = 0;
      link->told = true; /* it knows */
      return tt_ib_link_fail(link,
                             TT_FAIL(ncclRemoteError, "net ib: the peer %s failed: %s", link->peer, link->note.text));
    }
    if (!is_understood(link, &link->note))
      return tt_ib_link_fail(link,
                             TT_FAIL(ncclRemoteError, "net ib: the peer %s said 0x%x (%u), which nobody understands",
                                     link->peer, link->note.kind, link->note.value));
    TT_TRY(link->hooks->note(link, &link->note));
  }
  return ncclSuccess;
}
