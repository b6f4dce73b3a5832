/* Teams: one file for all copies, with a page in front that counts who has come how far, so that steps out of order
 * show. The multicast address is no memory: it is the team, whose copies works then read and write one by one. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

/* The first page. */
struct head {
  uint32_t devices;
  uint64_t bytes; /* of a copy */
  _Atomic uint32_t added, bound;
};

/* A mapping, of one rank or of several of a process. */
struct mapping {
  _Atomic int refs;
  int fd;
  size_t bytes;
  struct head *head;
};

struct tt_device_team {
  struct mapping *mapping;
  bool added, bound;
  void *own;
  void *copies[FAKE_DEVICES];
};

static _Atomic int failing_step = FAKE_TEAM_NONE, failing_device;
static _Atomic bool cannot;

__attribute__((visibility("default"))) void fake_fail_team(enum fake_team_step step, int device)
{
  atomic_store(&failing_device, device);
  atomic_store(&failing_step, (int)step);
}

__attribute__((visibility("default"))) void fake_forbid_teams(bool forbid)
{
  atomic_store(&cannot, forbid);
}

static ncclResult_t may_fail(const struct tt_device_context *context, enum fake_team_step step)
{
  if (atomic_load(&failing_step) != (int)step || atomic_load(&failing_device) != context->device) return ncclSuccess;
  return TT_FAIL(ncclSystemError, "fake device %d was told to fail", context->device);
}

/* As GPUs have it: sums of all types but the smallest, smallest and largest of integers and of the small floats. */
ncclResult_t fake_team_check(int index, struct tt_device_multicast *out)
{
  const uint8_t sum = 1u << ncclSum, all = 1u << ncclSum | 1u << ncclMin | 1u << ncclMax;
  *out = (struct tt_device_multicast){.size = out->size, .fabric = fake_has_fabric()};
  if (atomic_load(&cannot)) snprintf(out->why, sizeof out->why, "fake device %d may not", index);
  for (int type = ncclInt32; type <= ncclBfloat16; type++)
    out->reduces[type] = type == ncclFloat32 || type == ncclFloat64 ? sum : all;
  return ncclSuccess;
}

static size_t copy_bytes(uint64_t bytes)
{
  return (size_t)(bytes + PAGE - 1) / PAGE * PAGE;
}

/* Takes over the descriptor. */
static ncclResult_t map(int fd, const struct tt_device_team_config *config, struct tt_device_team **out)
{
  struct tt_device_team *team = calloc(1, sizeof *team);
  struct mapping *mapping = calloc(1, sizeof *mapping);
  size_t bytes = PAGE + config->devices * copy_bytes(config->bytes);
  void *head = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (team == NULL || mapping == NULL || head == MAP_FAILED) {
    if (head != MAP_FAILED) munmap(head, bytes);
    close(fd);
    free(team);
    free(mapping);
    return TT_FAIL(ncclSystemError, "cannot map the %zu bytes of a team", bytes);
  }
  *mapping = (struct mapping){.refs = 1, .fd = fd, .bytes = bytes, .head = head};
  team->mapping = mapping;
  fake_totals.memories++;
  *out = team;
  return ncclSuccess;
}

ncclResult_t fake_team_create(struct tt_device_context *context, const struct tt_device_team_config *config,
                              struct tt_device_export *out, struct tt_device_team **team)
{
  *team = NULL;
  *out = (struct tt_device_export){.kind = config->kind, .fd = -1, .bytes = config->bytes};
  TT_TRY(may_fail(context, FAKE_TEAM_CREATE));
  if (config->devices > FAKE_DEVICES)
    return TT_FAIL(ncclInvalidArgument, "a team of %u devices is larger than %d", config->devices, FAKE_DEVICES);
  int fd = memfd_create("tutti-fake-team", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)(PAGE + config->devices * copy_bytes(config->bytes))) != 0) {
    if (fd >= 0) close(fd);
    return TT_FAIL(ncclSystemError, "no memory for a team");
  }
  TT_TRY(map(fd, config, team));
  struct mapping *mapping = (*team)->mapping;
  mapping->head->devices = config->devices;
  mapping->head->bytes = config->bytes;
  if (config->kind == TT_EXPORT_LOCAL) memcpy(out->handle, &mapping, sizeof mapping);
  if (config->kind == TT_EXPORT_FD) out->fd = dup(fd);
  ncclResult_t result = config->kind == TT_EXPORT_FABRIC ? fake_fabric_name(fd, out->handle) : ncclSuccess;
  if (result == ncclSuccess) return ncclSuccess;
  fake_team_leave(context, *team);
  *team = NULL;
  return result;
}

