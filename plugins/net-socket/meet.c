/* Making connections: plugins/common/meeting.h, with one main socket and as many lanes as both sides want. */
#include "net_socket.h"

#include <stdlib.h>
#include <string.h>

static const struct tt_meeting_kind kind = {.name = "net socket", .label = "NET/Socket", .magic = TT_NETSOCKET_MAGIC};

struct listener {
  int dev;
  struct tt_meeting *meeting;
};

static int sockets_wanted(void)
{
  return 1 + tt_netsocket_shape().lanes;
}

ncclResult_t tt_netsocket_listen(int dev, void *handle, void **listen_comm)
{
  struct tt_netsocket_device *device;
  struct tt_meeting_handle out;
  struct listener *listener;
  *listen_comm = NULL;
  TT_TRY(tt_netsocket_device(dev, &device));
  TT_TRY(TT_CALLOC(&listener, 1));
  listener->dev = dev;
  ncclResult_t result = tt_meeting_listen(&kind, &device->address, sockets_wanted(), &out, &listener->meeting);
  if (result != ncclSuccess) {
    free(listener);
    return result;
  }
  memcpy(handle, &out, sizeof out);
  *listen_comm = listener;
  return ncclSuccess;
}

ncclResult_t tt_netsocket_accept(void *listen_comm, void **recv_comm)
{
  struct listener *listener = listen_comm;
  int fds[TT_MEETING_SOCKETS], count;
  *recv_comm = NULL;
  if (!listener) return TT_FAIL(ncclInternalError, "net socket: accept on NULL");
  TT_TRY(tt_meeting_accept(listener->meeting, fds, &count));
  return count ? tt_netsocket_recv_make(listener->dev, fds, count, recv_comm) : ncclSuccess;
}

ncclResult_t tt_netsocket_close_listen(void *listen_comm)
{
  struct listener *listener = listen_comm;
  if (!listener) return ncclSuccess;
  tt_meeting_close(listener->meeting);
  free(listener);
  return ncclSuccess;
}

ncclResult_t tt_netsocket_connect(int dev, uint64_t user, void *storage, void **send_comm)
{
  struct tt_netsocket_device *device;
  struct tt_meeting_handle handle;
  int fds[TT_MEETING_SOCKETS], count;
  *send_comm = NULL;
  TT_TRY(tt_netsocket_device(dev, &device));
  memcpy(&handle, storage, sizeof handle);
  ncclResult_t result = tt_meeting_connect(&kind, user, &handle, sockets_wanted(), fds, &count);
  memcpy(storage, &handle, sizeof handle);
  TT_TRY(result);
  return count ? tt_netsocket_send_make(dev, fds, count, send_comm) : ncclSuccess;
}
