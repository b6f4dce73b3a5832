/* The LL protocol: lines of 16 bytes, {data, flag, data, flag} of 32 bits each. Data and flag are stored together, so
 * the receiver needs no counter and no fence, and can take a message while it is being written. Where a proxy moves the
 * slots the lines are the same, but messages are published by the counter, whole.
 *
 * Line 0 carries no data of the user: in the first slot of an operation the hash of the signature mixed with the
 * slot's bytes, else those bytes. Slots begin at multiples of 16 bytes.
 *
 * The flag is the step, counted from 1, and wraps to 1 a little before 2^32: so it is never 0, and untouched memory is
 * never taken for data. */
#include "kernels/host/executor.h"

#include <string.h>

#define LINE_BYTES 16
#define LINE_DATA 8
/* A multiple of TT_SLOTS, so that a slot sees each flag once a period. */
#define FLAG_PERIOD UINT64_C(0xfffffff8)
/* Every slot is rewritten wholly in the eight steps that end each 2^31, more often than flags repeat; so no line can
 * keep a flag long enough to be believed again. */
#define CLEAN_MASK UINT64_C(0x7ffffff8)

static uint32_t flag_of(uint64_t step)
{
  return (uint32_t)(step % FLAG_PERIOD) + 1;
}

static _Atomic uint64_t *line_at(unsigned char *slot, uint64_t line)
{
  return (_Atomic uint64_t *)(void *)(slot + TT_SLOT_HEADER + line * LINE_BYTES);
}

static void store_line(unsigned char *slot, uint64_t line, uint64_t data, uint32_t flag, memory_order order)
{
  _Atomic uint64_t *words = line_at(slot, line);
  atomic_store_explicit(&words[0], (data & UINT32_MAX) | (uint64_t)flag << 32, order);
  atomic_store_explicit(&words[1], data >> 32 | (uint64_t)flag << 32, order);
}

/* Takes a line if both its flags are there; flag 0 means any. */
static bool load_line(unsigned char *slot, uint64_t line, uint64_t *data, uint32_t flag, memory_order order)
{
  _Atomic uint64_t *words = line_at(slot, line);
  uint64_t low = atomic_load_explicit(&words[0], order);
  uint64_t high = atomic_load_explicit(&words[1], order);
  if (flag != 0 && ((uint32_t)(low >> 32) != flag || (uint32_t)(high >> 32) != flag)) return false;
  *data = (low & UINT32_MAX) | high << 32;
  return true;
}

static uint64_t data_lines(size_t bytes)
{
  return (bytes + LINE_DATA - 1) / LINE_DATA;
}

size_t tt_host_ll_bytes(size_t bytes)
{
  return (size_t)(1 + data_lines(bytes)) * LINE_BYTES;
}

/* What line 0 says. */
static uint64_t line_zero(const struct tt_host_run *run, const struct tt_host_operand *operand)
{
  return operand->first ? run->signature_hash ^ (operand->bytes * UINT64_C(0x9e3779b97f4a7c15)) : operand->bytes;
}

void tt_host_ll_clean(const struct tt_host_operand *operand)
{
  const struct tt_conn *conn = operand->conn;
  if ((operand->step & CLEAN_MASK) != CLEAN_MASK || conn->slots[TT_PROTO_LL] == NULL) return;
  if (conn->flags & TT_CONN_POOLED) return; /* nobody looks at flags, and the slot is another one each time */
  unsigned char *slot = conn->slots[TT_PROTO_LL] + operand->step % TT_SLOTS * conn->slot_bytes[TT_PROTO_LL];
  uint64_t lines = (conn->slot_bytes[TT_PROTO_LL] - TT_SLOT_HEADER) / LINE_BYTES;
  for (uint64_t line = 0; line < lines; line++)
    store_line(slot, line, 0, flag_of(operand->step - TT_SLOTS), memory_order_relaxed);
}

/* The step says that the header is there. */
static void write_line_header(const struct tt_host_run *run, const struct tt_host_operand *operand, unsigned char *slot)
{
  struct tt_slot_header *header = (struct tt_slot_header *)(void *)slot;
  header->bytes = operand->bytes;
  header->signature = run->work->signature;
  atomic_store_explicit((_Atomic uint64_t *)&header->step, operand->step, memory_order_release);
}

void tt_host_ll_begin(const struct tt_host_run *run, const struct tt_host_operand *operand)
{
  unsigned char *slot = tt_host_slot(run, operand);
  if (operand->conn->flags & TT_CONN_LINES)
    write_line_header(run, operand, slot);
  else if (operand->first || (operand->conn->flags & TT_CONN_PROXIED))
    tt_host_write_header(run, operand, slot);
  store_line(slot, 0, line_zero(run, operand), flag_of(operand->step), memory_order_release);
}

