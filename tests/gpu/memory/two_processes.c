/* Ranks of two processes: an owner and an importer go through all pairs of GPUs in lockstep. Four messages a case:
 *   owner     allocates, sees zeros, exports                   -> OFFER, with the descriptor
 *   importer  imports, sees zeros, writes through the import   -> WRITTEN
 *   owner     sees that, writes anew, releases if it is first  -> ANSWERED
 *   importer  sees that, releases                              -> DONE
 * Every message is sent whatever went wrong, and carries what did. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "memory.h"

#define PATIENCE_MS 60000

struct message {
  char problem[128]; /* the first; "" if none */
  struct tt_device_export export;
};

static void note(struct message *message, const char *problem)
{
  if (message->problem[0] == '\0') snprintf(message->problem, sizeof(message->problem), "%s", problem);
}

static bool put(int socket, const struct message *message, int fd)
{
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control = {0};
  struct iovec part = {.iov_base = (void *)message, .iov_len = sizeof(*message)};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  if (fd >= 0) {
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof(control.bytes);
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  return sendmsg(socket, &header, MSG_NOSIGNAL) == (ssize_t)sizeof(*message);
}

/* *fd is -1 if none came. */
static bool get(int socket, struct message *message, int *fd)
{
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control = {0};
  struct iovec part = {.iov_base = message, .iov_len = sizeof(*message)};
  struct msghdr header = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
  struct pollfd ready = {.fd = socket, .events = POLLIN};
  *fd = -1;
  if (poll(&ready, 1, PATIENCE_MS) != 1) return false;
  if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*message)) return false;
  struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
  if (rights != NULL && rights->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(rights), sizeof(*fd));
  return true;
}

/* False: the other process is gone. */
static bool own(struct bench *bench, int socket, int owner, bool first, struct message *message)
{
  const struct tt_device *device = bench->device;
  struct tt_device_context *context = bench->gpus[owner].context;
  struct tt_device_memory memory = {0};
  int none;
  memset(message, 0, sizeof(*message));
  message->export.fd = -1;
  if (device->alloc(context, TEST_BYTES, &memory) != ncclSuccess)
    note(message, "alloc");
  else if (!bench_holds(bench, owner, memory.ptr, memory.bytes, 0))
    note(message, "the memory is not zeroed");
  else if (device->export_memory(context, &memory, 0, &message->export) != ncclSuccess)
    note(message, "export");
  else if (message->export.kind != (bench->vmm ? TT_EXPORT_FD : TT_EXPORT_HANDLE))
    note(message, "the export is of the wrong kind");
  bool sent = put(socket, message, message->export.fd);
  if (message->export.fd >= 0) close(message->export.fd);
  if (!sent || !get(socket, message, &none)) return false;
  if (memory.ptr != NULL && message->problem[0] == '\0') {
    if (!bench_holds(bench, owner, memory.ptr, memory.bytes, 11))
      note(message, "the owner does not see what the importer wrote");
    if (!bench_fill(bench, owner, memory.ptr, memory.bytes, 22)) note(message, "the owner cannot write");
  }
  if (first) device->release(context, &memory);
  if (!put(socket, message, -1) || !get(socket, message, &none)) return false;
  if (!first && memory.ptr != NULL && message->problem[0] == '\0' &&
      !bench_holds(bench, owner, memory.ptr, memory.bytes, 22))
    note(message, "the release of the import destroyed it");
  device->release(context, &memory);
  return true;
}

static bool import(struct bench *bench, int socket, int importer)
{
  const struct tt_device *device = bench->device;
  struct tt_device_context *context = bench->gpus[importer].context;
  struct tt_device_memory memory = {0};
  struct message message;
  int fd, none;
  if (!get(socket, &message, &fd)) return false;
  message.export.fd = fd;
  if (message.problem[0] == '\0') {
    if (device->import_memory(context, &message.export, &memory) != ncclSuccess) {
      note(&message, "import");
    } else {
      if (memory.bytes != message.export.bytes) note(&message, "the import has another size");
      if (!bench_holds(bench, importer, memory.ptr, memory.bytes, 0)) note(&message, "the import is not zero");
      if (!bench_fill(bench, importer, memory.ptr, memory.bytes, 11)) note(&message, "the importer cannot write");
    }
  }
  if (fd >= 0) close(fd);
  if (!put(socket, &message, -1) || !get(socket, &message, &none)) return false;
  if (memory.ptr != NULL && message.problem[0] == '\0' && !bench_holds(bench, importer, memory.ptr, memory.bytes, 22))
    note(&message, "the importer does not see what the owner wrote");
  device->release(context, &memory);
  return put(socket, &message, -1);
}

/* By CUDA IPC the owner must not be first. */
static int orders(const struct bench *bench)
{
  return bench->vmm ? 2 : 1;
}

static bool can_pair(struct bench *bench, int owner, int importer)
{
  int can = 0;
  return bench->device->can_map(importer, owner, &can) == ncclSuccess && can;
}

int test_owner(struct bench *bench, int socket)
{
  int failures = 0;
  for (int owner = 0; owner < bench->ngpus; owner++)
    for (int importer = 0; importer < bench->ngpus; importer++)
      for (int order = 0; order < orders(bench) && can_pair(bench, owner, importer); order++) {
        struct message message;
        if (!own(bench, socket, owner, order == 1, &message))
          return failures + report("the other process does not answer", "two processes, %s, GPU %d used by GPU %d",
                                   bench->kind, owner, importer);
        failures +=
            report(message.problem[0] ? message.problem : NULL, "two processes, %s, GPU %d used by GPU %d, %s",
                   bench->kind, owner, importer, order == 1 ? "owner releases first" : "importer releases first");
      }
  return failures;
}

/* The owner reports. */
int test_importer(struct bench *bench, int socket)
{
  for (int owner = 0; owner < bench->ngpus; owner++)
    for (int importer = 0; importer < bench->ngpus; importer++)
      for (int order = 0; order < orders(bench) && can_pair(bench, owner, importer); order++)
        if (!import(bench, socket, importer)) return 1;
  return 0;
}
