/* Hands out memory descriptors over an abstract Unix socket, to who proves that it knows the key. One thread serves
 * all clients at once, so that a client that is wrong, silent or slow is dropped without disturbing the others. */
#include "transport/memory_service.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "base/thread.h"
#include "transport/memory_wire.h"

#define MAX_CLIENTS 128
#define CLIENT_MS 5000 /* a rank answers within microseconds of being scheduled */

struct client {
  int fd;
  bool challenged;
  size_t got;
  union {
    struct tt_memory_hello hello;
    struct tt_memory_proof proof;
    unsigned char bytes[sizeof(struct tt_memory_hello)];
  } in;
  struct tt_memory_hello hello;
  uint64_t nonce[2];
  tt_deadline deadline;
};

struct tt_memory_service {
  int rank, memory_fd, listen_fd, wake_fd;
  uint64_t memory_bytes;
  pthread_mutex_t source_lock; /* guards the source, and is held while it is called */
  tt_memory_source *source;    /* NULL: none */
  void *source_context;
  char name[TT_UDS_NAME_BYTES];
  struct tt_key key;
  pthread_t thread;
  bool started;
  _Atomic uint64_t dropped;
  /* The thread's own. */
  struct client clients[MAX_CLIENTS];
  int nclients;
};

static void drop(struct tt_memory_service *service, int i, const char *why)
{
  if (why) {
    atomic_fetch_add(&service->dropped, 1);
    TT_INFO(TT_INIT | TT_SHM, "Dropped a client of rank %d's memory service: %s", service->rank, why);
  }
  close(service->clients[i].fd);
  service->clients[i] = service->clients[--service->nclients];
}

static void take_clients(struct tt_memory_service *service)
{
  while (service->nclients < MAX_CLIENTS) {
    int fd = -1;
    if (tt_uds_accept(service->listen_fd, &fd, 0) != ncclSuccess || fd < 0) return;
    service->clients[service->nclients++] = (struct client){.fd = fd, .deadline = tt_deadline_in_ms(CLIENT_MS)};
  }
}

