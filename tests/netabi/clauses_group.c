/* Clauses about grouped receives and tags. Side 0 sends, side 1 receives. */
#include "netabi.h"

#include <stdio.h>
#include <string.h>

enum { GROUP = 64, ROUNDS = 12 };

static size_t size_of(int round, int i)
{
  static const size_t some[] = {0, 1, 100, 5000, 65536, 70001, 200000};
  return some[(size_t)(round * 5 + i * 3) % (sizeof some / sizeof some[0])];
}

static uint64_t seed_of(int round, int i)
{
  return (uint64_t)round * 1000 + (uint64_t)i;
}

/* The order in which round `round` is sent: forwards, backwards, or from the middle. */
static int order_of(int round, int i, int n)
{
  return round % 3 == 0 ? i : round % 3 == 1 ? n - 1 - i : (i + round) % n;
}

struct group {
  void *request;
  char *data[GROUP];
  size_t rooms[GROUP];
  int tags[GROUP];
};

static void post_group(void *comm, struct group *group, int n)
{
  struct patience patience = patience_start();
  for (int i = 0; i < n; i++) {
    group->rooms[i] = 200000;
    group->data[i] = buffer_new(group->rooms[i]);
    group->tags[i] = 100 + 7 * i;
  }
  while (!(group->request = post_recv(comm, n, group->data, group->rooms, group->tags)))
    patience_spend(&patience, "a grouped irecv gave no request");
}

static void finish_group(struct group *group, int round, int n)
{
  char what[80];
  int got[GROUP + 1];
  for (int i = 0; i <= n; i++) got[i] = -77;
  snprintf(what, sizeof what, "round %d of grouped receives of %d", round, n);
  wait_done(group->request, got, what);
  if (got[n] != -77) fail("test wrote more than the %d sizes of its receive", n);
  for (int i = 0; i < n; i++) {
    snprintf(what, sizeof what, "buffer %d of %d in round %d, tag %d", i, n, round, group->tags[i]);
    if (got[i] != (int)size_of(round, i)) fail("%s: size %d, not %zu", what, got[i], size_of(round, i));
    pattern_check(group->data[i], size_of(round, i), seed_of(round, i), what);
    buffer_check(group->data[i], group->rooms[i], what);
    buffer_free(group->data[i]);
  }
}

static void send_round(void *comm, int round, int n)
{
  void *requests[GROUP];
  char *data[GROUP];
  for (int k = 0; k < n; k++) {
    int i = order_of(round, k, n), size = -1;
    data[k] = buffer_new(size_of(round, i));
    pattern_fill(data[k], size_of(round, i), seed_of(round, i));
    requests[k] = must_send(comm, data[k], size_of(round, i), 100 + 7 * i);
    (void)size;
  }
  for (int k = 0; k < n; k++) wait_done(requests[k], NULL, "sends of a group");
  for (int k = 0; k < n; k++) buffer_free(data[k]);
}

/* All group sizes, two receives outstanding, sends in several orders. */
static void grouped(void)
{
  struct connection c;
  if (max_recvs < 2) skip("maxRecvs is 1");
  connect_all(&c, 1);
  for (int n = 1; n <= max_recvs && n <= GROUP; n += n < 3 ? 1 : max_recvs - 3 > 0 ? max_recvs - 3 : 1) {
    if (side == 0) {
      for (int round = 0; round < ROUNDS; round++) send_round(c.send, round, n);
    } else {
      static struct group groups[2];
      post_group(c.recv, &groups[0], n);
      for (int round = 0; round < ROUNDS; round++) {
        if (round + 1 < ROUNDS) post_group(c.recv, &groups[(round + 1) % 2], n);
        finish_group(&groups[round % 2], round, n);
      }
    }
    meet();
  }
  close_all(&c, 1);
}

/* One tag runs ahead as far as the plugin lets it, while the receiver posts one receive after the other and each needs
 * both tags. Neither may be lost, and the one that is late must get through. */
static void ahead_sender(void *comm, int messages, size_t bytes)
{
  struct {
    int posted, done;
    void *requests[512];
  } tag[2];
  char *data[2] = {buffer_new(bytes * (size_t)messages), buffer_new(bytes * (size_t)messages)};
  struct patience patience = patience_start();
  memset(tag, 0, sizeof tag);
  for (int t = 0; t < 2; t++)
    for (int m = 0; m < messages; m++) pattern_fill(data[t] + bytes * (size_t)m, bytes, seed_of(m, t));
  while (tag[0].done + tag[1].done < 2 * messages) {
    for (int t = 0; t < 2; t++) {
      /* The late tag starts only when the other could not be posted any more, or is out. */
      bool may = t == 0 || tag[0].posted == messages || patience.rounds > 200;
      while (may && tag[t].posted < messages) {
        size_t at = bytes * (size_t)tag[t].posted;
        void *request = post_send(comm, data[t] + at, bytes, 10 + t);
        if (!request) break;
        tag[t].requests[tag[t].posted++] = request;
      }
      while (tag[t].done < tag[t].posted && test_done(tag[t].requests[tag[t].done], NULL)) tag[t].done++;
    }
    patience_spend(&patience, "two tags, one far ahead of the other");
  }
  buffer_free(data[0]);
  buffer_free(data[1]);
}

static void ahead_receiver(void *comm, int messages, size_t bytes)
{
  char *data[2] = {buffer_new(bytes), buffer_new(bytes)};
  size_t rooms[2] = {bytes, bytes};
  int tags[2] = {11, 10}, got[2];
  for (int m = 0; m < messages; m++) {
    struct patience patience = patience_start();
    void *request;
    while (!(request = post_recv(comm, 2, data, rooms, tags))) patience_spend(&patience, "irecv gave no request");
    wait_done(request, got, "two tags, one far ahead of the other");
    for (int i = 0; i < 2; i++) {
      if (got[i] != (int)bytes) fail("message %d of tag %d has %d bytes, not %zu", m, tags[i], got[i], bytes);
      pattern_check(data[i], bytes, seed_of(m, tags[i] - 10), "two tags, one far ahead of the other");
    }
  }
  buffer_free(data[0]);
  buffer_free(data[1]);
}

static void tag_ahead(void)
{
  static const struct {
    int messages;
    size_t bytes;
  } list[] = {{400, 10}, {100, 60000}, {24, 1000000}};
  struct connection c;
  if (max_recvs < 2) skip("maxRecvs is 1");
  connect_all(&c, 1);
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    if (side == 0)
      ahead_sender(c.send, list[i].messages, list[i].bytes);
    else
      ahead_receiver(c.recv, list[i].messages, list[i].bytes);
    meet();
  }
  close_all(&c, 1);
}

const struct clause group_clauses[] = {
    {"grouped", grouped, false, "grouped receives match by tag, whatever the order of the sends"},
    {"tag-ahead", tag_ahead, false, "a tag that is far ahead does not keep another from getting through"},
    {0}};
