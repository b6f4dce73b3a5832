/* Connections that share comms and slots: messages of many senders find their connections, whatever the order in which
 * they come, with groups of any size and pools of any; and who shares waits for nobody else.
 *
 * All of it twice: with messages that are announced, and with devices of memory of their own that ask for slots. */
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "fake_wires.h"
#include "proxy/link.h"
#include "proxy/proxy.h"

#define SENDERS 16
#define SIMPLE_SLOT 1024
#define LL_SLOT 256
#define PATIENCE 120 /* seconds; a guard against hangs only */

/* Devices ask for slots, and find these elsewhere than the proxy does. */
static bool asking;
static int mapped, ever_mapped; /* slabs */
#define ELSEWHERE ((uintptr_t)1 << 46)

static ncclResult_t map(void *context, void *memory, size_t bytes, void **at)
{
  ck_assert_ptr_eq(context, &mapped);
  ck_assert_uint_eq((uintptr_t)memory % 4096, 0);
  ck_assert_uint_eq(bytes % 4096, 0);
  mapped++;
  ever_mapped++;
  *at = (void *)((uintptr_t)memory ^ ELSEWHERE);
  return ncclSuccess;
}

static void unmap(void *context, void *memory, size_t bytes)
{
  ck_assert_ptr_eq(context, &mapped);
  ck_assert_uint_eq(((uintptr_t)memory | bytes) % 4096, 0);
  mapped--;
}

static unsigned char *place_of(const struct tt_conn_fifo *entry)
{
  return asking ? (unsigned char *)((uintptr_t)entry->pointer ^ ELSEWHERE) : entry->pointer;
}

/* One end of a connection, with its device. */
struct end {
  bool send, wrong;
  int tag; /* the sender's number */
  struct tt_conn conn;
  _Atomic uint64_t head, tail;
  struct tt_conn_fifo fifo[TT_SLOTS + 1]; /* behind it: what was asked for */
  struct tt_proxy *proxy;
  struct tt_proxy_conn *proxied;
  uint64_t expected; /* steps announced */
  _Alignas(64) unsigned char exists[64];
};

/* Senders with a proxy each, and a receiver. */
struct world {
  int senders;
  uint64_t first;
  struct end ends[SENDERS][2]; /* receiving, sending */
  struct tt_proxy *proxies[SENDERS + 1];
  struct tt_proxy_link *links[SENDERS][2];
  int nlinks;
  time_t began;
};

struct shape {
  int senders, per_link, max_recvs, pool;
  uint64_t first;
};

static void open_end(struct world *world, struct end *end, int sender, int link, int pool)
{
  end->tag = sender;
  end->head = end->tail = end->conn.step = world->first;
  end->conn.head = &end->head;
  end->conn.tail = &end->tail;
  end->conn.fifo = end->fifo;
  end->conn.flags = TT_CONN_PROXIED | TT_CONN_POOLED;
  end->conn.slots[TT_PROTO_LL] = asking ? NULL : end->exists;
  end->conn.slots[TT_PROTO_SIMPLE] = end->exists;
  end->conn.slot_bytes[TT_PROTO_LL] = asking ? 0 : LL_SLOT;
  end->conn.slot_bytes[TT_PROTO_SIMPLE] = SIMPLE_SLOT;
  end->expected = world->first;
  end->proxy = world->proxies[end->send ? sender : SENDERS];
  struct tt_proxy_conn_config config = {.send = end->send,
                                        .link = tt_proxy_link_retain(world->links[link][end->send]),
                                        .conn = &end->conn,
                                        .peer = end->send ? SENDERS : sender,
                                        .tag = sender,
                                        .max_bytes = 1 << 20,
                                        .label = "NET/Wires/0",
                                        .pool_units = pool,
                                        .free_running = asking};
  if (asking) config.map = (struct tt_proxy_pool_map){.map = map, .unmap = unmap, .context = &mapped};
  ck_assert_int_eq(tt_proxy_conn_create(end->proxy, &config, &end->proxied), ncclSuccess);
}

static void close_end(struct end *end)
{
  tt_proxy_conn_destroy(end->proxied);
  end->proxied = NULL;
}