/* The hello is whole: answers it. Returns why the client is dropped, or NULL. */
static const char *challenge(struct tt_memory_service *service, struct client *client)
{
  const struct tt_memory_hello *hello = &client->in.hello;
  if (hello->magic != TT_MEMORY_MAGIC || hello->version != TT_MEMORY_VERSION) return "it speaks something else";
  if (hello->server != service->rank) return "it wants another rank";
  if (tt_random(client->nonce, sizeof(client->nonce)) != ncclSuccess) return "no random numbers";
  client->hello = *hello;
  struct tt_memory_challenge answer = {.nonce = {client->nonce[0], client->nonce[1]}};
  answer.proof = tt_memory_prove(&service->key, 'S', &client->hello, client->nonce, 0);
  if (send(client->fd, &answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(answer))
    return "it is gone";
  client->challenged = true;
  client->got = 0;
  return NULL;
}

/* The proof is whole: hands out what is asked for. */
static const char *grant(struct tt_memory_service *service, struct client *client)
{
  if (client->in.proof.proof != tt_memory_prove(&service->key, 'C', &client->hello, client->nonce, 0))
    return "it does not know the communicator's key";
  bool arena = client->hello.object == TT_MEMORY_ARENA;
  int fd = arena ? service->memory_fd : -1;
  struct tt_memory_grant last = {.bytes = arena ? service->memory_bytes : 0};
  pthread_mutex_lock(&service->source_lock);
  if (!arena && service->source) fd = service->source(service->source_context, client->hello.object, &last.bytes);
  pthread_mutex_unlock(&service->source_lock);
  if (fd < 0) return "it wants an object that is not there";
  last.proof = tt_memory_prove(&service->key, 'G', &client->hello, client->nonce, last.bytes);
  ncclResult_t result = tt_uds_send(client->fd, &last, sizeof(last), fd, tt_deadline_in_ms(1000));
  if (!arena) close(fd);
  return result == ncclSuccess ? NULL : "it is gone";
}

/* Reads what is there. Returns false if the client is finished, and in *why the reason if it was not served. */
static bool advance(struct tt_memory_service *service, struct client *client, const char **why)
{
  *why = NULL;
  size_t want = client->challenged ? sizeof(client->in.proof) : sizeof(client->in.hello);
  ssize_t n = recv(client->fd, client->in.bytes + client->got, want - client->got, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) {
    *why = "it hung up";
    return false;
  }
  client->got += (size_t)n;
  if (client->got < want) return true;
  if (client->challenged) {
    *why = grant(service, client);
    return false;
  }
  *why = challenge(service, client);
  return *why == NULL;
}

static void *serve(void *arg)
{
  struct tt_memory_service *service = arg;
  struct pollfd polls[2 + MAX_CLIENTS];
  for (;;) {
    bool room = service->nclients < MAX_CLIENTS;
    polls[0] = (struct pollfd){.fd = service->wake_fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = room ? service->listen_fd : -1, .events = POLLIN};
    int timeout = -1;
    for (int i = 0; i < service->nclients; i++) {
      polls[2 + i] = (struct pollfd){.fd = service->clients[i].fd, .events = POLLIN};
      int left = tt_deadline_poll_ms(service->clients[i].deadline, CLIENT_MS);
      if (timeout < 0 || left < timeout) timeout = left;
    }
    if (poll(polls, (nfds_t)(2 + service->nclients), timeout) < 0 && errno != EINTR) return NULL;
    if (polls[0].revents) return NULL;
    for (int i = service->nclients - 1; i >= 0; i--) {
      const char *why = NULL;
      bool stays = !polls[2 + i].revents || advance(service, &service->clients[i], &why);
      if (stays && tt_deadline_passed(service->clients[i].deadline)) {
        stays = false;
        why = "it said nothing";
      }
      if (!stays) drop(service, i, why);
    }
    int before = service->nclients;
    if (polls[1].revents) take_clients(service);
    /* Out of descriptors, accept fails while the listener stays readable: leave the processor to who can close some. */
    if (polls[1].revents && service->nclients == before) poll(polls, 1, 100);
  }
}

ncclResult_t tt_memory_service_create(int rank, int memory_fd, uint64_t bytes, struct tt_memory_service **out)
{
  *out = NULL;
  struct tt_memory_service *service;
  TT_TRY(TT_CALLOC(&service, 1));
  pthread_mutex_init(&service->source_lock, NULL);
  service->rank = rank;
  service->memory_fd = memory_fd;
  service->memory_bytes = bytes;
  service->listen_fd = service->wake_fd = -1;
  ncclResult_t result;
  char hint[100];
  TT_TRY_GOTO(tt_random(&service->key, sizeof(service->key)), result, out);
  TT_TRY_GOTO(tt_uds_listen(&service->listen_fd, service->name), result, out);
  service->wake_fd = eventfd(0, EFD_CLOEXEC);
  if (service->wake_fd < 0)
    result = TT_FAIL(ncclSystemError, "rank %d's memory service has no eventfd: %s%s", rank, strerror(errno),
                     tt_host_file_hint(errno, hint, sizeof(hint)));
  else
    *out = service;
out:
  if (result != ncclSuccess) tt_memory_service_destroy(service);
  return result;
}

void tt_memory_service_set_source(struct tt_memory_service *service, tt_memory_source *source, void *context)
{
  pthread_mutex_lock(&service->source_lock);
  service->source = source;
  service->source_context = context;
  pthread_mutex_unlock(&service->source_lock);
}

ncclResult_t tt_memory_service_start(struct tt_memory_service *service)
{
  TT_TRY(tt_thread_start(&service->thread, "tutti-memory", serve, service));
  service->started = true;
  return ncclSuccess;
}

void tt_memory_service_destroy(struct tt_memory_service *service)
{
  if (!service) return;
  if (service->started) {
    uint64_t one = 1;
    while (write(service->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR) continue;
    pthread_join(service->thread, NULL);
  }
  while (service->nclients > 0) drop(service, service->nclients - 1, NULL);
  if (service->listen_fd >= 0) close(service->listen_fd);
  if (service->wake_fd >= 0) close(service->wake_fd);
  pthread_mutex_destroy(&service->source_lock);
  free(service);
}

const char *tt_memory_service_name(const struct tt_memory_service *service)
{
  return service->name;
}

const struct tt_key *tt_memory_service_key(const struct tt_memory_service *service)
{
  return &service->key;
}

uint64_t tt_memory_service_dropped(const struct tt_memory_service *service)
{
  return atomic_load(&service->dropped);
}