void tt_host_ll_pack(const struct tt_host_run *run, const struct tt_host_operand *operand, size_t offset,
                     const void *data, size_t bytes)
{
  unsigned char *slot = tt_host_slot(run, operand);
  const unsigned char *in = data;
  uint32_t flag = flag_of(operand->step);
  /* A proxy hands the lines on as they lie in memory. */
  memory_order order = operand->conn->flags & TT_CONN_LINES ? memory_order_release : memory_order_relaxed;
  uint64_t line = 1 + offset / LINE_DATA, value;
  for (; bytes >= LINE_DATA; bytes -= LINE_DATA, in += LINE_DATA) {
    memcpy(&value, in, LINE_DATA);
    store_line(slot, line++, value, flag, order);
  }
  if (bytes > 0) {
    value = 0;
    memcpy(&value, in, bytes);
    store_line(slot, line, value, flag, order);
  }
}

/* Line 0 of a message that shares memory has come: is it the message expected? */
static ncclResult_t check_line_zero(const struct tt_host_run *run, const struct tt_host_operand *operand,
                                    uint64_t value)
{
  if (value == line_zero(run, operand)) return ncclSuccess;
  uint64_t bytes = value;
  if (operand->first) { /* the header was stored before line 0 */
    const struct tt_slot_header *header = (const struct tt_slot_header *)(void *)tt_host_slot(run, operand);
    TT_TRY(tt_host_signature_check(run, operand, &header->signature));
    bytes = header->bytes;
  }
  return tt_host_wrong_slot(run, operand, "payload bytes", operand->bytes, bytes);
}

/* A sender that uses Simple where this rank expects LL moves its counter instead of setting flags. */
static ncclResult_t check_protocol(const struct tt_host_run *run, const struct tt_host_operand *operand)
{
  const struct tt_conn *conn = operand->conn;
  if (!operand->first || conn->slots[TT_PROTO_SIMPLE] == NULL) return ncclSuccess;
  if (atomic_load_explicit(conn->tail, memory_order_acquire) <= operand->step) return ncclSuccess;
  /* Or the message has come since, and the counter tells of a later one. */
  if (tt_host_ll_peek(operand)) return ncclSuccess;
  const struct tt_slot_header *header =
      (const void *)(conn->slots[TT_PROTO_SIMPLE] + operand->step % TT_SLOTS * conn->slot_bytes[TT_PROTO_SIMPLE]);
  return tt_host_signature_check(run, operand, &header->signature);
}

bool tt_host_ll_peek(const struct tt_host_operand *operand)
{
  const struct tt_conn *conn = operand->conn;
  uint64_t data;
  if (conn->slots[TT_PROTO_LL] == NULL) return false;
  return load_line(conn->slots[TT_PROTO_LL] + operand->step % TT_SLOTS * conn->slot_bytes[TT_PROTO_LL], 0, &data,
                   flag_of(operand->step), memory_order_acquire);
}

/* Takes line 0, which says whether the rest may be believed. */
static ncclResult_t begin_message(const struct tt_host_run *run, struct tt_host_operand *operand)
{
  bool here = false;
  uint64_t value;
  if (operand->conn->flags & TT_CONN_PROXIED) {
    TT_TRY(tt_host_arrived(run, operand, tt_host_ll_bytes(operand->bytes), &here));
  } else if (load_line(tt_host_slot(run, operand), 0, &value, flag_of(operand->step), memory_order_acquire)) {
    TT_TRY(check_line_zero(run, operand, value));
    here = true;
  } else {
    TT_TRY(check_protocol(run, operand));
  }
  operand->line = here;
  return ncclSuccess;
}

ncclResult_t tt_host_ll_poll(const struct tt_host_run *run, struct tt_host_operand *operand, bool *moved)
{
  if (operand->line == 0) {
    TT_TRY(begin_message(run, operand));
    if (operand->line == 0) return ncclSuccess;
    *moved = true;
  }
  unsigned char *slot = tt_host_slot(run, operand);
  uint32_t flag = operand->conn->flags & TT_CONN_PROXIED ? 0 : flag_of(operand->step);
  uint64_t lines = 1 + data_lines(operand->bytes), value;
  while (operand->line < lines && load_line(slot, operand->line, &value, flag, memory_order_relaxed)) {
    size_t offset = (size_t)(operand->line - 1) * LINE_DATA;
    memcpy(operand->data + offset, &value, TT_MIN(operand->bytes - offset, (size_t)LINE_DATA));
    operand->line++;
    *moved = true;
  }
  operand->ready = operand->line == lines;
  return ncclSuccess;
}

bool tt_host_ready(struct tt_conn *conn, int protocol, bool send, uint64_t step)
{
  struct tt_host_operand operand = {.kind = send ? TT_SEND : TT_RECV, .conn = conn, .step = step};
  if (send) return tt_host_has_room(&operand);
  if (protocol == TT_PROTO_LL && !(conn->flags & TT_CONN_PROXIED)) return tt_host_ll_peek(&operand);
  return atomic_load_explicit(conn->tail, memory_order_acquire) > step;
}