static void open_world(struct world *world, const struct shape *shape, const struct wires_mood *mood)
{
  memset(world, 0, sizeof *world);
  wires_reset(mood);
  mapped = ever_mapped = 0;
  world->senders = shape->senders;
  world->first = shape->first;
  world->began = time(NULL);
  for (int p = 0; p <= SENDERS; p++) ck_assert_int_eq(tt_proxy_create(wires_net(), p, &world->proxies[p]), ncclSuccess);
  for (int s = 0; s < shape->senders; s++) {
    if (s % shape->per_link == 0) {
      void *comms[2];
      wires_open(&comms[1], &comms[0]);
      for (int e = 0; e < 2; e++)
        ck_assert_int_eq(
            tt_proxy_link_create(wires_net(), e == 1, comms[e], shape->max_recvs, &world->links[world->nlinks][e]),
            ncclSuccess);
      world->nlinks++;
    }
    for (int e = 0; e < 2; e++) {
      world->ends[s][e].send = e == 1;
      open_end(world, &world->ends[s][e], s, world->nlinks - 1, shape->pool);
    }
  }
}

static void close_world(struct world *world)
{
  for (int l = 0; l < world->nlinks; l++)
    for (int e = 0; e < 2; e++) tt_proxy_link_release(world->links[l][e]);
  for (int p = 0; p <= SENDERS; p++) tt_proxy_destroy(world->proxies[p]);
  struct wires_count count = wires_counts();
  ck_assert_int_eq(mapped, 0);
  ck_assert_int_eq(count.faults, 0);
  ck_assert_int_eq(count.open, 0);
  ck_assert_int_eq(count.registered, 0);
}

/* ---- Devices ---- */

/* Zero, odd, and as large as a slot. */
static size_t payload(int tag, uint64_t step)
{
  unsigned hash = (unsigned)(step * 2654435761u) ^ (unsigned)tag * 40503u;
  if (hash % 5 == 0) return 0;
  if (hash % 5 == 1) return SIMPLE_SLOT - TT_SLOT_HEADER;
  return hash / 5 % (SIMPLE_SLOT - TT_SLOT_HEADER + 1);
}

static unsigned char byte_of(int tag, uint64_t step, size_t i)
{
  return (unsigned char)((unsigned)tag * 91 + step * 17 + i * 3);
}

static bool device_send(struct end *end)
{
  uint64_t step = end->conn.step;
  if (step == end->expected || (int64_t)(step - atomic_load(&end->head)) >= TT_SLOTS) return false;
  struct tt_conn_fifo *entry = &end->fifo[step % TT_SLOTS];
  unsigned char *message = place_of(entry);
  struct tt_slot_header header = {.bytes = payload(end->tag, step), .step = step};
  memcpy(message, &header, sizeof header);
  for (size_t i = 0; i < header.bytes; i++) message[TT_SLOT_HEADER + i] = byte_of(end->tag, step, i);
  entry->size = (int64_t)(TT_SLOT_HEADER + header.bytes);
  atomic_store(&end->tail, ++end->conn.step);
  return true;
}

static bool device_recv(struct end *end)
{
  uint64_t step = end->conn.step;
  if ((int64_t)(atomic_load(&end->tail) - step) <= 0) return false;
  const struct tt_conn_fifo *entry = &end->fifo[step % TT_SLOTS];
  unsigned char *message = place_of(entry);
  struct tt_slot_header header;
  memcpy(&header, message, sizeof header);
  bool good = header.step == step && header.bytes == payload(end->tag, step) &&
              entry->size == (int64_t)(TT_SLOT_HEADER + header.bytes);
  for (size_t i = 0; good && i < header.bytes; i++) good = message[TT_SLOT_HEADER + i] == byte_of(end->tag, step, i);
  if (!good) end->wrong = true;
  memset(message, 0xee, SIMPLE_SLOT);
  atomic_store(&end->head, ++end->conn.step);
  return true;
}

static void device(struct end *end)
{
  end->send ? device_send(end) : device_recv(end);
}

static void expect(struct end *end, uint64_t steps)
{
  ck_assert_int_eq(tt_proxy_expect(end->proxied, TT_PROTO_SIMPLE, steps), ncclSuccess);
  end->expected += steps;
  if (asking) atomic_store(tt_conn_asked(&end->conn), end->expected);
}

