/* The thread that makes connections: it reads what peers ask, makes this rank's halves, completes them and tells the
 * peers, for the user of this rank and of others alike. It lives while something is to be done, and a moment longer. */
#include "connect/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/check.h"
#include "base/param.h"
#include "base/thread.h"
#include "connect/message.h"

#define LINGER_NS 1000000000u
/* Plugins' connect and accept are polled: often at first, since most connections are there at once. */
#define POLL_MIN_NS 50000u
#define POLL_MAX_NS 2000000u
/* The user, who can name all that is missing, is to notice first. */
#define GRACE_MS 5000

struct worker {
  struct tt_connect *connect;
  struct tt_entry *entries; /* ACTIVE ones */
  bool moved, polling;
};

void tt_connect_activate(struct tt_connect *connect, struct tt_entry *entry)
{
  entry->state = TT_ENTRY_ACTIVE;
  entry->progress = "being set up";
  entry->deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT) * 1000 + GRACE_MS);
  entry->next = connect->fresh;
  connect->fresh = entry;
}

static void set_progress(struct worker *worker, struct tt_entry *entry, const char *progress)
{
  pthread_mutex_lock(&worker->connect->lock);
  entry->progress = progress;
  pthread_mutex_unlock(&worker->connect->lock);
  worker->moved = true;
}

/* ---- Telling peers ---- */

/* Sends one message with every entry of the same peer and index that `due` says. */
static ncclResult_t tell(struct worker *worker, struct tt_entry *first, enum tt_connect_kind kind, const char *text,
                         bool (*due)(const struct tt_entry *))
{
  struct tt_connect *connect = worker->connect;
  int n = connect->env->nranks, peer = first->connector.peer, index = first->connector.index;
  struct tt_connect_message message = {0};
  ncclResult_t result;
  TT_TRY_GOTO(tt_connect_message_begin(&message, kind, index, text), result, out);
  for (struct tt_entry *entry = first; entry; entry = due ? entry->next : NULL) {
    if (entry->connector.peer != peer || entry->connector.index != index || (due && !due(entry))) continue;
    struct tt_connect_record record = {
        .channel = entry->connector.channel, .send = entry->connector.send, .transport = entry->connector.transport};
    if (kind == TT_CONNECT_HALVES) record.handshake = entry->mine;
    TT_TRY_GOTO(tt_connect_message_add(&message, &record), result, out);
  }
  uint32_t tag = tt_connect_tag((uint32_t)((peer - connect->env->rank + n) % n), index);
  TT_TRY_GOTO(tt_bootstrap_send(connect->bootstrap, peer, tag, message.data, message.bytes), result, out);
out:
  free(message.data);
  return result;
}

/* Ends an entry. `inform`: the peer does not know yet. */
static void fail(struct worker *worker, struct tt_entry *entry, ncclResult_t result, const char *why, bool inform)
{
  struct tt_connect *connect = worker->connect;
  char text[sizeof(entry->why)];
  snprintf(text, sizeof(text), "%s", why);
  if (inform) tell(worker, entry, TT_CONNECT_FAILED, text, NULL);
  tt_connect_close(connect, entry);
  pthread_mutex_lock(&connect->lock);
  entry->result = result;
  memcpy(entry->why, text, sizeof(text));
  atomic_store_explicit(&entry->state, TT_ENTRY_FAILED, memory_order_release);
  pthread_cond_broadcast(&connect->changed);
  pthread_mutex_unlock(&connect->lock);
  worker->moved = true;
}

/* As above, for a failure that was just reported on this thread. */
static void fail_reported(struct worker *worker, struct tt_entry *entry, ncclResult_t result, bool inform)
{
  fail(worker, entry, result, tt_log_thread_error(), inform);
}

/* ---- Hearing from peers ---- */

static ncclResult_t check_choice(const struct worker *worker, const struct tt_connector *connector,
                                 enum tt_transport_id mine, enum tt_transport_id theirs)
{
  if (theirs == mine) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage,
                 "rank %d wants %s for channel %d with rank %d, which chose %s: set the same "
                 "NCCL_* variables on all ranks",
                 connector->peer, tt_transport_get(theirs)->name, connector->channel, worker->connect->env->rank,
                 tt_transport_get(mine)->name);
}

