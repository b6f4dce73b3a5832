/* A rank's way to the root: connect, listen, check in, be told the neighbours. */
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/check.h"
#include "base/host.h"
#include "base/log.h"
#include "base/param.h"
#include "bootstrap/internal.h"
#include "bootstrap/root.h"

/* The root's own deadline comes first, since it knows who is missing. */
#define GRACE_MS 5000
/* A root listens before its id can be known: refused for so long means that it is gone. */
#define REFUSED_MS 3000
/* Loopback addresses from another host lead nowhere, or to somebody else. */
#define STRAY_MS 3000
/* A root's word about who is missing may come so much later than it is due. */
#define WORD_LATE_MS 3000
/* Every rank has at most so many listening sockets. */
#define RANK_ADDRESSES 2

enum { MOST_LINKS = 2 };

/* Waits for the next event of any of the links; an error if aborted, or if others cannot come. */
static ncclResult_t turn(const struct tt_bootstrap *b, struct tt_link *const *links, unsigned nlinks,
                         tt_deadline deadline)
{
  struct pollfd set[MOST_LINKS];
  nlinks = TT_MIN(nlinks, MOST_LINKS);
  for (unsigned l = 0; l < nlinks; l++) {
    set[l] = (struct pollfd){.fd = links[l]->fd, .events = tt_link_events(links[l])};
    deadline = TT_MIN(deadline, links[l]->timer);
  }
  if (tt_bootstrap_aborted(b)) return TT_FAIL(ncclInternalError, "aborted while rank %d was checking in", b->rank);
  TT_TRY(tt_bootstrap_probe(b->probe));
  poll(set, nlinks, tt_deadline_poll_ms(deadline, 20));
  for (unsigned l = 0; l < nlinks; l++) tt_link_progress(links[l]);
  return ncclSuccess;
}

static bool only_loopback(const struct tt_endpoint *endpoint)
{
  for (int i = 0; i < endpoint->count; i++)
    if (!tt_address_is_loopback(&endpoint->addresses[i])) return false;
  return true;
}

static ncclResult_t cannot_reach(const struct tt_bootstrap *b, const struct tt_id *id, const struct tt_link *link)
{
  const char *hint = "";
  if (id->fixed)
    hint = "; rank 0 must be running and listen there (NCCL_COMM_ID)";
  else if (only_loopback(&id->root) && id->host != tt_host_hash())
    hint = "; the unique id holds only loopback addresses, because the host that made it found no other interface or "
           "NCCL_SOCKET_IFNAME names lo, but this rank is on another host";
  else if (link->refused_since)
    hint = "; the process that made the unique id has ended, the id was used before, or it is too old";
  else
    hint = "; check NCCL_SOCKET_IFNAME and firewalls, or raise NCCL_BOOTSTRAP_TIMEOUT";
  return TT_FAIL(ncclRemoteError, "rank %d of %d cannot reach the bootstrap root: %s%s", b->rank, b->nranks, link->why,
                 hint);
}

static bool is_link_local(const union tt_address *address)
{
  return address->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address->v6.sin6_addr);
}

/* A link-local address of the root has a scope that numbers an interface of its host: here, the one that the bootstrap
 * uses is meant. An id that was made on this host has it right, and so has NCCL_COMM_ID, which was read here. */
static ncclResult_t find_scope(const struct tt_id *id, union tt_address *local)
{
  struct tt_interface *list = NULL;
  int count = 0;
  bool needed = false;
  memset(local, 0, sizeof(*local));
  for (int i = 0; i < id->root.count; i++) needed |= is_link_local(&id->root.addresses[i]);
  if (!needed || id->fixed || id->host == tt_host_hash()) return ncclSuccess;
  TT_TRY(tt_socket_interfaces(&list, &count));
  int first = 0;
  while (first < count && list[first].address.sa.sa_family != AF_INET6) first++;
  if (first < count) {
    *local = list[first].address;
    local->v6.sin6_addr = (struct in6_addr){.s6_addr = {0xfe, 0x80}}; /* each has such an address, besides others */
    local->v6.sin6_scope_id = if_nametoindex(list[first].name);
  }
  free(list);
  return ncclSuccess;
}

static ncclResult_t reach(struct tt_bootstrap *b, const struct tt_id *id, int rank, tt_deadline deadline,
                          struct tt_link **out)
{
  struct tt_link_patience patience = {.deadline = deadline, .refused_ms = REFUSED_MS};
  union tt_address local;
  TT_TRY(find_scope(id, &local));
  if (id->fixed)
    patience = (struct tt_link_patience){.deadline = deadline, .forever = true};
  else if (only_loopback(&id->root) && id->host != tt_host_hash())
    patience.deadline = TT_MIN(deadline, tt_deadline_in_ms(STRAY_MS));
  TT_TRY(tt_link_dial(&id->root, &local, &id->key, TT_PURPOSE_CHECKIN, id->nonce, rank, &patience, out));
  while ((*out)->state != TT_LINK_READY) {
    if ((*out)->state == TT_LINK_CLOSED) return cannot_reach(b, id, *out);
    TT_TRY(turn(b, out, 1, deadline));
  }
  return ncclSuccess;
}