ncclResult_t fake_team_import(struct tt_device_context *context, const struct tt_device_team_config *config,
                              const struct tt_device_export *in, struct tt_device_team **team)
{
  int fd = -1;
  *team = NULL;
  TT_TRY(may_fail(context, FAKE_TEAM_IMPORT));
  if (in->kind == TT_EXPORT_LOCAL) {
    struct mapping *mapping;
    memcpy(&mapping, in->handle, sizeof mapping);
    TT_TRY(TT_CALLOC(team, 1));
    mapping->refs++;
    (*team)->mapping = mapping;
    fake_totals.memories++;
  } else {
    if (in->kind == TT_EXPORT_FD) fd = dup(in->fd);
    if (in->kind == TT_EXPORT_FABRIC) fd = fake_fabric_open(in->handle);
    if (fd < 0) return TT_FAIL(ncclSystemError, "fake device %d cannot import a team", context->device);
    TT_TRY(map(fd, config, team));
  }
  const struct head *head = (*team)->mapping->head;
  if (head->devices == config->devices && head->bytes == config->bytes) return ncclSuccess;
  fake_team_leave(context, *team);
  *team = NULL;
  return TT_FAIL(ncclInvalidArgument, "fake device %d imports a team of another size", context->device);
}

ncclResult_t fake_team_add(struct tt_device_context *context, struct tt_device_team *team)
{
  TT_TRY(may_fail(context, FAKE_TEAM_ADD));
  struct head *head = team->mapping->head;
  uint32_t index = atomic_fetch_add(&head->added, 1);
  if (team->added || index >= head->devices)
    return TT_FAIL(ncclInternalError, "fake device %d is added to a team that is full", context->device);
  team->added = true;
  for (uint32_t d = 0; d < head->devices; d++)
    team->copies[d] = (unsigned char *)head + PAGE + d * copy_bytes(head->bytes);
  team->own = team->copies[index];
  return ncclSuccess;
}

ncclResult_t fake_team_bind(struct tt_device_context *context, struct tt_device_team *team, void **own, void **all)
{
  TT_TRY(may_fail(context, FAKE_TEAM_BIND));
  struct head *head = team->mapping->head;
  if (atomic_load(&head->added) != head->devices || team->bound)
    return TT_FAIL(ncclInternalError, "fake device %d binds its copy when %u of %u devices are in the team",
                   context->device, atomic_load(&head->added), head->devices);
  head->bound++;
  team->bound = true;
  *own = team->own;
  *all = team;
  return ncclSuccess;
}

void fake_team_leave(struct tt_device_context *context, struct tt_device_team *team)
{
  struct mapping *mapping = team->mapping;
  (void)context;
  free(team);
  fake_totals.memories--;
  if (--mapping->refs > 0) return;
  munmap(mapping->head, mapping->bytes);
  close(mapping->fd);
  free(mapping);
}

ncclResult_t fake_team_place(struct tt_work *work)
{
  struct tt_device_team *team = work->multicast;
  if (work->shared == NULL && team == NULL) return ncclSuccess;
  if (work->shared == NULL || team == NULL || work->shared != team->own)
    return TT_FAIL(ncclInternalError, "a work's own copy and multicast address do not belong together");
  const struct head *head = team->mapping->head;
  if (atomic_load(&head->bound) != head->devices)
    return TT_FAIL(ncclInternalError, "a work is launched when %u of %u copies are bound", atomic_load(&head->bound),
                   head->devices);
  work->copies = team->copies;
  fake_totals.multicast++;
  fake_totals.multicast_channels = (int)work->nchannels;
  fake_totals.multicast_chunk = work->channels[0].geometry.chunk * tt_datatype_bytes(work->reduction.datatype);
  return ncclSuccess;
}
