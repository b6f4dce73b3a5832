/* LL over a network, for devices that look at nothing but lines (TT_CONN_LINES): towards the device the proxy is the
 * other end of a connection of lines. docs/devices.md says what these are: flags, line 0, and when slots are cleaned.
 *
 * A network may tear the eight bytes of data and flag. So what comes goes to a buffer beside the slots first, and from
 * there into its slot in whole words, once all of it is there. Sending, no counter says that a slot is full: its header
 * names the step and the bytes, and when each of their lines has the step's flag the message is complete. */
#include "proxy/internal.h"

#include <string.h>
#include <sys/mman.h>
#include "base/check.h"

#define LINE_BYTES 16
#define LINE_DATA 8
#define FLAG_PERIOD UINT64_C(0xfffffff8)
#define CLEAN_MASK UINT64_C(0x7ffffff8)

static uint32_t flag_of(uint64_t step)
{
  return (uint32_t)(step % FLAG_PERIOD) + 1;
}

static unsigned char *slot_of(const struct tt_proxy_conn *conn, uint64_t step)
{
  const struct tt_conn *device = conn->config.conn;
  return device->slots[TT_PROTO_LL] + step % TT_SLOTS * device->slot_bytes[TT_PROTO_LL];
}

static _Atomic uint64_t *words_of(unsigned char *slot)
{
  return (_Atomic uint64_t *)(void *)(slot + TT_SLOT_HEADER);
}

/* The header of a slot is complete when it names the step. */
static _Atomic uint64_t *step_word(unsigned char *slot)
{
  return (_Atomic uint64_t *)(void *)(slot + offsetof(struct tt_slot_header, step));
}

static uint64_t payload_of(unsigned char *slot)
{
  return atomic_load_explicit((_Atomic uint64_t *)(void *)(slot + offsetof(struct tt_slot_header, bytes)),
                              memory_order_relaxed);
}

static size_t capacity(const struct tt_proxy_conn *conn)
{
  return tt_conn_capacity(conn->config.conn->slot_bytes[TT_PROTO_LL], TT_PROTO_LL);
}

/* Words of a message's lines, line 0 among them. */
static uint64_t words_for(uint64_t bytes)
{
  return 2 + 2 * ((bytes + LINE_DATA - 1) / LINE_DATA);
}

bool tt_proxy_lines_wanted(const struct tt_proxy_conn_config *config)
{
  return config->free_running && config->conn->slots[TT_PROTO_LL] != NULL;
}