/* Of devices that ask the proxy does not know when they have all. */
static bool is_through(struct world *world, int proxy)
{
  bool through = true;
  for (int s = 0; s < world->senders; s++)
    for (int e = 0; e < 2; e++) {
      struct end *end = &world->ends[s][e];
      struct tt_proxy_state state;
      if (!end->proxied || end->proxy != world->proxies[proxy]) continue;
      ck_assert(tt_proxy_look(end->proxy, end->proxied, &state));
      through &= state.done == end->expected && end->conn.step == end->expected;
    }
  return through;
}

static bool drive(struct world *world, int proxy)
{
  bool moved, idle;
  ck_assert_int_eq(tt_proxy_progress(world->proxies[proxy], &moved, &idle), ncclSuccess);
  ck_assert_int_lt(time(NULL) - world->began, PATIENCE);
  return asking ? is_through(world, proxy) : idle;
}

/* Everybody does something. Whether all is through. */
static bool turn(struct world *world)
{
  bool idle = true;
  for (int s = 0; s < world->senders; s++)
    for (int e = 0; e < 2; e++) device(&world->ends[s][e]);
  for (int s = 0; s < world->senders; s++) idle &= drive(world, s);
  return drive(world, SENDERS) && idle;
}

static void check_data(const struct world *world)
{
  for (int s = 0; s < world->senders; s++) {
    ck_assert(!world->ends[s][0].wrong);
    ck_assert_uint_eq(world->ends[s][0].conn.step, world->ends[s][1].conn.step);
    ck_assert_uint_eq(world->ends[s][0].conn.step, world->ends[s][0].expected);
  }
}

static uint64_t spares(const struct world *world, int proxy)
{
  struct tt_proxy_state state;
  ck_assert(tt_proxy_look(world->proxies[proxy], NULL, &state));
  return state.spares;
}

/* ---- Random orders ---- */

static void run_random(const struct shape *shape, const struct wires_mood *mood)
{
  static struct world world;
  unsigned seed = mood->seed + 1000;
  open_world(&world, shape, mood);
  for (int round = 0; round < 3; round++) {
    uint64_t left[SENDERS][2];
    for (int s = 0; s < shape->senders; s++) left[s][0] = left[s][1] = rand_r(&seed) % 3 == 0 ? 1 : rand_r(&seed) % 20;
    for (bool over = false; !over;) {
      int s = rand_r(&seed) % shape->senders, e = rand_r(&seed) % 2;
      over = true;
      for (int i = 0; i < shape->senders; i++) over = over && left[i][0] + left[i][1] == 0;
      uint64_t part = left[s][e] == 0 ? 0 : 1 + rand_r(&seed) % left[s][e];
      if (part > 0 && rand_r(&seed) % 4 == 0) {
        expect(&world.ends[s][e], part);
        left[s][e] -= part;
      }
      if (rand_r(&seed) % 2) device(&world.ends[s][e]);
      if (rand_r(&seed) % 2) drive(&world, e ? s : SENDERS);
    }
    while (!turn(&world)) continue;
    check_data(&world);
  }
  struct wires_count count = wires_counts();
  ck_assert_int_eq(count.sends, count.messages);
  ck_assert_int_le(count.largest, shape->max_recvs);
  if (!asking && shape->max_recvs > 1 && shape->per_link > 2 && shape->pool >= 16)
    ck_assert_int_gt(count.grouped, 0);
  else if (asking || shape->max_recvs == 1 || shape->per_link == 1)
    ck_assert_int_eq(count.grouped, 0);
  close_world(&world);
}

START_TEST(random_orders)
{
  asking = _i;
  static const struct shape shapes[] = {{16, 16, 8, 64, 0}, {16, 16, 8, 1, 5},     {16, 4, 8, 7, UINT64_MAX - 30},
                                        {12, 12, 2, 3, 1},  {9, 9, 64, 64, 0},     {8, 1, 8, 2, 0},
                                        {8, 8, 1, 2, 0},    {16, 16, 3, 16, 1000}, {2, 2, 8, 1, UINT32_MAX - 9}};
  for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    struct wires_mood mood = {.max_recvs = shapes[i].max_recvs, .null_percent = 30, .slow_percent = 60, .seed = i};
    run_random(&shapes[i], &mood);
    mood.null_percent = mood.slow_percent = 0;
    run_random(&shapes[i], &mood);
  }
}
END_TEST

