/* The connection's socket, once it has greeted: notes, and the end of the peer. */
#include "net_ofi.h"

#include <errno.h>
#include <sys/socket.h>

static ncclResult_t note_came(struct tt_ofi_link *link)
{
  if (link->note.kind == TT_OFI_BYE && !link->sends) {
    link->bye = true;
    link->bye_count = link->note.value;
    return ncclSuccess;
  }
  if (link->note.kind == TT_OFI_HEARD && link->sends) {
    link->answered = true;
    link->answer = link->note.value;
    return ncclSuccess;
  }
  if (link->note.kind == TT_OFI_ACK && link->sends) return link->events->note(link, &link->note);
  return tt_ofi_link_fail(
      link, TT_FAIL(ncclRemoteError, "net ofi: device %s: %s sent a note of unknown kind 0x%x; the stream is corrupt",
                    link->device->name, link->peer, link->note.kind));
}

ncclResult_t tt_ofi_link_hear(struct tt_ofi_link *link, uint64_t now)
{
  link->heard_ns = now;
  while (!link->gone) {
    ssize_t n = recv(link->fd, (char *)&link->note + link->note_got, sizeof link->note - link->note_got, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) {
      link->gone = true;
      link->arrived_ns = now;
      break;
    }
    link->note_got += (size_t)n;
    if (link->note_got < sizeof link->note) continue;
    link->note_got = 0;
    TT_TRY(note_came(link));
  }
  if (link->bye && !link->answered) link->answered = tt_ofi_link_say(link, TT_OFI_HEARD, 0, link->clears);
  return ncclSuccess;
}

bool tt_ofi_link_finish_saying(struct tt_ofi_link *link)
{
  while (link->note_left && !link->gone) {
    const char *rest = (const char *)&link->saying + sizeof link->saying - link->note_left;
    ssize_t n = send(link->fd, rest, link->note_left, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    link->note_left = n < 0 ? 0 : link->note_left - (size_t)n;
  }
  return true;
}

bool tt_ofi_link_say(struct tt_ofi_link *link, enum tt_ofi_note_kind kind, int32_t tag, uint64_t value)
{
  if (!tt_ofi_link_finish_saying(link)) return false;
  link->saying = (struct tt_ofi_note){.kind = kind, .tag = tag, .value = value};
  link->note_left = sizeof link->saying;
  tt_ofi_link_finish_saying(link);
  return true;
}
