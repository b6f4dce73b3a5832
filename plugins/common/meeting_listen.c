/* The accepting side. Anyone can connect to a listening port, so nothing counts before it has proved itself: a client
 * that is silent, slow, wrong or gone is dropped and counted, and disturbs nobody. A connection is there when all its
 * sockets have greeted, in any order, mixed with those of others.
 *
 * A real peer may be dropped as too slow, since its connect moves only when it is polled; it notices and comes back. */
#include "plugins/common/meeting.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "plugins/common/meeting_wire.h"

#define GREETING_MS 5000  /* for the first 32 bytes of a socket */
#define ASSEMBLY_MS 30000 /* from the first to the last socket of a connection */
#define CLIENTS 256       /* sockets that have not greeted; the oldest goes when more come */

struct client {
  int fd;
  tt_deadline deadline;
  size_t got;
  struct tt_meeting_hello hello;
  struct client *next;
};

struct assembly {
  uint64_t connection;
  uint32_t count, have;
  int fds[TT_MEETING_SOCKETS];
  tt_deadline deadline;
  struct assembly *next;
};

struct tt_meeting {
  const struct tt_meeting_kind *kind;
  int fd;
  struct tt_key key;
  union tt_address address;
  struct client *clients; /* oldest first */
  int client_count;
  struct assembly *assemblies;
  uint64_t dropped;
};

ncclResult_t tt_meeting_listen(const struct tt_meeting_kind *kind, const union tt_address *address, int sockets,
                               struct tt_meeting_handle *handle, struct tt_meeting **out)
{
  struct tt_meeting *meeting = NULL;
  ncclResult_t result;
  *out = NULL;
  TT_TRY(TT_CALLOC(&meeting, 1));
  meeting->kind = kind;
  meeting->fd = -1;
  TT_TRY_GOTO(tt_random(&meeting->key, sizeof meeting->key), result, out);
  meeting->address = *address;
  TT_TRY_GOTO(tt_socket_listen(&meeting->address, &meeting->fd), result, out);
  fcntl(meeting->fd, F_SETFL, fcntl(meeting->fd, F_GETFL) | O_NONBLOCK);
  memset(handle, 0, sizeof *handle);
  handle->magic = kind->magic;
  handle->key = meeting->key;
  handle->sockets = (uint32_t)sockets;
  handle->address = meeting->address;
  *out = meeting;
  meeting = NULL;
out:
  free(meeting);
  return result;
}

static void drop_client(struct tt_meeting *meeting, struct client **at)
{
  struct client *client = *at;
  *at = client->next;
  meeting->client_count--;
  tt_socket_close(&client->fd);
  free(client);
}

/* The first is worth a line, since it tells of a port scanner or a wrong firewall; the sum is told at the end. */
static void drop_stranger(struct tt_meeting *meeting, struct client **at, const char *why)
{
  char text[TT_ADDRESS_TEXT];
  if (meeting->dropped++ == 0)
    TT_INFO(TT_NET, "%s : dropped a client of %s that %s; waiting on for the real peer", meeting->kind->label,
            tt_address_print(&meeting->address, text), why);
  drop_client(meeting, at);
}

static void drop_assembly(struct assembly **at)
{
  struct assembly *assembly = *at;
  *at = assembly->next;
  for (uint32_t i = 0; i < assembly->count; i++) tt_socket_close(&assembly->fds[i]);
  free(assembly);
}

/* Takes all that waits at the port. Errors of single connections are theirs; only a lack of resources is ours, and then
 * strangers make room first. */
static ncclResult_t take_clients(struct tt_meeting *meeting)
{
  struct client **end = &meeting->clients;
  while (*end) end = &(*end)->next;
  for (;;) {
    int fd = accept4(meeting->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return ncclSuccess;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        int error = errno;
        /* Without a free descriptor accept() fails even if nobody waits. */
        struct pollfd waits = {.fd = meeting->fd, .events = POLLIN};
        if (poll(&waits, 1, 0) == 0) return ncclSuccess;
        if (meeting->clients) {
          drop_stranger(meeting, &meeting->clients, "was the oldest silent one when descriptors ran out");
          return ncclSuccess;
        }
        char hint[100];
        return TT_FAIL(ncclSystemError, "%s: cannot accept a connection: %s%s", meeting->kind->name, strerror(error),
                       tt_host_file_hint(error, hint, sizeof hint));
      }
      if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK)
        return TT_FAIL(ncclInternalError, "%s: accept on a listener that is not open: %s", meeting->kind->name,
                       strerror(errno));
      continue;
    }
    if (meeting->client_count == CLIENTS) {
      bool alone = end == &meeting->clients->next;
      drop_stranger(meeting, &meeting->clients, "was the oldest of too many silent ones");
      if (alone) end = &meeting->clients;
    }
    struct client *client = NULL;
    ncclResult_t result = TT_CALLOC(&client, 1);
    if (result != ncclSuccess) {
      close(fd);
      return result;
    }
    client->fd = fd;
    client->deadline = tt_deadline_in_ms(GREETING_MS);
    *end = client;
    end = &client->next;
    meeting->client_count++;
  }
}