/* One message of each sender, all expected before any comes: as few requests as can be. */
START_TEST(all_at_once)
{
  asking = _i;
  static struct world world;
  const struct shape shape = {16, 16, 8, 64, 0};
  open_world(&world, &shape, &(struct wires_mood){.max_recvs = 8, .slow_percent = 50, .seed = 3});
  for (int s = 0; s < 16; s++) expect(&world.ends[s][0], 1);
  drive(&world, SENDERS);
  struct wires_count count = wires_counts();
  ck_assert_int_eq(count.recvs, asking ? 16 : 2);
  ck_assert_int_eq(count.messages, 16);
  for (int s = 15; s >= 0; s--) expect(&world.ends[s][1], 1); /* the last is first */
  while (!turn(&world)) continue;
  check_data(&world);
  close_world(&world);
}
END_TEST

/* A message that may join a group is refused; then more are expected, so that it goes by itself. The last of them joins
 * no group before its turn: there is no slot for it yet, in the pool or among those of the connection. */
static void refuse_and_follow(int pool, uint64_t more)
{
  static struct world world;
  const struct shape shape = {2, 2, 8, pool, 0};
  open_world(&world, &shape, &(struct wires_mood){.max_recvs = 8, .null_percent = 100, .seed = 1});
  expect(&world.ends[0][0], 1);
  drive(&world, SENDERS);
  ck_assert_int_eq(wires_counts().recvs, 0);
  expect(&world.ends[0][0], more);
  wires_take_all();
  drive(&world, SENDERS);
  ck_assert_int_eq(wires_counts().faults, 0);
  ck_assert_int_eq(wires_counts().recvs, (long)more);
  expect(&world.ends[0][1], 1 + more);
  while (!turn(&world)) continue;
  check_data(&world);
  close_world(&world);
}

START_TEST(refused_and_followed)
{
  asking = false;
  if (_i)
    refuse_and_follow(64, TT_SLOTS);
  else
    refuse_and_follow(1, 1);
}
END_TEST

/* ---- Who shares waits for nobody else ---- */

/* The second sender begins when the first one is through, which only the network can tell it. The receiver expects
 * both, the second one first. */
static void second_waits_for_first(const struct shape *shape, uint64_t first_steps, uint64_t second_steps)
{
  static struct world world;
  open_world(&world, shape, &(struct wires_mood){.max_recvs = shape->max_recvs, .seed = 1});
  expect(&world.ends[1][0], second_steps);
  expect(&world.ends[0][0], first_steps);
  expect(&world.ends[0][1], first_steps);
  while (!drive(&world, 0)) turn(&world);
  ck_assert_uint_eq(world.ends[1][0].conn.step, 0);
  expect(&world.ends[1][1], second_steps);
  while (!turn(&world)) continue;
  check_data(&world);
  close_world(&world);
}

START_TEST(order_of_the_users)
{
  asking = _i;
  static const uint64_t steps[] = {1, 9, 30};
  for (int a = 0; a < 3; a++)
    for (int b = 0; b < 3; b++)
      for (int per_link = 1; per_link <= 2; per_link++)
        for (int pool = 1; pool <= 3; pool += 2)
          second_waits_for_first(&(struct shape){2, per_link, 8, pool, 0}, steps[a], steps[b]);
}
END_TEST

/* A sender's slots: the first receiver's turn comes when the second one has all. Both connections are of one proxy. */
START_TEST(order_of_the_receivers)
{
  asking = _i;
  static struct world world;
  const struct shape shape = {2, 1, 8, 1, 0};
  open_world(&world, &shape, &(struct wires_mood){.max_recvs = 8, .seed = 1});
  struct end *other = &world.ends[1][1];
  /* The second sender's end moves to the first one's proxy. */
  close_end(other);
  void *comms[2];
  wires_open(&comms[1], &comms[0]);
  close_end(&world.ends[1][0]);
  for (int e = 0; e < 2; e++) {
    tt_proxy_link_release(world.links[1][e]);
    ck_assert_int_eq(tt_proxy_link_create(wires_net(), e == 1, comms[e], 8, &world.links[1][e]), ncclSuccess);
  }
  struct tt_proxy *own = world.proxies[1];
  world.proxies[1] = world.proxies[0];
  for (int e = 0; e < 2; e++) open_end(&world, &world.ends[1][e], 1, 1, 1);
  world.proxies[1] = own;

  expect(&world.ends[0][1], 20);
  expect(other, 20);
  expect(&world.ends[1][0], 20);
  while (world.ends[1][0].conn.step != 20) turn(&world);
  ck_assert_uint_eq(world.ends[0][0].conn.step, 0);
  ck_assert_uint_gt(spares(&world, 0), 0);
  expect(&world.ends[0][0], 20);
  while (!turn(&world)) continue;
  check_data(&world);
  close_world(&world);
}
END_TEST

