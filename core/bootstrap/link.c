/* Reading, writing and the handshake of a link; dialling is in dial.c. See link.h. */
#include "bootstrap/link.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/check.h"
#include "bootstrap/dial.h"

struct tt_link_out {
  struct tt_link_out *next;
  size_t bytes, done;
  unsigned char data[];
};

static void drop_queues(struct tt_link *link)
{
  while (link->out) {
    struct tt_link_out *next = link->out->next;
    free(link->out);
    link->out = next;
  }
  link->out_tail = NULL;
  link->queued = 0;
  free(link->in);
  link->in = NULL;
  link->head_got = link->in_got = 0;
}

void tt_link_close(struct tt_link *link, const char *why)
{
  if (why != link->why) snprintf(link->why, sizeof(link->why), "%s", why); /* it may be kept as it is */
  tt_socket_close(&link->fd);
  drop_queues(link);
  link->state = TT_LINK_CLOSED;
  link->timer = TT_DEADLINE_NEVER;
}

void tt_link_free(struct tt_link *link)
{
  if (!link) return;
  tt_socket_close(&link->fd);
  drop_queues(link);
  free(link);
}

/* The connection ended or is of no use. A link that is still being dialled tries its next address. */
static void fail(struct tt_link *link, const char *why)
{
  if (link->dialled && link->state < TT_LINK_READY) {
    drop_queues(link);
    tt_dial_failed(link, why, false);
  } else {
    tt_link_close(link, why);
  }
}

static bool push(struct tt_link *link, const void *data, size_t bytes)
{
  struct tt_link_out *out = malloc(sizeof(*out) + bytes);
  if (!out) return false;
  out->next = NULL;
  out->bytes = bytes;
  out->done = 0;
  memcpy(out->data, data, bytes);
  if (link->out)
    link->out_tail->next = out;
  else
    link->out = out;
  link->out_tail = out;
  link->queued += bytes;
  return true;
}