static ncclResult_t open_listener(struct tt_bootstrap *b, const struct tt_link *link)
{
  union tt_address local;
  char text[TT_ADDRESS_TEXT];
  socklen_t length = sizeof(local);
  memset(&local, 0, sizeof(local));
  if (getsockname(link->fd, &local.sa, &length) != 0)
    return TT_FAIL(ncclSystemError, "getsockname() on the connection to the bootstrap root failed: %s",
                   strerror(errno));
  TT_TRY(tt_listener_open(&local, RANK_ADDRESSES, b->nranks, &b->listener));
  TT_INFO(TT_INIT | TT_BOOTSTRAP, "Bootstrap: Using %s:%s", b->listener.ifname,
          tt_address_print(&b->listener.endpoint.addresses[0], text));
  return ncclSuccess;
}

/* The root says now and then who is missing. A root that does not, is what this rank waits for. */
static tt_deadline next_word(int warned)
{
  int64_t seconds = tt_param_int(TT_PARAM_TUTTI_INIT_WARN);
  return seconds > 0 ? tt_deadline_in_ms((seconds * 1000 << TT_MIN(warned, 10)) + WORD_LATE_MS) : TT_DEADLINE_NEVER;
}

/* A check-in with one root. */
struct visit {
  const struct tt_id *id;
  int place, places; /* among those that come to this root */
  struct tt_link *link;
  struct tt_answer answer; /* ncclInProgress: there is none yet */
  int warned;
  tt_deadline warn_at; /* when a root that says nothing is mentioned */
};

static void expect_word(struct visit *visit)
{
  visit->warn_at = next_word(visit->warned++);
}

/* Why there will be no answer, if there will not. */
static ncclResult_t check_silence(const struct tt_bootstrap *b, struct visit *visit, tt_deadline deadline)
{
  if (visit->link->state == TT_LINK_CLOSED)
    return TT_FAIL(ncclRemoteError,
                   "the bootstrap root went away while rank %d of %d was waiting for the other ranks: "
                   "%s; the process that made the unique id has ended or was killed",
                   b->rank, b->nranks, visit->link->why);
  if (tt_deadline_passed(deadline))
    return TT_FAIL(ncclRemoteError,
                   "the bootstrap root did not answer rank %d of %d within %lld s "
                   "(NCCL_BOOTSTRAP_TIMEOUT): its process is stopped, or a network is down",
                   b->rank, b->nranks, (long long)tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT));
  if (visit->warn_at != TT_DEADLINE_NEVER && tt_deadline_passed(visit->warn_at)) {
    TT_WARN("rank %d of %d waits for the bootstrap root, which does not say who is missing: its process may be stopped",
            b->rank, b->nranks);
    expect_word(visit);
  }
  return ncclSuccess;
}

/* Takes what the root has said by now: who is missing, or its answer. A failure is an answer, too. */
static ncclResult_t take_words(const struct tt_bootstrap *b, struct visit *visit, tt_deadline deadline)
{
  struct tt_message *message;
  while (visit->answer.result == ncclInProgress && (message = tt_link_receive(visit->link))) {
    bool good = message->tag == TT_TAG_ANSWER && tt_wire_get_answer(message->data, message->bytes, &visit->answer);
    free(message);
    if (!good) return TT_FAIL(ncclInternalError, "the bootstrap root's answer to rank %d makes no sense", b->rank);
    if (visit->answer.result != ncclInProgress) break;
    TT_WARN("rank %d of %d waits: %s", b->rank, b->nranks, visit->answer.text);
    expect_word(visit);
  }
  if (visit->answer.result == ncclInProgress) return check_silence(b, visit, deadline);
  if (visit->answer.result == ncclSuccess) return ncclSuccess;
  return TT_FAIL(visit->answer.result, "rank %d of %d could not join: %s", b->rank, b->nranks, visit->answer.text);
}

/* Until all roots have answered. The first that refuses ends it: what it says is why the others never would. */
static ncclResult_t await_answers(const struct tt_bootstrap *b, struct visit *visits, int nvisits, tt_deadline deadline)
{
  struct tt_link *links[2];
  for (int v = 0; v < nvisits; v++) {
    visits[v].answer.result = ncclInProgress;
    expect_word(&visits[v]);
  }
  for (;;) {
    int nlinks = 0;
    for (int v = 0; v < nvisits; v++) {
      if (visits[v].answer.result != ncclInProgress) continue;
      TT_TRY(take_words(b, &visits[v], deadline));
      if (visits[v].answer.result == ncclInProgress) links[nlinks++] = visits[v].link;
    }
    if (nlinks == 0) return ncclSuccess;
    TT_TRY(turn(b, links, (unsigned)nlinks, deadline));
  }
}