static bool hello_is_good(const struct tt_meeting *meeting, const struct tt_meeting_hello *hello)
{
  return hello->magic == meeting->kind->magic && hello->proof == tt_meeting_hello_proof(&meeting->key, hello) &&
         hello->count >= 1 && hello->count <= TT_MEETING_SOCKETS && hello->index < hello->count;
}

/* Puts a greeted socket where it belongs; the client's fd is taken over. False if it contradicts what came before. */
static ncclResult_t join_assembly(struct tt_meeting *meeting, struct client *client, bool *fits)
{
  const struct tt_meeting_hello *hello = &client->hello;
  struct assembly *assembly = meeting->assemblies;
  while (assembly && assembly->connection != hello->connection) assembly = assembly->next;
  if (!assembly) {
    TT_TRY(TT_CALLOC(&assembly, 1));
    assembly->connection = hello->connection;
    assembly->count = hello->count;
    assembly->deadline = tt_deadline_in_ms(ASSEMBLY_MS);
    for (uint32_t i = 0; i < hello->count; i++) assembly->fds[i] = -1;
    assembly->next = meeting->assemblies;
    meeting->assemblies = assembly;
  }
  *fits = assembly->count == hello->count && assembly->fds[hello->index] < 0;
  if (!*fits) return ncclSuccess;
  assembly->fds[hello->index] = client->fd;
  assembly->have++;
  client->fd = -1;
  return ncclSuccess;
}

static ncclResult_t read_clients(struct tt_meeting *meeting)
{
  for (struct client **at = &meeting->clients; *at;) {
    struct client *client = *at;
    size_t want = sizeof client->hello - client->got;
    ssize_t n = recv(client->fd, (char *)&client->hello + client->got, want, MSG_DONTWAIT);
    if (n > 0) client->got += (size_t)n;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      drop_stranger(meeting, at, "left without a greeting");
    } else if (client->got == sizeof client->hello) {
      bool fits = hello_is_good(meeting, &client->hello);
      if (fits) TT_TRY(join_assembly(meeting, client, &fits));
      if (fits)
        drop_client(meeting, at);
      else
        drop_stranger(meeting, at, "did not know the secret of this port");
    } else if (tt_deadline_passed(client->deadline)) {
      drop_stranger(meeting, at, "stayed silent");
    } else {
      at = &client->next;
    }
  }
  return ncclSuccess;
}

/* The sender sends nothing before the welcome, so anything readable but "not yet" means that it is gone. */
static bool assembly_alive(const struct assembly *assembly)
{
  for (uint32_t i = 0; i < assembly->count; i++) {
    char byte;
    if (assembly->fds[i] < 0) continue;
    ssize_t n = recv(assembly->fds[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return false;
  }
  return true;
}

static bool send_welcome(const struct tt_meeting *meeting, const struct assembly *assembly)
{
  struct tt_meeting_welcome welcome = {.magic = meeting->kind->magic, .connection = assembly->connection};
  welcome.proof = tt_meeting_welcome_proof(&meeting->key, &welcome);
  return send(assembly->fds[0], &welcome, sizeof welcome, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof welcome;
}

ncclResult_t tt_meeting_accept(struct tt_meeting *meeting, int fds[TT_MEETING_SOCKETS], int *count)
{
  *count = 0;
  TT_TRY(take_clients(meeting));
  TT_TRY(read_clients(meeting));
  for (struct assembly **at = &meeting->assemblies; *at;) {
    struct assembly *assembly = *at;
    bool complete = assembly->have == assembly->count;
    if (!assembly_alive(assembly) || tt_deadline_passed(assembly->deadline) ||
        (complete && !send_welcome(meeting, assembly))) {
      drop_assembly(at);
    } else if (complete) {
      *count = (int)assembly->count;
      memcpy(fds, assembly->fds, assembly->count * sizeof *fds);
      *at = assembly->next;
      free(assembly);
      return ncclSuccess;
    } else {
      at = &assembly->next;
    }
  }
  return ncclSuccess;
}

void tt_meeting_close(struct tt_meeting *meeting)
{
  char text[TT_ADDRESS_TEXT];
  if (!meeting) return;
  if (meeting->dropped)
    TT_INFO(TT_NET, "%s : %s dropped %llu clients that were not the peer", meeting->kind->label,
            tt_address_print(&meeting->address, text), (unsigned long long)meeting->dropped);
  while (meeting->clients) drop_client(meeting, &meeting->clients);
  while (meeting->assemblies) drop_assembly(&meeting->assemblies);
  tt_socket_close(&meeting->fd);
  free(meeting);
}