ncclResult_t tt_proxy_lines_create(struct tt_proxy_conn *conn)
{
  struct tt_proxy_lines *lines = &conn->lines;
  uint64_t first = conn->done;
  lines->filled = first;
  lines->ahead = conn->config.ahead > 0 ? TT_MIN(conn->config.ahead, TT_SLOTS) : TT_SLOTS;
  if (conn->config.send) {
    /* Fresh memory must not name a step that is still to come. */
    for (int i = 0; i < TT_SLOTS; i++)
      atomic_store_explicit(step_word(slot_of(conn, first + (uint64_t)i)), first - 1, memory_order_relaxed);
    return ncclSuccess;
  }
  lines->bytes = (size_t)lines->ahead * conn->config.conn->slot_bytes[TT_PROTO_LL];
  lines->memory = mmap(NULL, lines->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (lines->memory != MAP_FAILED) return ncclSuccess;
  lines->memory = NULL;
  return TT_FAIL(ncclSystemError, "%zu bytes for lines from rank %d: %m; lower NCCL_LL_BUFFSIZE", lines->bytes,
                 conn->config.peer);
}

void tt_proxy_lines_free(struct tt_proxy_conn *conn)
{
  if (conn->lines.memory) munmap(conn->lines.memory, conn->lines.bytes);
  conn->lines.memory = NULL;
}

/* A slot that names a later step was used again since. */
uint64_t tt_proxy_lines_begun(const struct tt_proxy_conn *conn, uint64_t from)
{
  uint64_t step = from;
  while (step - from < TT_SLOTS &&
         !tt_proxy_before(atomic_load_explicit(step_word(slot_of(conn, step)), memory_order_acquire), step))
    step++;
  return step;
}

/* Whether the message of step `filled` is complete; where it is not, the next look goes on where this one ends. */
static bool is_complete(struct tt_proxy_conn *conn)
{
  struct tt_proxy_lines *lines = &conn->lines;
  unsigned char *slot = slot_of(conn, lines->filled);
  if (atomic_load_explicit(step_word(slot), memory_order_acquire) != lines->filled) return false;
  uint64_t bytes = payload_of(slot), count = words_for(bytes);
  if (bytes > capacity(conn)) return true; /* which is found when it is to be sent */
  for (const _Atomic uint64_t *words = words_of(slot); lines->word < count; lines->word++)
    if (atomic_load_explicit(&words[lines->word], memory_order_acquire) >> 32 != flag_of(lines->filled)) return false;
  return true;
}

uint64_t tt_proxy_lines_filled(struct tt_proxy_conn *conn)
{
  struct tt_proxy_lines *lines = &conn->lines;
  while (lines->filled - conn->done < TT_SLOTS && is_complete(conn)) {
    lines->filled++;
    lines->word = 0;
  }
  return lines->filled;
}

static ncclResult_t bad(const struct tt_proxy_conn *conn, uint64_t step, const char *what)
{
  return TT_FAIL(ncclInternalError, "rank %d %s rank %d via %s: the lines of step %llu %s", conn->proxy->rank,
                 conn->config.send ? "to" : "from", conn->config.peer, conn->label, (unsigned long long)step, what);
}

ncclResult_t tt_proxy_lines_prepare(struct tt_proxy_conn *conn, uint64_t step, struct tt_proxy_transfer *transfer)
{
  size_t slot_bytes = conn->config.conn->slot_bytes[TT_PROTO_LL];
  transfer->protocol = TT_PROTO_LL;
  transfer->mhandle = conn->mhandles[TT_PROTO_LL];
  if (conn->config.send) {
    unsigned char *slot = slot_of(conn, step);
    uint64_t bytes = payload_of(slot);
    if (bytes > capacity(conn)) return bad(conn, step, "are more than its slot holds");
    transfer->data = slot;
    transfer->bytes = TT_SLOT_HEADER + words_for(bytes) * sizeof(uint64_t);
  } else {
    transfer->data = conn->lines.memory + step % (uint64_t)conn->lines.ahead * slot_bytes;
    transfer->bytes = slot_bytes;
  }
  transfer->prepared = true;
  return ncclSuccess;
}

/* So that no line of long ago is believed when its flag comes again. */
static void clean(const struct tt_proxy_conn *conn, uint64_t step, unsigned char *slot)
{
  size_t count = (conn->config.conn->slot_bytes[TT_PROTO_LL] - TT_SLOT_HEADER) / LINE_BYTES * 2;
  _Atomic uint64_t *words = words_of(slot);
  for (size_t w = 0; w < count; w++)
    atomic_store_explicit(&words[w], (uint64_t)flag_of(step - TT_SLOTS) << 32, memory_order_relaxed);
}

ncclResult_t tt_proxy_lines_publish(struct tt_proxy_conn *conn, uint64_t step, const void *message, int size)
{
  unsigned char *slot = slot_of(conn, step);
  struct tt_slot_header header;
  memcpy(&header, message, sizeof(header));
  if (header.step != step || header.bytes > capacity(conn) ||
      (uint64_t)size != TT_SLOT_HEADER + words_for(header.bytes) * sizeof(uint64_t))
    return bad(conn, step, "have a header of another message");
  uint64_t count = words_for(header.bytes), word;
  const unsigned char *from = (const unsigned char *)message + TT_SLOT_HEADER;
  _Atomic uint64_t *words = words_of(slot);
  if ((step & CLEAN_MASK) == CLEAN_MASK) clean(conn, step, slot);
  memcpy(slot, &header, sizeof(header));
  for (uint64_t w = 0; w < count; w++) {
    memcpy(&word, from + w * sizeof(word), sizeof(word));
    if (word >> 32 != flag_of(step)) return bad(conn, step, "have flags of another one");
    atomic_store_explicit(&words[w], word, memory_order_release);
  }
  return ncclSuccess;
}
