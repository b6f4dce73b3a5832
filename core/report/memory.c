/* See memory.h. */
#include "report/memory.h"

#include <stdbool.h>
#include "base/check.h"
#include "base/pool.h"
#include "plan/shared.h"
#include "program/emit.h"

struct memory {
  int connections;                    /* ends that are up */
  size_t protocols[TT_NUM_PROTOCOLS]; /* slots that this rank holds; the other end may hold a connection's */
  size_t buffers;                     /* of all connections, those that are being made included */
  size_t pools;                       /* of the network, from which connections take slots */
  uint64_t spares;                    /* slots beyond a pool's limit that connections needed so far */
  bool busy; /* the proxy was, for as long as a report may take: pools and spares are not known */
  size_t scratch, node, shared;
  size_t work; /* tasks, works and what a group needs while it runs, in use and kept for the next */
};

static void count(void *context, const struct tt_connect_state *state)
{
  struct memory *memory = context;
  if (!state->up) return;
  memory->connections++;
  if (state->connector->bytes == 0) return;
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    if (state->connector->conn.slots[p] != NULL && !(state->connector->conn.flags & TT_CONN_POOLED))
      memory->protocols[p] += TT_SLOTS * state->connector->conn.slot_bytes[p];
}

static void measure(struct ncclComm *comm, struct memory *memory)
{
  *memory = (struct memory){
      .scratch = atomic_load(&comm->scratch_bytes), .node = tt_shared_bytes(comm), .work = tt_pool_bytes(comm->pool)};
  if (comm->connect == NULL) return;
  tt_connect_look(comm->connect, count, memory);
  memory->buffers = tt_connect_bytes(comm->connect);
  memory->shared = tt_shm_used(comm->env->shm);
  struct tt_proxy_state state;
  if (comm->env->proxy == NULL) return;
  memory->busy = !tt_proxy_look(comm->env->proxy, NULL, &state);
  memory->pools = state.pool_bytes;
  memory->spares = state.spares;
}

static size_t total(const struct memory *memory)
{
  return memory->buffers + memory->pools + memory->scratch + memory->node + memory->work;
}

static void write_known(struct tt_writer *writer, const char *key, uint64_t value, bool known)
{
  if (known)
    tt_writer_number(writer, key, value);
  else
    tt_writer_text(writer, key, NULL);
}

void tt_report_memory(struct tt_writer *writer, struct ncclComm *comm)
{
  struct memory memory;
  measure(comm, &memory);
  tt_writer_open(writer, "memory", '{');
  write_known(writer, "bytes", total(&memory), !memory.busy);
  tt_writer_number(writer, "connections", (uint64_t)memory.connections);
  tt_writer_number(writer, "connection_bytes", memory.buffers);
  tt_writer_open(writer, "slot_bytes", '{');
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) tt_writer_number(writer, tt_protocol_name(p), memory.protocols[p]);
  tt_writer_close(writer, '{');
  write_known(writer, "network_pool_bytes", memory.pools, !memory.busy);
  write_known(writer, "network_pool_spares", memory.spares, !memory.busy);
  tt_writer_number(writer, "scratch_bytes", memory.scratch);
  tt_writer_number(writer, "node_bytes", memory.node);
  tt_writer_number(writer, "work_bytes", memory.work);
  tt_writer_number(writer, "shared_with_peers_bytes", memory.shared);
  tt_writer_close(writer, '{');
}

void tt_report_log_memory(struct ncclComm *comm)
{
  struct memory memory;
  if (!tt_log_enabled(TT_LOG_INFO, TT_INIT | TT_ALLOC)) return;
  measure(comm, &memory);
  TT_INFO(TT_INIT | TT_ALLOC,
          "comm %p rank %d nranks %d commId 0x%llx - memory held: %zu bytes: %zu for %d ends of connections (slots of "
          "LL %zu, LL128 %zu, Simple %zu), network pools %zu, scratch %zu, shared by the node %zu, work %zu",
          (void *)comm, comm->rank, comm->nranks, (unsigned long long)comm->id_hash, total(&memory), memory.buffers,
          memory.connections, memory.protocols[TT_PROTO_LL], memory.protocols[TT_PROTO_LL128],
          memory.protocols[TT_PROTO_SIMPLE], memory.pools, memory.scratch, memory.node, memory.work);
}