static void hear_half(struct worker *worker, int peer, int index, const struct tt_connect_record *record)
{
  struct tt_connect *connect = worker->connect;
  ncclResult_t result;
  pthread_mutex_lock(&connect->lock);
  struct tt_entry *entry = tt_connect_entry(connect, peer, record->channel, index, !record->send);
  if (entry && entry->state == TT_ENTRY_NOTED) tt_connect_activate(connect, entry);
  int state = entry ? (int)entry->state : TT_ENTRY_UP;
  pthread_mutex_unlock(&connect->lock);
  if (state == TT_ENTRY_FAILED) {
    tell(worker, entry, TT_CONNECT_FAILED, entry->why, NULL);
  } else if (state == TT_ENTRY_UP || entry->heard) {
    TT_WARN("rank %d asked twice for channel %d with rank %d: the second time is ignored", peer, record->channel,
            connect->env->rank);
  } else {
    struct tt_connector *connector = &entry->connector;
    entry->theirs = record->handshake;
    entry->heard = true;
    if (!entry->set_up)
      connector->transport = record->transport; /* compared with this rank's choice when the half is made */
    else if ((result = check_choice(worker, connector, connector->transport, record->transport)) != ncclSuccess)
      fail_reported(worker, entry, result, true);
  }
}

static void hear(struct worker *worker, int peer, const struct tt_connect_parsed *parsed)
{
  struct tt_connect *connect = worker->connect;
  for (int i = 0; i < parsed->nrecords; i++) {
    const struct tt_connect_record *record = &parsed->records[i];
    if (parsed->kind == TT_CONNECT_HALVES) {
      hear_half(worker, peer, parsed->index, record);
      continue;
    }
    pthread_mutex_lock(&connect->lock);
    struct tt_connect_peer *table = connect->peers[peer];
    struct tt_entry *entry = table ? table->entries[parsed->index][record->channel][!record->send] : NULL;
    bool active = entry && entry->state == TT_ENTRY_ACTIVE;
    pthread_mutex_unlock(&connect->lock);
    if (!active) continue;
    if (parsed->kind == TT_CONNECT_READY)
      entry->peer_ready = true;
    else
      fail(worker, entry, ncclRemoteError, parsed->text, false);
  }
}

static void open_letter(struct worker *worker, const struct tt_letter *letter)
{
  struct tt_connect *connect = worker->connect;
  struct tt_connect_parsed parsed;
  const char *why;
  int n = connect->env->nranks, peer = letter->peer;
  if (!tt_connect_message_parse(letter->data, letter->bytes, &parsed, &why)) {
    TT_WARN("rank %d ignores a message of %zu bytes about connections from rank %d: %s", connect->env->rank,
            letter->bytes, peer, why);
    return;
  }
  uint32_t distance = (uint32_t)((connect->env->rank - peer + n) % n);
  if (peer == connect->env->rank || letter->tag != tt_connect_tag(distance, parsed.index))
    TT_WARN("rank %d ignores a message about connections from rank %d: its tag %08x belongs to another pair",
            connect->env->rank, peer, letter->tag);
  else
    hear(worker, peer, &parsed);
  free(parsed.records);
  worker->moved = true;
}

void tt_connect_receive(void *context, int peer, uint32_t tag, const void *data, size_t bytes)
{
  struct tt_connect *connect = context;
  struct tt_letter *letter = malloc(sizeof(*letter) + bytes);
  if (!letter || peer < 0 || peer >= connect->env->nranks) {
    TT_WARN("a message of %zu bytes about connections from rank %d is dropped", bytes, peer);
    free(letter);
    return;
  }
  *letter = (struct tt_letter){.peer = peer, .tag = tag, .bytes = bytes};
  memcpy(letter->data, data, bytes);
  pthread_mutex_lock(&connect->lock);
  *connect->letters_end = letter;
  connect->letters_end = &letter->next;
  /* A failure was reported; the letter waits for the next one who starts the worker. */
  if (tt_connect_wake_worker(connect) != ncclSuccess) TT_WARN("rank %d's request waits for a thread", peer);
  pthread_mutex_unlock(&connect->lock);
}

/* ---- Making halves ---- */

static ncclResult_t set_up(struct worker *worker, struct tt_entry *entry)
{
  struct tt_transport_env *env = worker->connect->env;
  struct tt_connector *connector = &entry->connector;
  enum tt_transport_id theirs = connector->transport, mine;
  int from = connector->send ? env->rank : connector->peer, to = connector->send ? connector->peer : env->rank;
  TT_TRY(tt_transport_choose_index(env, from, to, connector->index, &mine));
  connector->transport = mine;
  if (entry->heard) TT_TRY(check_choice(worker, connector, mine, theirs));
  return tt_transport_get(mine)->setup(env, connector, &entry->mine);
}

