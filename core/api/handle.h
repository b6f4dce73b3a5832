/* Live handles: which communicators this process has given out, and who uses them right now.
 *
 * A handle is looked up and never dereferenced before it is found, so a freed, foreign or wild one is an error like any
 * other. Who found it holds it until it lets go; who ends a communicator first takes its handle, after which nobody
 * finds it any more, and then waits for those that hold it. So ending one thread's communicator from another thread is
 * safe at any moment.
 *
 * Threads: any. No call takes a lock; only tt_handle_wait waits. */
#ifndef TT_API_HANDLE_H
#define TT_API_HANDLE_H

#include <stdbool.h>
#include "nccl.h"
#include "plan/comm.h"

/* Makes the handle known. Once, when the communicator is made. */
ncclResult_t tt_handle_add(struct ncclComm *comm);
/* Forgets it, when it was taken or never known. Before the communicator is freed. */
void tt_handle_remove(struct ncclComm *comm);
/* Finds and holds; ncclInvalidArgument naming `function` and the handle where it is NULL or not known. */
ncclResult_t tt_handle_hold(const char *function, const struct ncclComm *comm);
/* The same without a word: whether it was found. */
bool tt_handle_try_hold(const struct ncclComm *comm);
/* For all calls that do more than ask: also ncclInvalidUsage where a process before a fork made it. Its threads and
 * locks are that process's, as are its connections and the memory that it shares with other ranks. */
ncclResult_t tt_handle_hold_own(const char *function, const struct ncclComm *comm);
void tt_handle_let_go(const struct ncclComm *comm);
/* Finds, checks the process, and takes: who succeeds is the one to end the communicator. `idle`: not if a thread has
 * calls of it in a group, which is ncclInvalidUsage, or ncclInvalidArgument if it is the library's. */
ncclResult_t tt_handle_take(const char *function, const struct ncclComm *comm, bool idle);
/* The same without a word, and in any case: whether it was found. */
bool tt_handle_try_take(const struct ncclComm *comm);
/* Makes a handle known again that was taken. */
void tt_handle_give_back(const struct ncclComm *comm);
/* Waits until no thread holds a handle that was taken. False if `timeout_ms` was not enough: then the communicator may
 * not be freed. */
bool tt_handle_wait(const struct ncclComm *comm, int timeout_ms);

#endif
