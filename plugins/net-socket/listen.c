/* The accepting side. Anyone can connect to a listening port, so nothing counts before it has proved itself: a client
 * that is silent, slow, wrong or gone is dropped and counted, and disturbs nobody. A connection is there when all its
 * sockets have greeted, in any order, mixed with those of others.
 *
 * A real peer may be dropped as too slow, since its connect moves only when it is polled; it notices and comes back. */
#include "net_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/host.h"

#define GREETING_MS 5000  /* for the first 32 bytes of a socket */
#define ASSEMBLY_MS 30000 /* from the first to the last socket of a connection */
#define CLIENTS 256       /* sockets that have not greeted; the oldest goes when more come */

struct client {
  int fd;
  tt_deadline deadline;
  size_t got;
  struct tt_netsocket_hello hello;
  struct client *next;
};

struct assembly {
  uint64_t connection;
  uint32_t count, have;
  int fds[1 + TT_NETSOCKET_LANES];
  tt_deadline deadline;
  struct assembly *next;
};

struct listener {
  int dev, fd;
  struct tt_key key;
  union tt_address address;
  struct client *clients; /* oldest first */
  int client_count;
  struct assembly *assemblies;
  uint64_t dropped;
};

uint64_t tt_netsocket_hello_proof(const struct tt_key *key, const struct tt_netsocket_hello *hello)
{
  return tt_hash_keyed(key, hello, offsetof(struct tt_netsocket_hello, proof));
}

uint64_t tt_netsocket_welcome_proof(const struct tt_key *key, const struct tt_netsocket_welcome *welcome)
{
  return tt_hash_keyed(key, welcome, offsetof(struct tt_netsocket_welcome, proof));
}

ncclResult_t tt_netsocket_listen(int dev, void *handle, void **listen_comm)
{
  struct tt_netsocket_device *device;
  struct listener *listener = NULL;
  ncclResult_t result;
  *listen_comm = NULL;
  TT_TRY(tt_netsocket_device(dev, &device));
  TT_TRY(TT_CALLOC(&listener, 1));
  listener->fd = -1;
  listener->dev = dev;
  TT_TRY_GOTO(tt_random(&listener->key, sizeof listener->key), result, out);
  listener->address = device->address;
  TT_TRY_GOTO(tt_socket_listen(&listener->address, &listener->fd), result, out);
  fcntl(listener->fd, F_SETFL, fcntl(listener->fd, F_GETFL) | O_NONBLOCK);
  struct tt_netsocket_handle out;
  memset(&out, 0, sizeof out);
  out.magic = TT_NETSOCKET_MAGIC;
  out.key = listener->key;
  out.lanes = (uint32_t)tt_netsocket_shape().lanes;
  out.address = listener->address;
  memcpy(handle, &out, sizeof out);
  *listen_comm = listener;
  listener = NULL;
out:
  free(listener);
  return result;
}

static void drop_client(struct listener *listener, struct client **at)
{
  struct client *client = *at;
  *at = client->next;
  listener->client_count--;
  tt_socket_close(&client->fd);
  free(client);
}

/* The first is worth a line, since it tells of a port scanner or a wrong firewall; the sum is told at the end. */
static void drop_stranger(struct listener *listener, struct client **at, const char *why)
{
  char text[TT_ADDRESS_TEXT];
  if (listener->dropped++ == 0)
    TT_INFO(TT_NET, "NET/Socket : dropped a client of %s that %s; waiting on for the real peer",
            tt_address_print(&listener->address, text), why);
  drop_client(listener, at);
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
static ncclResult_t take_clients(struct listener *listener)
{
  struct client **end = &listener->clients;
  while (*end) end = &(*end)->next;
  for (;;) {
    int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return ncclSuccess;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (listener->clients) {
          drop_stranger(listener, &listener->clients, "was the oldest silent one when descriptors ran out");
          return ncclSuccess;
        }
        char hint[100];
        return TT_FAIL(ncclSystemError, "net socket: cannot accept a connection: %s%s", strerror(errno),
                       tt_host_file_hint(errno, hint, sizeof hint));
      }
      if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK)
        return TT_FAIL(ncclInternalError, "net socket: accept on a listener that is not open: %s", strerror(errno));
      continue;
    }
    if (listener->client_count == CLIENTS) {
      bool alone = end == &listener->clients->next;
      drop_stranger(listener, &listener->clients, "was the oldest of too many silent ones");
      if (alone) end = &listener->clients;
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
    listener->client_count++;
  }
}

