/* A thread that drives a proxy whose connections are free running, so that works on streams move without any call. */
#ifndef TT_PROXY_THREAD_H
#define TT_PROXY_THREAD_H

#include "base/doorbell.h"
#include "proxy/proxy.h"

struct tt_proxy_thread;

struct tt_proxy_thread_config {
  struct tt_proxy *proxy;
  struct tt_doorbell *bell; /* this thread's alone to sleep on; rung by whoever gives it work */
  int crowd;                /* as for tt_waiter_init */
  int device;               /* in the log */
  /* The proxy has failed: called once, on the thread, which then does no more. */
  void (*failed)(void *context, ncclResult_t result);
  /* Whether it is to do no more, since the process ends; asked often. */
  bool (*over)(void *context);
  void *context;
};
/* What `config` points to outlives the thread. */
ncclResult_t tt_proxy_thread_start(const struct tt_proxy_thread_config *config, struct tt_proxy_thread **out);
/* Something was launched, so that there will be work soon. Any thread. */
void tt_proxy_thread_wake(struct tt_proxy_thread *thread);
/* Waits for its end. NULL is allowed. */
void tt_proxy_thread_end(struct tt_proxy_thread *thread);

#endif
