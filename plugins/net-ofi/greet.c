/* How a new connection is tried before it is used: greetings over the socket, then a packet each way on each rail.
 * Where the fabric does not lead from one endpoint to the other, it shows here, with a limit and with the addresses. */
#include "net_ofi.h"

#include <string.h>

void tt_ofi_greet_begin(struct tt_ofi_greet *greet, struct tt_ofi_link *link)
{
  memset(greet, 0, sizeof *greet);
  greet->link = link;
  greet->deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_SOCKET_TIMEOUT) * 1000);
  tt_ofi_link_greeting(link, &greet->mine);
}

static ncclResult_t send_hellos(struct tt_ofi_link *link)
{
  for (int i = 0; i < link->rails; i++) {
    struct tt_ofi_packet *packet = tt_ofi_link_packet(link, i);
    struct tt_ofi_header header = {.kind = TT_OFI_HELLO};
    memcpy(packet->data, &header, sizeof header); /* nothing was sent yet, so there is one */
    packet->bytes = sizeof header;
    TT_TRY(tt_ofi_link_send(link, i, packet));
  }
  return ncclSuccess;
}

static ncclResult_t exchange(struct tt_ofi_greet *greet)
{
  struct tt_ofi_link *link = greet->link;
  bool closed = false;
  if (greet->said < sizeof greet->mine)
    TT_TRY(tt_socket_progress(link->fd, true, &greet->mine, sizeof greet->mine, &greet->said, &closed));
  if (!closed && greet->got < sizeof greet->theirs)
    TT_TRY(tt_socket_progress(link->fd, false, &greet->theirs, sizeof greet->theirs, &greet->got, &closed));
  if (closed && greet->got < sizeof greet->theirs) return tt_ofi_link_lost(link, "connecting");
  if (greet->said < sizeof greet->mine || greet->got < sizeof greet->theirs) return ncclSuccess;
  TT_TRY(tt_ofi_link_agree(link, &greet->theirs));
  greet->agreed = true;
  return link->sends ? send_hellos(link) : ncclSuccess;
}

/* The receiving side answers when it has heard all, and is ready when its answers have left: nobody may ask it to move
 * them later. */
static ncclResult_t try_rails(struct tt_ofi_greet *greet, bool *ready)
{
  struct tt_ofi_link *link = greet->link;
  TT_TRY(tt_ofi_link_move(link, true));
  if (link->hellos < link->rails) return ncclSuccess;
  if (!link->sends && !greet->answered) {
    greet->answered = true;
    TT_TRY(send_hellos(link));
    TT_TRY(tt_ofi_link_move(link, true));
  }
  *ready = true;
  for (int i = 0; i < link->rails; i++)
    if (link->rail[i].waiting.first || link->rail[i].out_busy) *ready = false;
  return ncclSuccess;
}

ncclResult_t tt_ofi_greet_move(struct tt_ofi_greet *greet, bool *ready)
{
  struct tt_ofi_link *link = greet->link;
  *ready = false;
  if (!greet->agreed) TT_TRY(exchange(greet));
  if (greet->agreed) TT_TRY(try_rails(greet, ready));
  if (*ready || !tt_deadline_passed(greet->deadline)) return ncclSuccess;
  return tt_ofi_link_fail(
      link,
      TT_FAIL(ncclRemoteError,
              "net ofi: device %s (%s): %s did not answer over the fabric within %lld s, though its socket did; "
              "look at the fabric's addresses and routes (fi_info -v), and at firewalls; NCCL_SOCKET_TIMEOUT sets "
              "the patience",
              link->device->name, greet->mine.provider, link->peer,
              (long long)tt_param_int(TT_PARAM_NCCL_SOCKET_TIMEOUT)));
}
