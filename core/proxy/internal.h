/* What the files of the proxy share. */
#ifndef TT_PROXY_INTERNAL_H
#define TT_PROXY_INTERNAL_H

#include <pthread.h>
#include "proxy/proxy.h"

struct tt_proxy {
  struct tt_net *net;
  int rank;
  pthread_mutex_t lock; /* guards all below, and the connections */
  struct tt_proxy_conn *conns;
  struct tt_proxy_reduce *reduces;
  int nactive;        /* connections and reductions with work left */
  ncclResult_t error; /* the first one */
};

/* `steps` slots of one protocol, up to but not including step `end`. */
struct tt_proxy_operation {
  int protocol;
  uint64_t end;
};

/* A slot on its way. Prepared once, posted when the plugin takes it. */
struct tt_proxy_transfer {
  bool prepared;
  bool registered; /* mhandle belongs to this transfer alone */
  int protocol;
  void *data;
  size_t bytes; /* of the message, or that can be received */
  void *mhandle;
  void *request;
};

struct tt_proxy_conn {
  struct tt_proxy *proxy;
  struct tt_proxy_conn *next, **link;
  struct tt_proxy_conn_config config;
  char label[64];
  bool registered[TT_NUM_PROTOCOLS];
  void *mhandles[TT_NUM_PROTOCOLS];
  struct tt_proxy_operation *operations; /* those not wholly posted, oldest first */
  size_t noperations, capacity;
  uint64_t posted, done, expected; /* steps: done <= posted <= expected */
  bool active;                     /* done != expected */
  struct tt_proxy_transfer transfers[TT_SLOTS];
};

/* Posts and completes what can be. Called with the lock held. */
ncclResult_t tt_proxy_conn_advance(struct tt_proxy_conn *conn, bool *moved);
/* The same for all that reduces. */
ncclResult_t tt_proxy_reduces_progress(struct tt_proxy *proxy, bool *moved);
/* Gives back a transfer's own registration. */
void tt_proxy_transfer_clear(struct tt_proxy_conn *conn, struct tt_proxy_transfer *transfer);

#endif