/* Once its pointers are there, the device makes its own of an end. The peer does not use the connection before it is
 * told that this end is ready. */
static ncclResult_t open_on_device(struct tt_transport_env *env, struct tt_connector *connector)
{
  if (!env->context || !env->device->conn_open) return ncclSuccess;
  ncclResult_t result = env->device->conn_open(env->context->handle, &connector->conn);
  connector->opened = result == ncclSuccess;
  return result;
}

static void go_on(struct worker *worker, struct tt_entry *entry)
{
  if (!entry->set_up || !entry->heard || entry->connected) return;
  bool done = false;
  const struct tt_transport *transport = tt_transport_get(entry->connector.transport);
  struct tt_transport_env *env = worker->connect->env;
  ncclResult_t result = transport->connect(env, &entry->connector, &entry->theirs, &done);
  if (result == ncclSuccess && done) result = open_on_device(env, &entry->connector);
  if (result != ncclSuccess) {
    fail_reported(worker, entry, result, true);
  } else if (done) {
    entry->connected = entry->connector.connected = true;
    set_progress(worker, entry, "connected, but the peer is not ready");
  } else {
    worker->polling = true;
  }
}

static void log_channel(const struct tt_connect *connect, const struct tt_connector *connector)
{
  const struct tt_transport_env *env = connect->env;
  char label[96];
  bool net = connector->transport == TT_TRANSPORT_NET;
  if (!net && !connector->send) return;
  tt_transport_get(connector->transport)->label(env, connector, label, sizeof(label));
  int from = connector->send ? env->rank : connector->peer, to = connector->send ? connector->peer : env->rank;
  const char *direction = !net ? "" : connector->send ? "[send] " : "[receive] ";
  static const int subsystems[TT_NUM_TRANSPORTS] = {[TT_TRANSPORT_PEER] = TT_SHM,
                                                    [TT_TRANSPORT_NET] = TT_NET,
                                                    [TT_TRANSPORT_DEVICE] = TT_P2P,
                                                    [TT_TRANSPORT_INDIRECT] = TT_P2P,
                                                    [TT_TRANSPORT_HOST] = TT_SHM};
  TT_INFO(TT_INIT | subsystems[connector->transport], "Channel %02d/%d : %d[%d] -> %d[%d] %svia %s", connector->channel,
          tt_connect_index_point_to_point(connector->index), from, env->peers[from].device, to, env->peers[to].device,
          direction, label);
}

static void finish(struct worker *worker, struct tt_entry *entry)
{
  struct tt_connect *connect = worker->connect;
  log_channel(connect, &entry->connector);
  atomic_fetch_add(&connect->bytes, entry->connector.bytes); /* some of it may be allocated when the peer is heard */
  pthread_mutex_lock(&connect->lock);
  atomic_store_explicit(&entry->state, TT_ENTRY_UP, memory_order_release);
  pthread_cond_broadcast(&connect->changed);
  pthread_mutex_unlock(&connect->lock);
  worker->moved = true;
}

static bool active(const struct tt_entry *entry)
{
  return entry->state == TT_ENTRY_ACTIVE;
}

static void time_out(struct worker *worker, struct tt_entry *entry)
{
  char why[128];
  snprintf(why, sizeof(why), "it took too long (%s)", entry->progress);
  fail(worker, entry, ncclSystemError, why, true);
}

static bool half_is_due(const struct tt_entry *entry)
{
  return active(entry) && entry->set_up && !entry->sent;
}

static bool ready_is_due(const struct tt_entry *entry)
{
  return active(entry) && entry->connected && !entry->told_ready;
}

/* Tells the peer of `first` what is due, and notes it for all entries that the message carried. */
static void tell_due(struct worker *worker, struct tt_entry *first, enum tt_connect_kind kind,
                     bool (*due)(const struct tt_entry *))
{
  if (!due(first)) return;
  ncclResult_t result = tell(worker, first, kind, NULL, due);
  int peer = first->connector.peer, index = first->connector.index;
  for (struct tt_entry *entry = first; entry; entry = entry->next) {
    if (entry->connector.peer != peer || entry->connector.index != index || !due(entry)) continue;
    if (result != ncclSuccess) {
      fail_reported(worker, entry, result, false);
      continue;
    }
    if (kind == TT_CONNECT_READY)
      entry->told_ready = true;
    else
      entry->sent = true;
    if (kind == TT_CONNECT_HALVES) set_progress(worker, entry, "asked, no answer");
  }
}

