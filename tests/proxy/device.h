/* What a device does on both ends of a connection, by hand, in step with the proxy. */
#ifndef TT_TESTS_PROXY_DEVICE_H
#define TT_TESTS_PROXY_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include "fake_net.h"
#include "proxy/proxy.h"

#define LL_SLOT 256
#define SIMPLE_SLOT 1024

struct end {
  bool send;
  int mode; /* TT_FIFO_* that this end's device uses */
  struct tt_conn conn;
  _Atomic uint64_t head, tail;
  struct tt_conn_fifo fifo[TT_SLOTS];
  struct tt_proxy_direct direct;
  unsigned char *elsewhere; /* for TT_FIFO_POINTER: TT_SLOTS messages */
  struct tt_proxy *proxy;
  struct tt_proxy_conn *proxied;
  uint64_t first;  /* step */
  bool wrong_data; /* what came is not what was sent */
};

/* Ends opened from now on take their slots from a pool of so many; 0: they have slots of their own. */
void ends_use_pool(int units);
/* Ends opened from now on are free running, in Simple. */
void ends_run_freely(bool yes);
/* Ends opened from now on have slots in a device's memory, as `how` says; NULL: in the host's. They run freely. */
void ends_use_direct(const struct tt_proxy_direct *how);
/* Two ends over a fresh wire, each with its own proxy. Steps start at `first`. */
void ends_open(struct end ends[2], const struct fake_mood *mood, uint64_t first, int send_mode, int recv_mode);
void ends_close(struct end ends[2]);
/* The engine's configuration of an end. */
struct tt_proxy_conn_config end_config(struct end *end, void *comm);

/* Does one slot if the connection allows it. */
bool device_send(struct end *end, int protocol);
bool device_recv(struct end *end, int protocol);

#endif