/* Users serve ranks in one order: then a pool of one slot is enough for everybody. */
START_TEST(no_spares_in_turn)
{
  asking = _i;
  static struct world world;
  const struct shape shape = {16, 1, 1, 1, 0};
  open_world(&world, &shape, &(struct wires_mood){.max_recvs = 1, .seed = 1});
  for (int s = 0; s < 16; s++)
    for (int e = 0; e < 2; e++) expect(&world.ends[s][e], 10);
  while (!turn(&world)) continue;
  check_data(&world);
  struct tt_proxy_state state;
  ck_assert(tt_proxy_look(world.proxies[SENDERS], NULL, &state));
  if (asking) { /* spares, which a machine that is slow may seem to need, stay */
    uint64_t more = 0;
    for (int p = 0; p <= SENDERS; p++) more += spares(&world, p);
    ck_assert_uint_eq((uint64_t)ever_mapped, SENDERS + 1 + more);
    ck_assert_uint_eq(state.pool_bytes, 4096 * (1 + state.spares));
  } else {
    ck_assert_uint_le(state.pool_bytes, SIMPLE_SLOT + 64);
  }
  close_world(&world);
}
END_TEST

/* Who does not ask gets nothing, and nothing is received for it; others have all slots. */
START_TEST(nothing_unasked)
{
  static struct world world;
  const struct shape shape = {16, 16, 8, 64, 7};
  asking = true;
  open_world(&world, &shape, &(struct wires_mood){.max_recvs = 8, .seed = 1});
  const int before = ever_mapped;
  for (int i = 0; i < 10; i++) turn(&world);
  ck_assert_int_eq(wires_counts().recvs, 0);
  for (int s = 0; s < 16; s++) ck_assert_uint_eq(world.ends[s][1].head, 7 - (uint64_t)TT_SLOTS);
  for (int e = 0; e < 2; e++) expect(&world.ends[3][e], 20);
  for (int i = 0; i < 3; i++) drive(&world, SENDERS);
  ck_assert_int_ge(wires_counts().recvs, 2);
  while (!turn(&world)) continue;
  check_data(&world);
  ck_assert_int_eq(wires_counts().recvs, 20);
  for (int s = 0; s < 16; s++)
    if (s != 3) ck_assert_uint_eq(world.ends[s][1].head, 7 - (uint64_t)TT_SLOTS);
  ck_assert_int_eq(ever_mapped, before);
  close_world(&world);
}
END_TEST

/* At a standstill slabs are mapped while devices wait, as many as wait, and are used again. */
START_TEST(spares_of_devices)
{
  static struct world world;
  const struct shape shape = {16, 1, 1, 1, 0};
  struct tt_proxy_state state;
  asking = true;
  open_world(&world, &shape, &(struct wires_mood){.max_recvs = 1, .seed = 1});
  for (int round = 0; round < 3; round++) {
    for (int s = 0; s < 16; s++) expect(&world.ends[s][0], 5);
    for (int s = 15; s >= 0; s--) { /* a sender begins when the one after it is through */
      expect(&world.ends[s][1], 5);
      while (world.ends[s][0].conn.step != world.ends[s][0].expected) turn(&world);
    }
    while (!turn(&world)) continue;
    check_data(&world);
    ck_assert(tt_proxy_look(world.proxies[SENDERS], NULL, &state));
    ck_assert_uint_gt(state.spares, 0);
    ck_assert_uint_le(state.spares, 15);
    ck_assert_uint_le(state.pool_bytes, 16 * 4096);
  }
  close_world(&world);
}
END_TEST

/* ---- Leaving ---- */

