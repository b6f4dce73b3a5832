/* A device by hand. The content of a message follows from its step. */
#include "device.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static int pool_units;
static bool run_freely;
static const struct tt_proxy_direct *direct;

void ends_use_pool(int units)
{
  pool_units = units;
}

void ends_run_freely(bool yes)
{
  run_freely = yes;
}

void ends_use_direct(const struct tt_proxy_direct *how)
{
  direct = how;
  run_freely = how != NULL;
}

static size_t payload(uint64_t step, size_t slot)
{
  return (size_t)(step * 131 % (slot - TT_SLOT_HEADER + 1));
}

static unsigned char byte_of(uint64_t step, size_t i)
{
  return (unsigned char)(step * 17 + i * 3);
}

static void free_slot_for_recv(struct end *end, uint64_t step)
{
  unsigned slot = (unsigned)(step % TT_SLOTS);
  /* Scattered: message k lands where message 7 - k would. */
  unsigned other = TT_SLOTS - 1 - slot;
  if (end->mode == TT_FIFO_OFFSET)
    end->fifo[slot] =
        (struct tt_conn_fifo){.mode = TT_FIFO_OFFSET, .offset = (int32_t)(other * SIMPLE_SLOT), .size = SIMPLE_SLOT};
  if (end->mode == TT_FIFO_POINTER)
    end->fifo[slot] = (struct tt_conn_fifo){
        .mode = TT_FIFO_POINTER, .pointer = end->elsewhere + other * SIMPLE_SLOT, .size = SIMPLE_SLOT};
}

static unsigned char *place(struct end *end, uint64_t step, int protocol)
{
  unsigned slot = (unsigned)(step % TT_SLOTS), other = TT_SLOTS - 1 - slot;
  if (pool_units) return end->fifo[slot].pointer;
  if (end->mode == TT_FIFO_OFFSET) return end->conn.slots[protocol] + other * SIMPLE_SLOT;
  if (end->mode == TT_FIFO_POINTER) return end->elsewhere + other * SIMPLE_SLOT;
  return end->conn.slots[protocol] + slot * end->conn.slot_bytes[protocol];
}

struct tt_proxy_conn_config end_config(struct end *end, void *comm)
{
  return (struct tt_proxy_conn_config){.send = end->send,
                                       .comm = comm,
                                       .conn = &end->conn,
                                       .peer = end->send ? 7 : 3,
                                       .tag = 3,
                                       .max_bytes = 1 << 20,
                                       .pool_units = pool_units,
                                       .free_running = run_freely,
                                       .direct = end->direct,
                                       .label = "NET/Fake/0"};
}

static void make_slots(struct end *end)
{
  const size_t page = 4096, lead = TT_SLOT_HEADER;
  if (!direct) {
    end->conn.slots[TT_PROTO_SIMPLE] = malloc(TT_SLOTS * SIMPLE_SLOT);
    return;
  }
  end->direct = *direct;
  end->direct.flush = direct->flush && !end->send;
  end->direct.bytes = (lead + TT_SLOTS * SIMPLE_SLOT + page - 1) / page * page;
  end->direct.memory = aligned_alloc(page, end->direct.bytes);
  memset(end->direct.memory, 0, end->direct.bytes);
  fake_device_memory(end->direct.memory, end->direct.bytes);
  end->conn.slots[TT_PROTO_SIMPLE] = (unsigned char *)end->direct.memory + lead;
}

void ends_open(struct end ends[2], const struct fake_mood *mood, uint64_t first, int send_mode, int recv_mode)
{
  void *comms[2];
  fake_open(mood, &comms[0], &comms[1]);
  for (int e = 0; e < 2; e++) {
    struct end *end = &ends[e];
    memset(end, 0, sizeof(*end));
    end->send = e == 0;
    end->mode = end->send ? send_mode : recv_mode;
    end->first = first;
    if (!run_freely) {
      end->conn.slots[TT_PROTO_LL] = malloc(TT_SLOTS * LL_SLOT);
      end->conn.slot_bytes[TT_PROTO_LL] = LL_SLOT;
    }
    make_slots(end);
    end->conn.slot_bytes[TT_PROTO_SIMPLE] = SIMPLE_SLOT;
    end->elsewhere = malloc(TT_SLOTS * SIMPLE_SLOT);
    end->head = end->tail = first;
    end->conn.head = &end->head;
    end->conn.tail = &end->tail;
    end->conn.fifo = end->fifo;
    end->conn.flags = TT_CONN_PROXIED | (pool_units ? TT_CONN_POOLED : 0);
    end->conn.step = first;
    for (uint64_t i = 0; !end->send && i < TT_SLOTS; i++) free_slot_for_recv(end, i);
    ck_assert_int_eq(tt_proxy_create(fake_net(), end->send ? 3 : 7, &end->proxy), ncclSuccess);
    struct tt_proxy_conn_config config = end_config(end, comms[e]);
    ck_assert_int_eq(tt_proxy_conn_create(end->proxy, &config, &end->proxied), ncclSuccess);
  }
}

void ends_close(struct end ends[2])
{
  for (int e = 0; e < 2; e++) {
    tt_proxy_destroy(ends[e].proxy);
    free(ends[e].conn.slots[TT_PROTO_LL]);
    free(ends[e].direct.memory ? ends[e].direct.memory : ends[e].conn.slots[TT_PROTO_SIMPLE]);
    free(ends[e].elsewhere);
  }
}

bool device_send(struct end *end, int protocol)
{
  uint64_t step = end->conn.step;
  if ((int64_t)(step - atomic_load_explicit(&end->head, memory_order_acquire)) >= TT_SLOTS) return false;
  unsigned slot = (unsigned)(step % TT_SLOTS);
  unsigned char *message = place(end, step, protocol);
  struct tt_slot_header header = {.bytes = payload(step, end->conn.slot_bytes[protocol]), .step = step};
  memcpy(message, &header, sizeof(header));
  for (size_t i = 0; i < header.bytes; i++) message[TT_SLOT_HEADER + i] = byte_of(step, i);
  if (!pool_units) end->fifo[slot] = (struct tt_conn_fifo){.mode = end->mode};
  end->fifo[slot].size = (int64_t)(TT_SLOT_HEADER + header.bytes);
  if (end->mode == TT_FIFO_OFFSET) end->fifo[slot].offset = (int32_t)(message - end->conn.slots[protocol]);
  if (end->mode == TT_FIFO_POINTER) end->fifo[slot].pointer = message;
  end->conn.step++;
  atomic_store_explicit(&end->tail, end->conn.step, memory_order_release);
  return true;
}

bool device_recv(struct end *end, int protocol)
{
  uint64_t step = end->conn.step;
  if ((int64_t)(atomic_load_explicit(&end->tail, memory_order_acquire) - step) <= 0) return false;
  unsigned char *message = place(end, step, protocol);
  struct tt_slot_header header;
  memcpy(&header, message, sizeof(header));
  bool good = header.step == step && header.bytes == payload(step, end->conn.slot_bytes[protocol]) &&
              end->fifo[step % TT_SLOTS].size == (int64_t)(TT_SLOT_HEADER + header.bytes);
  for (size_t i = 0; good && i < header.bytes; i++) good = message[TT_SLOT_HEADER + i] == byte_of(step, i);
  if (!good) end->wrong_data = true;
  memset(message, 0xee, TT_SLOT_HEADER);
  free_slot_for_recv(end, step);
  end->conn.step++;
  atomic_store_explicit(&end->head, end->conn.step, memory_order_release);
  return true;
}
