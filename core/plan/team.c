/* See team.h. */
#include "plan/team.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "plan/comm.h"
#include "transport/memory.h"

/* What a rank tells the others behind each step. Plain bytes. */
struct step {
  struct tt_device_export shown; /* of who creates a team, behind the first step; the descriptor is its own */
  int32_t result;
  int32_t reserved;
};

struct maker {
  struct ncclComm *comm;
  struct tt_device_team_config config;
  int leader;         /* the machine's first rank */
  struct step *steps; /* of all ranks */
  struct tt_team *team;
  int fd; /* the leader's, which it hands out; -1: none */
};

static struct tt_device_context *context_of(const struct maker *m)
{
  return m->comm->context->handle;
}

/* Who has failed is heard by the others, instead of being waited for. */
static ncclResult_t meet(struct maker *m, ncclResult_t mine, const char *doing)
{
  struct ncclComm *comm = m->comm;
  m->steps[comm->rank].result = mine;
  TT_TRY(tt_bootstrap_all_gather(comm->bootstrap, m->steps, sizeof(*m->steps)));
  TT_TRY(mine);
  for (int r = 0; r < comm->nranks; r++)
    if (m->steps[r].result != ncclSuccess)
      return TT_FAIL((ncclResult_t)m->steps[r].result,
                     "rank %d (%s) could not %s the memory with a multicast address, as its log says; "
                     "NCCL_NVLS_ENABLE=0 does without",
                     r, comm->env->peers[r].host, doing);
  return ncclSuccess;
}

/* How the team goes from its first rank to the others. */
static void plan_team(struct maker *m, size_t bytes)
{
  const struct ncclComm *comm = m->comm;
  const struct tt_peer_info *peers = comm->env->peers;
  bool one_process = true, one_host = true;
  m->config = (struct tt_device_team_config){.size = sizeof(m->config), .bytes = bytes};
  m->leader = -1;
  for (int r = 0; r < comm->nranks; r++) {
    if (comm->node[r] != comm->node[comm->rank]) continue;
    if (m->leader < 0) m->leader = r;
    one_process &= peers[r].process == peers[m->leader].process;
    one_host &= peers[r].node == peers[m->leader].node;
    m->config.devices++;
  }
  m->config.kind = one_process ? TT_EXPORT_LOCAL : one_host ? TT_EXPORT_FD : TT_EXPORT_FABRIC;
}

static ncclResult_t create(struct maker *m)
{
  struct ncclComm *comm = m->comm;
  struct tt_device_export *shown = &m->steps[comm->rank].shown;
  if (comm->rank != m->leader) return ncclSuccess;
  TT_TRY(comm->device->team_create(context_of(m), &m->config, shown, &m->team->handle));
  if (shown->kind == TT_EXPORT_FD) m->fd = shown->fd;
  if (shown->kind != m->config.kind || (m->fd < 0 && shown->kind == TT_EXPORT_FD))
    return TT_FAIL(ncclInternalError, "device %s exports a team as kind %u, not %u", comm->device->name, shown->kind,
                   m->config.kind);
  tt_slabs_offer(comm->env->slabs, m->fd, shown->bytes);
  return ncclSuccess;
}

static ncclResult_t import(struct maker *m)
{
  struct ncclComm *comm = m->comm;
  struct tt_device_export shown = m->steps[m->leader].shown;
  const bool near = comm->env->peers[m->leader].process == comm->env->peers[comm->rank].process;
  uint64_t bytes;
  if (comm->rank == m->leader) return ncclSuccess;
  if (shown.kind != m->config.kind)
    return TT_FAIL(ncclRemoteError, "rank %d shows a team as kind %u, not %u", m->leader, shown.kind, m->config.kind);
  const bool fetched = shown.kind == TT_EXPORT_FD && !near;
  if (shown.kind != TT_EXPORT_FD) shown.fd = -1;
  if (fetched) TT_TRY(tt_peer_memory_fetch(comm->env->memory, m->leader, TT_SLAB_OFFERED, &shown.fd, &bytes));
  ncclResult_t result = comm->device->team_import(context_of(m), &m->config, &shown, &m->team->handle);
  if (fetched) close(shown.fd);
  return result;
}

static ncclResult_t make(struct maker *m)
{
  const struct tt_device *device = m->comm->device;
  struct tt_team *team = m->team;
  TT_TRY(meet(m, create(m), "create"));
  TT_TRY(meet(m, import(m), "import"));
  TT_TRY(meet(m, device->team_add(context_of(m), team->handle), "add its device to"));
  return meet(m, device->team_bind(context_of(m), team->handle, &team->own, &team->all), "bind its copy of");
}

ncclResult_t tt_team_join(struct ncclComm *comm, size_t bytes, struct tt_team *team)
{
  struct maker m = {.comm = comm, .team = team, .fd = -1};
  *team = (struct tt_team){0};
  TT_TRY(TT_CALLOC(&m.steps, (size_t)comm->nranks));
  plan_team(&m, bytes);
  ncclResult_t result = make(&m);
  tt_slabs_offer(comm->env->slabs, -1, 0);
  if (m.fd >= 0) close(m.fd);
  if (result != ncclSuccess) tt_team_leave(comm, team);
  free(m.steps);
  return result;
}

void tt_team_leave(struct ncclComm *comm, struct tt_team *team)
{
  if (team->handle != NULL) comm->device->team_leave(comm->context->handle, team->handle);
  *team = (struct tt_team){0};
}
