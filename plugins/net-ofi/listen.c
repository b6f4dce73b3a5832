/* The accepting side: sockets come from the meeting, become receive comms, and are handed out once they have greeted.
 * Who got that far had the key, so a failure is the error of accept. */
#include "net_ofi.h"

#include <stdlib.h>
#include <string.h>

const struct tt_meeting_kind tt_ofi_meeting = {.name = "net ofi", .label = "NET/OFI", .magic = TT_OFI_MAGIC};

struct guest {
  struct tt_ofi_greet greet;
  struct guest *next;
};

struct listener {
  int dev;
  struct tt_meeting *meeting;
  struct guest *guests;
};

ncclResult_t tt_ofi_listen(int dev, void *handle, void **listen_comm)
{
  struct tt_ofi_device *device;
  struct listener *listener = NULL;
  struct tt_ofi_handle out;
  *listen_comm = NULL;
  TT_TRY(tt_ofi_device(dev, &device));
  TT_TRY(TT_CALLOC(&listener, 1));
  listener->dev = dev;
  memset(&out, 0, sizeof out);
  ncclResult_t result =
      tt_meeting_listen(&tt_ofi_meeting, &device->nic[0]->address, 1, &out.meeting, &listener->meeting);
  if (result != ncclSuccess) {
    free(listener);
    return result;
  }
  memcpy(handle, &out, sizeof out);
  *listen_comm = listener;
  return ncclSuccess;
}

static ncclResult_t take_guest(struct listener *listener)
{
  int fds[TT_MEETING_SOCKETS], count;
  struct guest *guest;
  TT_TRY(tt_meeting_accept(listener->meeting, fds, &count));
  if (count == 0) return ncclSuccess;
  for (int i = 1; i < count; i++) tt_socket_close(&fds[i]); /* nobody asked for them */
  ncclResult_t result = TT_CALLOC(&guest, 1);
  if (result != ncclSuccess) {
    tt_socket_close(&fds[0]);
    return result;
  }
  struct tt_ofi_link *link;
  result = tt_ofi_recv_make(listener->dev, fds[0], &link);
  if (result != ncclSuccess) {
    free(guest);
    return result;
  }
  tt_ofi_greet_begin(&guest->greet, link);
  guest->next = listener->guests;
  listener->guests = guest;
  return ncclSuccess;
}

ncclResult_t tt_ofi_accept(void *listen_comm, void **recv_comm)
{
  struct listener *listener = listen_comm;
  *recv_comm = NULL;
  if (!listener) return TT_FAIL(ncclInternalError, "net ofi: accept on NULL");
  TT_TRY(take_guest(listener));
  for (struct guest **at = &listener->guests; *at;) {
    struct guest *guest = *at;
    bool ready;
    ncclResult_t result = tt_ofi_greet_move(&guest->greet, &ready);
    if (result == ncclSuccess && !ready) {
      at = &guest->next;
      continue;
    }
    if (ready) {
      tt_ofi_link_count(guest->greet.link);
      *recv_comm = guest->greet.link;
    } else {
      tt_ofi_close_recv(guest->greet.link);
    }
    *at = guest->next;
    free(guest);
    /* The peer had the handle, so this was no stranger: who waits shall know. */
    if (result != ncclSuccess || ready) return result;
  }
  return ncclSuccess;
}

ncclResult_t tt_ofi_close_listen(void *listen_comm)
{
  struct listener *listener = listen_comm;
  if (!listener) return ncclSuccess;
  while (listener->guests) {
    struct guest *guest = listener->guests;
    listener->guests = guest->next;
    tt_ofi_close_recv(guest->greet.link);
    free(guest);
  }
  tt_meeting_close(listener->meeting);
  free(listener);
  return ncclSuccess;
}