/* The communicator's own key and nonce, so that a fixed root's key serves many communicators apart. */
static void derive(struct tt_bootstrap *b, const struct tt_id *id, const unsigned char salt[16])
{
  unsigned char text[17];
  memcpy(text + 1, salt, 16);
  uint64_t *values[3] = {&b->key.k0, &b->key.k1, &b->nonce};
  for (unsigned char i = 0; i < 3; i++) {
    text[0] = i;
    *values[i] = tt_hash_keyed(&id->key, text, sizeof(text));
  }
}

struct tt_share tt_share_of(int rank, int nranks, int nroots)
{
  int each = nranks / nroots, longer = nranks % nroots; /* so many shares have one more */
  int in_longer = longer * (each + 1);
  if (rank < in_longer) return (struct tt_share){rank / (each + 1), rank - rank % (each + 1), each + 1};
  int beyond = rank - in_longer;
  return (struct tt_share){longer + beyond / each, rank - beyond % each, each};
}

/* A root makes a ring of those that check in with it. One of several has its share of the ranks and, last, the first
 * rank of the next share: so the last of its own learns who comes next, and that one, by visiting both roots, who comes
 * before. Returns the number of visits. */
static int plan_visits(const struct tt_bootstrap *b, const struct tt_id *ids, int nids, struct visit visits[2])
{
  if (nids == 1) {
    visits[0] = (struct visit){.id = ids, .place = b->rank, .places = b->nranks};
    return 1;
  }
  struct tt_share mine = tt_share_of(b->rank, b->nranks, nids);
  visits[0] = (struct visit){.id = &ids[mine.root], .place = b->rank - mine.first, .places = mine.count + 1};
  if (b->rank != mine.first) return 1;
  struct tt_share before = tt_share_of((b->rank + b->nranks - 1) % b->nranks, b->nranks, nids);
  visits[1] = (struct visit){.id = &ids[before.root], .place = before.count, .places = before.count + 1};
  return 2;
}

/* What is equal if all ranks give the same ids in the same order. */
static uint64_t hash_list(const struct tt_id *ids, int nids)
{
  uint64_t hash = (uint64_t)nids;
  for (int i = 0; i < nids; i++) hash = tt_hash_more(hash, &ids[i].nonce, sizeof(ids[i].nonce));
  return hash;
}

/* So that the others need not wait for a rank that has failed. */
static void give_up(struct tt_link *link)
{
  const char *why = tt_log_thread_error();
  (void)tt_link_send(link, TT_TAG_GIVE_UP, why, TT_MIN(strlen(why), (size_t)TT_GIVE_UP_BYTES));
}

static ncclResult_t check_in(struct tt_bootstrap *b, struct visit *visit, uint64_t list, tt_deadline deadline,
                             struct tt_checkin_times *times)
{
  unsigned char bytes[TT_CHECKIN_BYTES];
  TT_TRY(reach(b, visit->id, b->rank, deadline, &visit->link));
  times->reached = tt_timer_ns();
  ncclResult_t opened = b->listener.count == 0 ? open_listener(b, visit->link) : ncclSuccess;
  if (opened != ncclSuccess) give_up(visit->link);
  TT_TRY(opened);
  times->listening = tt_timer_ns();
  struct tt_checkin checkin = {.rank = b->rank,
                               .nranks = b->nranks,
                               .place = visit->place,
                               .places = visit->places,
                               .list = list,
                               .endpoint = b->listener.endpoint};
  tt_wire_put_checkin(bytes, &checkin);
  return tt_link_send(visit->link, TT_TAG_CHECKIN, bytes, sizeof(bytes));
}

ncclResult_t tt_checkin_run(struct tt_bootstrap *b, const struct tt_id *ids, int nids, struct tt_checkin_times *times)
{
  static const unsigned char no_salt[16]; /* ids of several roots are used once, so their key needs none */
  struct visit visits[2] = {{0}};
  ncclResult_t result = ncclSuccess;
  tt_deadline deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT) * 1000 + GRACE_MS);
  times->start = tt_timer_ns();
  int nvisits = plan_visits(b, ids, nids, visits);
  uint64_t list = hash_list(ids, nids);
  for (int v = 0; v < nvisits; v++) TT_TRY_GOTO(check_in(b, &visits[v], list, deadline, times), result, out);
  TT_TRY_GOTO(await_answers(b, visits, nvisits, deadline), result, out);
  times->answered = tt_timer_ns();
  derive(b, ids, nids == 1 ? visits[0].answer.salt : no_salt);
  b->peers[b->rank].endpoint = b->listener.endpoint;
  b->peers[(b->rank + b->nranks - 1) % b->nranks].endpoint = visits[nvisits - 1].answer.previous;
  b->peers[(b->rank + 1) % b->nranks].endpoint = visits[0].answer.next;
out:
  for (int v = 0; v < nvisits; v++) tt_link_free(visits[v].link);
  return result;
}