static bool hello_is_good(const struct listener *listener, const struct tt_netsocket_hello *hello)
{
  return hello->magic == TT_NETSOCKET_MAGIC && hello->proof == tt_netsocket_hello_proof(&listener->key, hello) &&
         hello->count >= 1 && hello->count <= 1 + TT_NETSOCKET_LANES && hello->index < hello->count;
}

/* Puts a greeted socket where it belongs; the client's fd is taken over. False if it contradicts what came before. */
static ncclResult_t join_assembly(struct listener *listener, struct client *client, bool *fits)
{
  const struct tt_netsocket_hello *hello = &client->hello;
  struct assembly *assembly = listener->assemblies;
  while (assembly && assembly->connection != hello->connection) assembly = assembly->next;
  if (!assembly) {
    TT_TRY(TT_CALLOC(&assembly, 1));
    assembly->connection = hello->connection;
    assembly->count = hello->count;
    assembly->deadline = tt_deadline_in_ms(ASSEMBLY_MS);
    for (uint32_t i = 0; i < hello->count; i++) assembly->fds[i] = -1;
    assembly->next = listener->assemblies;
    listener->assemblies = assembly;
  }
  *fits = assembly->count == hello->count && assembly->fds[hello->index] < 0;
  if (!*fits) return ncclSuccess;
  assembly->fds[hello->index] = client->fd;
  assembly->have++;
  client->fd = -1;
  return ncclSuccess;
}

static ncclResult_t read_clients(struct listener *listener)
{
  for (struct client **at = &listener->clients; *at;) {
    struct client *client = *at;
    size_t want = sizeof client->hello - client->got;
    ssize_t n = recv(client->fd, (char *)&client->hello + client->got, want, MSG_DONTWAIT);
    if (n > 0) client->got += (size_t)n;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      drop_stranger(listener, at, "left without a greeting");
    } else if (client->got == sizeof client->hello) {
      bool fits = hello_is_good(listener, &client->hello);
      if (fits) TT_TRY(join_assembly(listener, client, &fits));
      if (fits)
        drop_client(listener, at);
      else
        drop_stranger(listener, at, "did not know the secret of this port");
    } else if (tt_deadline_passed(client->deadline)) {
      drop_stranger(listener, at, "stayed silent");
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

static bool send_welcome(const struct listener *listener, const struct assembly *assembly)
{
  struct tt_netsocket_welcome welcome = {.magic = TT_NETSOCKET_MAGIC, .connection = assembly->connection};
  welcome.proof = tt_netsocket_welcome_proof(&listener->key, &welcome);
  return send(assembly->fds[0], &welcome, sizeof welcome, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof welcome;
}

ncclResult_t tt_netsocket_accept(void *listen_comm, void **recv_comm)
{
  struct listener *listener = listen_comm;
  *recv_comm = NULL;
  if (!listener) return TT_FAIL(ncclInternalError, "net socket: accept on NULL");
  TT_TRY(take_clients(listener));
  TT_TRY(read_clients(listener));
  for (struct assembly **at = &listener->assemblies; *at;) {
    struct assembly *assembly = *at;
    bool complete = assembly->have == assembly->count;
    if (!assembly_alive(assembly) || tt_deadline_passed(assembly->deadline) ||
        (complete && !send_welcome(listener, assembly))) {
      drop_assembly(at);
    } else if (complete) {
      ncclResult_t result = tt_netsocket_recv_make(listener->dev, assembly->fds, (int)assembly->count, recv_comm);
      *at = assembly->next;
      free(assembly);
      return result;
    } else {
      at = &assembly->next;
    }
  }
  return ncclSuccess;
}

ncclResult_t tt_netsocket_close_listen(void *listen_comm)
{
  struct listener *listener = listen_comm;
  char text[TT_ADDRESS_TEXT];
  if (!listener) return ncclSuccess;
  if (listener->dropped)
    TT_INFO(TT_NET, "NET/Socket : %s dropped %llu clients that were not the peer",
            tt_address_print(&listener->address, text), (unsigned long long)listener->dropped);
  while (listener->clients) drop_client(listener, &listener->clients);
  while (listener->assemblies) drop_assembly(&listener->assemblies);
  tt_socket_close(&listener->fd);
  free(listener);
  return ncclSuccess;
}