void tt_link_flush(struct tt_link *link)
{
  while (link->out && link->fd >= 0) {
    struct tt_link_out *out = link->out;
    ssize_t sent = send(link->fd, out->data + out->done, out->bytes - out->done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    /* A broken connection is reported by the reading side, after what the peer said before it closed. */
    if (sent < 0) return;
    out->done += (size_t)sent;
    link->queued -= (size_t)sent;
    if (out->done < out->bytes) return;
    link->out = out->next;
    if (!link->out) link->out_tail = NULL;
    free(out);
  }
}

ncclResult_t tt_link_send(struct tt_link *link, uint32_t tag, const void *data, size_t bytes)
{
  struct tt_link_out *out = malloc(sizeof(*out) + TT_HEADER_BYTES + bytes + TT_TRAILER_BYTES);
  if (!out) return TT_FAIL(ncclSystemError, "out of memory for a bootstrap message of %zu bytes", bytes);
  struct tt_header header = {.tag = tag, .bytes = bytes};
  tt_wire_put_header(out->data, &header, &link->tx, link->tx_sequence);
  if (bytes) memcpy(out->data + TT_HEADER_BYTES, data, bytes);
  tt_wire_put_u64(out->data + TT_HEADER_BYTES + bytes,
                  tt_wire_payload_mac(&link->tx, link->tx_sequence, out->data + TT_HEADER_BYTES, bytes));
  link->tx_sequence++;
  out->next = NULL;
  out->bytes = TT_HEADER_BYTES + bytes + TT_TRAILER_BYTES;
  out->done = 0;
  bool idle = !link->out;
  if (link->out)
    link->out_tail->next = out;
  else
    link->out = out;
  link->out_tail = out;
  link->queued += out->bytes;
  if (idle) tt_link_flush(link);
  return ncclSuccess;
}

/* Reads up to `bytes` in all into `buffer`; true when complete. Closes the link at the end of the stream. */
static bool fill(struct tt_link *link, unsigned char *buffer, size_t bytes, size_t *got)
{
  while (*got < bytes) {
    ssize_t n = recv(link->fd, buffer + *got, bytes - *got, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n <= 0) {
      char why[120];
      link->eof = n == 0;
      if (n == 0)
        snprintf(why, sizeof(why), "the other side closed the connection");
      else
        snprintf(why, sizeof(why), "the connection broke: %s", strerror(errno));
      fail(link, why);
      return false;
    }
    *got += (size_t)n;
  }
  return true;
}

/* Both ends derive one key a direction from the handshake. */
static void derive_keys(struct tt_link *link)
{
  struct tt_key client = {tt_wire_handshake_mac(&link->key, TT_DOMAIN_CLIENT_KEY0, &link->hello, link->server),
                          tt_wire_handshake_mac(&link->key, TT_DOMAIN_CLIENT_KEY1, &link->hello, link->server)};
  struct tt_key server = {tt_wire_handshake_mac(&link->key, TT_DOMAIN_SERVER_KEY0, &link->hello, link->server),
                          tt_wire_handshake_mac(&link->key, TT_DOMAIN_SERVER_KEY1, &link->hello, link->server)};
  link->tx = link->dialled ? client : server;
  link->rx = link->dialled ? server : client;
  link->tx_sequence = link->rx_sequence = 0;
}

static uint64_t mac_of(const struct tt_link *link, enum tt_domain domain)
{
  return tt_wire_handshake_mac(&link->key, domain, &link->hello, link->server);
}

static void become_ready(struct tt_link *link)
{
  derive_keys(link);
  link->state = TT_LINK_READY;
  link->timer = TT_DEADLINE_NEVER;
  link->used_ns = tt_timer_ns();
}

static void on_hello(struct tt_link *link)
{
  unsigned char reply[TT_CHALLENGE_BYTES];
  struct tt_challenge challenge = {.version = TT_WIRE_VERSION, .status = TT_CHALLENGE_OK};
  if (!tt_wire_get_hello(link->head, &link->hello)) {
    fail(link, "the client does not speak the bootstrap's protocol");
    return;
  }
  if (link->hello.version != TT_WIRE_VERSION)
    challenge.status = TT_CHALLENGE_VERSION;
  else
    challenge.status = (uint8_t)link->lookup(link->context, &link->hello, &link->key);
  if (challenge.status == TT_CHALLENGE_OK) {
    if (tt_random(link->server, sizeof(link->server)) != ncclSuccess) {
      fail(link, "no random numbers");
      return;
    }
    memcpy(challenge.server, link->server, sizeof(link->server));
    challenge.mac = mac_of(link, TT_DOMAIN_SERVER);
  }
  tt_wire_put_challenge(reply, &challenge);
  if (!push(link, reply, sizeof(reply))) {
    fail(link, "out of memory");
    return;
  }
  tt_link_flush(link);
  link->state = TT_LINK_PROOF;
  if (challenge.status == TT_CHALLENGE_VERSION) fail(link, "the client has another version of the protocol");
  if (challenge.status == TT_CHALLENGE_UNKNOWN) fail(link, "the client came with an id that nobody here made");
}

static void on_challenge(struct tt_link *link)
{
  struct tt_challenge challenge;
  unsigned char proof[TT_PROOF_BYTES];
  char why[160];
  if (!tt_wire_get_challenge(link->head, &challenge)) {
    fail(link, "the server does not speak the bootstrap's protocol");
    return;
  }
  if (challenge.status == TT_CHALLENGE_VERSION) {
    snprintf(why, sizeof(why),
             "the other side has bootstrap protocol version %d, this library %d: all ranks must load the same version",
             challenge.version, TT_WIRE_VERSION);
    tt_link_close(link, why); /* no use to try again */
    return;
  }
  if (challenge.status == TT_CHALLENGE_UNKNOWN) {
    drop_queues(link);
    tt_dial_failed(link, "the process that listens there does not know this communicator", true);
    return;
  }
  memcpy(link->server, challenge.server, sizeof(link->server));
  if (challenge.mac != mac_of(link, TT_DOMAIN_SERVER)) {
    drop_queues(link);
    tt_dial_failed(link, "the process that listens there does not know the communicator's key", true);
    return;
  }
  tt_wire_put_proof(proof, mac_of(link, TT_DOMAIN_CLIENT));
  if (!push(link, proof, sizeof(proof))) {
    fail(link, "out of memory");
    return;
  }
  link->state = TT_LINK_ACCEPT;
  /* From now on the other side may take the link for ready, and its end for the end of this process: who is only slow
   * must not give it up. */
  link->timer = link->deadline;
  tt_link_flush(link);
}

static void on_proof(struct tt_link *link)
{
  uint64_t mac;
  unsigned char reply[TT_PROOF_BYTES];
  if (!tt_wire_get_proof(link->head, &mac) || mac != mac_of(link, TT_DOMAIN_CLIENT)) {
    fail(link, "the client's proof is wrong: it does not know the key");
    return;
  }
  tt_wire_put_proof(reply, mac_of(link, TT_DOMAIN_ACCEPT));
  if (!push(link, reply, sizeof(reply))) {
    fail(link, "out of memory");
    return;
  }
  tt_link_flush(link);
  become_ready(link);
}

static void on_accept(struct tt_link *link)
{
  uint64_t mac;
  if (!tt_wire_get_proof(link->head, &mac) || mac != mac_of(link, TT_DOMAIN_ACCEPT))
    fail(link, "the server's acceptance is not authentic");
  else
    become_ready(link);
}

/* Reads one fixed-size piece of the handshake and acts on it; true if the state changed. */
static bool handshake(struct tt_link *link)
{
  static const struct {
    size_t bytes;
    void (*act)(struct tt_link *);
  } pieces[] = {
      [TT_LINK_CHALLENGE] = {TT_CHALLENGE_BYTES, on_challenge},
      [TT_LINK_ACCEPT] = {TT_PROOF_BYTES, on_accept},
      [TT_LINK_HELLO] = {TT_HELLO_BYTES, on_hello},
      [TT_LINK_PROOF] = {TT_PROOF_BYTES, on_proof},
  };
  if (link->state < TT_LINK_CHALLENGE || link->state > TT_LINK_PROOF) return false;
  if (!fill(link, link->head, pieces[link->state].bytes, &link->head_got)) return false;
  link->head_got = 0;
  pieces[link->state].act(link);
  return true;
}

void tt_link_progress(struct tt_link *link)
{
  if (link->state == TT_LINK_CLOSED) return;
  if (link->state == TT_LINK_PAUSE || link->state == TT_LINK_CONNECTING) tt_dial_progress(link);
  if (link->fd < 0) return;
  if (link->state != TT_LINK_CONNECTING) tt_link_flush(link);
  while (handshake(link)) {
  }
  if (link->state < TT_LINK_READY && link->fd >= 0 && tt_deadline_passed(link->timer))
    fail(link, "no answer within the time for a handshake");
}

short tt_link_events(const struct tt_link *link)
{
  if (link->fd < 0) return 0;
  if (link->state == TT_LINK_CONNECTING) return POLLOUT;
  return (short)(POLLIN | (link->out ? POLLOUT : 0));
}

/* Header, then payload and trailer. */
struct tt_message *tt_link_receive(struct tt_link *link)
{
  if (link->state != TT_LINK_READY) return NULL;
  if (!link->in) {
    if (!fill(link, link->head, TT_HEADER_BYTES, &link->head_got)) {
      if (link->state == TT_LINK_CLOSED && link->head_got) link->eof = false;
      return NULL;
    }
    const char *wrong = tt_wire_get_header(link->head, &link->header, &link->rx, link->rx_sequence);
    if (wrong) {
      tt_link_close(link, wrong);
      return NULL;
    }
    link->in = malloc(sizeof(*link->in) + link->header.bytes + TT_TRAILER_BYTES);
    if (!link->in) {
      tt_link_close(link, "out of memory for a message");
      return NULL;
    }
    link->in_got = 0;
  }
  struct tt_message *message = link->in;
  if (!fill(link, message->data, link->header.bytes + TT_TRAILER_BYTES, &link->in_got)) {
    if (link->state == TT_LINK_CLOSED) link->eof = false;
    return NULL;
  }
  if (tt_wire_get_u64(message->data + link->header.bytes) !=
      tt_wire_payload_mac(&link->rx, link->rx_sequence, message->data, link->header.bytes)) {
    tt_link_close(link, "a message's contents are not authentic");
    return NULL;
  }
  link->rx_sequence++;
  link->head_got = link->in_got = 0;
  link->in = NULL;
  message->next = NULL;
  message->tag = link->header.tag;
  message->bytes = link->header.bytes;
  return message;
}

ncclResult_t tt_link_adopt(int fd, tt_link_lookup *lookup, void *context, struct tt_link **out)
{
  struct tt_link *link;
  TT_TRY(TT_CALLOC(&link, 1));
  link->fd = fd;
  link->state = TT_LINK_HELLO;
  link->lookup = lookup;
  link->context = context;
  link->timer = tt_deadline_in_ms(TT_LINK_HANDSHAKE_MS);
  tt_dial_tune(fd);
  *out = link;
  return ncclSuccess;
}
