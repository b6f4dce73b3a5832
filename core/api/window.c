/* Windows: ncclCommWindowRegister, its end, and ncclWinGetUserPtr.
 *
 * A window that is promised to be used alike on all ranks (NCCL_WIN_COLL_SYMMETRIC), in memory of a device, is mapped
 * by all ranks of its host, which takes part of all of them: so it is a job of the call's group, which several ranks of
 * one thread need. Any other window is noted, and needs nobody. */
#include <stdlib.h>
#include "api/check.h"
#include "api/export.h"
#include "api/group.h"
#include "api/handle.h"
#include "api/register.h"
#include "api/turn.h"
#include "base/check.h"
#include "base/param.h"
#include "transport/user_buffers.h"

static const char function[] = "ncclCommWindowRegister";

struct window_job {
  struct tt_job job; /* holds its communicator */
  uint64_t turn;
  bool ended; /* the turn */
  void *buffer;
  size_t bytes;
  ncclWindow_t *out;
};

static void end_turn(struct window_job *window)
{
  if (!window->ended) tt_turn_end(window->job.comm);
  window->ended = true;
}

static ncclResult_t keep(struct ncclComm *comm, void *buffer, size_t bytes, struct tt_user_window *mapped,
                         ncclWindow_t *out)
{
  void *handle;
  TT_TRY(tt_register_add(comm, TT_REGISTERED_WINDOW, buffer, bytes, mapped, &handle));
  *out = handle;
  return ncclSuccess;
}

static ncclResult_t run_window(struct tt_job *job)
{
  struct window_job *window = (struct window_job *)job;
  struct ncclComm *comm = job->comm;
  struct tt_user_window *mapped = NULL;
  tt_log_set_device(comm->device_index);
  ncclResult_t result = tt_turn_wait(function, comm, window->turn);
  if (result == ncclSuccess)
    result = tt_user_window_open(comm->env, comm->bootstrap, window->buffer, window->bytes, &mapped);
  end_turn(window);
  if (result == ncclSuccess) result = keep(comm, window->buffer, window->bytes, mapped, window->out);
  if (result != ncclSuccess && mapped != NULL) tt_user_window_close(comm->env, mapped);
  return result;
}

static void drop_window(struct tt_job *job)
{
  end_turn((struct window_job *)job);
  tt_handle_let_go(job->comm);
  free(job);
}

/* Hands the job to the group, whatever becomes of that. A call that is refused has no turn. */
static ncclResult_t start_window(struct ncclComm *comm, void *buffer, size_t bytes, ncclWindow_t *out)
{
  struct window_job *window;
  TT_TRY(TT_CALLOC(&window, 1));
  *window = (struct window_job){
      .job = {.run = run_window, .drop = drop_window, .comm = comm, .blocking = comm->config.blocking != 0},
      .buffer = buffer,
      .bytes = bytes,
      .out = out};
  ncclResult_t result = window->job.blocking ? ncclSuccess : tt_group_join(comm);
  if (result == ncclSuccess) result = tt_group_add_job(&window->job);
  if (result == ncclSuccess)
    window->turn = tt_turn_take(comm);
  else
    free(window);
  return result;
}

static bool is_mapped(const struct ncclComm *comm, int flags)
{
  return flags == NCCL_WIN_COLL_SYMMETRIC && tt_param_int(TT_PARAM_NCCL_WIN_ENABLE) && comm->env != NULL &&
         comm->env->users != NULL;
}

static ncclResult_t register_mapped(struct ncclComm *comm, void *buffer, size_t bytes, ncclWindow_t *out)
{
  tt_group_start();
  ncclResult_t made = tt_group_note(start_window(comm, buffer, bytes, out));
  if (made != ncclSuccess) tt_handle_let_go(comm); /* else the job does */
  ncclResult_t ended = tt_group_end();
  return made != ncclSuccess ? made : ended;
}

static ncclResult_t check_flags(int flags)
{
  if (flags == NCCL_WIN_DEFAULT || flags == NCCL_WIN_COLL_SYMMETRIC) return ncclSuccess;
  return TT_FAIL(ncclInvalidArgument,
                 "ncclCommWindowRegister: winFlags is %d; allowed are NCCL_WIN_DEFAULT (%d) and "
                 "NCCL_WIN_COLL_SYMMETRIC (%d)",
                 flags, NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC);
}

TT_EXPORT(ncclResult_t, ncclCommWindowRegister,
          (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags))
{
  TT_TRY(tt_api_check_pointer(function, "win", win));
  *win = NULL;
  TT_TRY(tt_register_check(function, buff, size));
  TT_TRY(check_flags(winFlags));
  TT_TRY(tt_handle_hold_own(function, comm));
  ncclResult_t result = tt_api_check_ready(function, comm);
  if (result == ncclSuccess && is_mapped(comm, winFlags)) return register_mapped(comm, buff, size, win);
  if (result == ncclSuccess) result = keep(comm, buff, size, NULL, win);
  tt_handle_let_go(comm);
  return result;
}

TT_EXPORT(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win))
{
  TT_TRY(tt_handle_hold_own("ncclCommWindowDeregister", comm));
  ncclResult_t result =
      win != NULL ? tt_register_drop("ncclCommWindowDeregister", comm, TT_REGISTERED_WINDOW, win) : ncclSuccess;
  tt_handle_let_go(comm);
  return result;
}

/* Of NCCL 2.29 and later, and in none of this version's headers. */
TT_EXPORT(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void **outUserPtr))
{
  TT_TRY(tt_api_check_pointer("ncclWinGetUserPtr", "win", win));
  TT_TRY(tt_api_check_pointer("ncclWinGetUserPtr", "outUserPtr", outUserPtr));
  TT_TRY(tt_handle_hold("ncclWinGetUserPtr", comm));
  ncclResult_t result = tt_register_find("ncclWinGetUserPtr", comm, TT_REGISTERED_WINDOW, win, outUserPtr);
  tt_handle_let_go(comm);
  return result;
}