/* One pass over everything: each step for all entries before the next, so that messages carry as much as they can. */
static void pass(struct worker *worker)
{
  for (struct tt_entry *entry = worker->entries; entry; entry = entry->next) {
    if (!active(entry) || entry->set_up) continue;
    ncclResult_t result = set_up(worker, entry);
    entry->set_up = result == ncclSuccess;
    if (result != ncclSuccess) fail_reported(worker, entry, result, true);
  }
  for (struct tt_entry *entry = worker->entries; entry; entry = entry->next)
    tell_due(worker, entry, TT_CONNECT_HALVES, half_is_due);
  for (struct tt_entry *entry = worker->entries; entry; entry = entry->next)
    if (active(entry)) go_on(worker, entry);
  for (struct tt_entry *entry = worker->entries; entry; entry = entry->next)
    tell_due(worker, entry, TT_CONNECT_READY, ready_is_due);
  for (struct tt_entry *entry = worker->entries; entry; entry = entry->next) {
    if (active(entry) && entry->told_ready && entry->peer_ready)
      finish(worker, entry);
    else if (active(entry) && tt_deadline_passed(entry->deadline))
      time_out(worker, entry);
  }
  for (struct tt_entry **link = &worker->entries; *link;) {
    if (active(*link))
      link = &(*link)->next;
    else
      *link = (*link)->next;
  }
}

/* ---- The thread ---- */

static void sleep_until_work(struct tt_connect *connect, uint64_t ns)
{
  uint64_t at = tt_timer_ns() + ns;
  struct timespec until = {.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)};
  pthread_cond_timedwait(&connect->work, &connect->lock, &until);
}

/* Moves what is new to the worker. Called with the lock held; drops and takes it to read letters. */
static void take_new(struct worker *worker)
{
  struct tt_connect *connect = worker->connect;
  struct tt_letter *letters = connect->letters;
  connect->letters = NULL;
  connect->letters_end = &connect->letters;
  pthread_mutex_unlock(&connect->lock);
  while (letters) {
    struct tt_letter *next = letters->next;
    open_letter(worker, letters);
    free(letters);
    letters = next;
  }
  pthread_mutex_lock(&connect->lock);
  while (connect->fresh) {
    struct tt_entry *entry = connect->fresh;
    connect->fresh = entry->next;
    entry->next = worker->entries;
    worker->entries = entry;
  }
}

static void *work(void *arg)
{
  struct worker worker = {.connect = arg};
  struct tt_connect *connect = arg;
  uint64_t poll_ns = POLL_MIN_NS;
  bool lingered = false;
  tt_log_set_device(connect->env->peers[connect->env->rank].device);
  pthread_mutex_lock(&connect->lock);
  while (!connect->stop) {
    worker.moved = worker.polling = false;
    if (connect->letters || connect->fresh) {
      take_new(&worker);
      lingered = false;
    }
    if (!worker.entries) {
      if (connect->letters || connect->fresh) continue;
      if (lingered) break;
      sleep_until_work(connect, LINGER_NS);
      lingered = true;
      continue;
    }
    pthread_mutex_unlock(&connect->lock);
    pass(&worker);
    pthread_mutex_lock(&connect->lock);
    connect->passes++;
    if (worker.moved) poll_ns = POLL_MIN_NS;
    if (worker.moved || connect->letters || connect->fresh || connect->stop) continue;
    sleep_until_work(connect, worker.polling ? poll_ns : LINGER_NS);
    poll_ns = TT_MIN(2 * poll_ns, POLL_MAX_NS);
  }
  connect->running = false;
  pthread_mutex_unlock(&connect->lock);
  return NULL;
}

ncclResult_t tt_connect_wake_worker(struct tt_connect *connect)
{
  if (connect->running || connect->stop) {
    pthread_cond_signal(&connect->work);
    return ncclSuccess;
  }
  /* The last worker, if any, is past its last use of the lock, so this does not wait for it. */
  if (connect->joinable) pthread_join(connect->worker, NULL);
  connect->joinable = false;
  TT_TRY(tt_thread_start(&connect->worker, "tutti-connect", work, connect));
  connect->joinable = connect->running = true;
  return ncclSuccess;
}

void tt_connect_stop_worker(struct tt_connect *connect)
{
  pthread_mutex_lock(&connect->lock);
  connect->stop = true;
  pthread_cond_signal(&connect->work);
  bool join = connect->joinable;
  connect->joinable = false;
  pthread_mutex_unlock(&connect->lock);
  if (join) pthread_join(connect->worker, NULL);
}