/* One of those that share a comm leaves with messages on their way; the network may still read and write its slots. */
static void leave(bool send, int pool, unsigned seed)
{
  static struct world world;
  const struct shape shape = {4, 4, 8, pool, 0};
  open_world(&world, &shape, &(struct wires_mood){.max_recvs = 8, .slow_percent = 70, .seed = seed});
  for (int s = 0; s < 4; s++)
    for (int e = 0; e < 2; e++) expect(&world.ends[s][e], 6);
  for (unsigned i = 0; i < 1 + seed % 7; i++) turn(&world);
  close_end(&world.ends[0][send]);
  if (send) { /* and its proxy with it */
    tt_proxy_destroy(world.proxies[0]);
    ck_assert_int_eq(tt_proxy_create(wires_net(), 0, &world.proxies[0]), ncclSuccess);
  }
  for (int i = 0; i < 100; i++) {
    for (int s = 1; s < 4; s++)
      for (int e = 0; e < 2; e++) device(&world.ends[s][e]);
    for (int s = 0; s < 4; s++) drive(&world, s);
    drive(&world, SENDERS);
  }
  for (int s = 1; s < 4; s++) ck_assert(!world.ends[s][0].wrong);
  close_world(&world);
}

START_TEST(leaving)
{
  asking = _i;
  for (int send = 0; send < 2; send++)
    for (int pool = 1; pool <= 16; pool *= 4)
      for (unsigned seed = 0; seed < 7; seed++) leave(send, pool, seed);
}
END_TEST

/* The slots that the network may still write are nobody else's. */
START_TEST(left_slots_are_left_alone)
{
  asking = _i;
  static struct world world;
  const struct shape shape = {2, 2, 8, 8, 0};
  open_world(&world, &shape, &(struct wires_mood){.max_recvs = 8, .seed = 1});
  for (int s = 0; s < 2; s++)
    for (int e = 0; e < 2; e++) expect(&world.ends[s][e], 6);
  drive(&world, SENDERS); /* all eight slots wait for messages */
  ck_assert_int_eq(wires_counts().messages, 8);
  close_end(&world.ends[0][0]);
  for (int s = 1; s >= 0; s--) /* the messages of the one that is left come first, and are not read */
    for (int i = 0; i < 50; i++) {
      device(&world.ends[s][1]);
      drive(&world, s);
      drive(&world, SENDERS);
    }
  while (world.ends[1][0].conn.step != 6) {
    for (int e = 0; e < 2; e++) device(&world.ends[1][e]);
    for (int p = 0; p < 2; p++) drive(&world, p);
    drive(&world, SENDERS);
  }
  ck_assert(!world.ends[1][0].wrong);
  close_world(&world);
}
END_TEST

/* Nor is a spare, whose registration is its own. */
START_TEST(left_spares_stay_registered)
{
  asking = _i;
  static struct world world;
  const struct shape shape = {2, 2, 8, 1, 0};
  open_world(&world, &shape, &(struct wires_mood){.max_recvs = 8, .seed = 1});
  for (int e = 0; e < 2; e++) expect(&world.ends[1][e], 6);
  drive(&world, SENDERS);
  for (int e = 0; e < 2; e++) expect(&world.ends[0][e], 6);
  while (spares(&world, SENDERS) == 0) drive(&world, SENDERS);
  for (int i = 0; i < 3; i++) drive(&world, SENDERS);
  ck_assert_int_eq(wires_counts().messages, 2);
  close_end(&world.ends[0][0]);
  while (world.ends[1][0].conn.step != 6) {
    for (int s = 0; s < 2; s++) device(&world.ends[s][1]);
    device(&world.ends[1][0]);
    for (int s = 0; s < 2; s++) drive(&world, s);
    drive(&world, SENDERS);
  }
  ck_assert(!world.ends[1][0].wrong);
  close_world(&world);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("proxy_shared");
  TCase *tc = tcase_create("shared");
  tcase_set_timeout(tc, 600);
  tcase_add_loop_test(tc, random_orders, 0, 2);
  tcase_add_loop_test(tc, all_at_once, 0, 2);
  tcase_add_loop_test(tc, refused_and_followed, 0, 2);
  tcase_add_loop_test(tc, order_of_the_users, 0, 2);
  tcase_add_loop_test(tc, order_of_the_receivers, 0, 2);
  tcase_add_loop_test(tc, no_spares_in_turn, 0, 2);
  tcase_add_test(tc, nothing_unasked);
  tcase_add_test(tc, spares_of_devices);
  tcase_add_loop_test(tc, leaving, 0, 2);
  tcase_add_loop_test(tc, left_slots_are_left_alone, 0, 2);
  tcase_add_loop_test(tc, left_spares_stay_registered, 0, 2);
  suite_add_tcase(suite, tc);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
