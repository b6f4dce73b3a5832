/* A conformance suite for net plugins, written against tutti/net.h and tutti/counters.h alone.
 *
 * A clause is one rule of the ABI. It runs in two fresh processes, sides 0 and 1, each with the plugin loaded and
 * started, which talk over a socket pair to exchange handles and to keep step. A clause ends by returning (passed), by
 * fail() or by skip(). Everything has a deadline; a call of the plugin that does not return is named. */
#ifndef NETABI_H
#define NETABI_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tutti/net.h"

/* ---- adapter.c: the plugin, whatever its version, as the suite calls it ---- */

struct net {
  int abi;
  const void *plugin; /* the exported struct */
  const char *(*name)(void);
  const char *(*missing)(void); /* the first required member that is NULL, or NULL */
  ncclResult_t (*init)(void **ctx);
  ncclResult_t (*finalize)(void *ctx); /* does nothing before v11 */
  ncclResult_t (*devices)(int *count);
  ncclResult_t (*properties)(int dev, ncclNetProperties_v12_t *props); /* members of later versions get good values */
  ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **comm);
  ncclResult_t (*connect)(void *ctx, int dev, void *handle, void **comm);
  ncclResult_t (*accept)(void *listen, void **comm);
  ncclResult_t (*reg)(void *comm, void *data, size_t bytes, int type, void **mhandle);
  ncclResult_t (*dereg)(void *comm, void *mhandle);
  ncclResult_t (*isend)(void *comm, void *data, size_t bytes, int tag, void *mhandle, void **request);
  ncclResult_t (*irecv)(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request);
  ncclResult_t (*test)(void *request, int *done, int *sizes);
  ncclResult_t (*close_send)(void *comm);
  ncclResult_t (*close_recv)(void *comm);
  ncclResult_t (*close_listen)(void *comm);
  /* NULL where the plugin or the version has none */
  ncclResult_t (*iflush)(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
  ncclResult_t (*consumed)(void *comm, int n, void *request);
  ncclResult_t (*vdevice)(int *dev, const int *devs, int count);
};

#define OLDEST_ABI 6
#define NEWEST_ABI 12
/* Finds the struct of that version in an opened library; false if it is not exported. */
bool net_find(void *library, int abi, struct net *net);

/* ---- side.c: what clauses are written with. Everything here fails the clause by itself ---- */

extern struct net net; /* the plugin of this process */
extern void *context;
extern int side;      /* 0 or 1 */
extern int device;    /* the one that is used */
extern int max_recvs; /* of that device */
extern const char *plugin_path;
extern bool fuse; /* use devices 0 and 1 as one */

__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void skip(const char *format, ...);

void side_begin(int index, int peer_fd, int report_fd, int deadline_s);
void load_plugin(int abi);
int promised_requests(void);           /* that a comm allows in flight, by the plugin's version */
void *plugin_symbol(const char *name); /* NULL: it is not exported */
void init_plugin(void);                /* init, devices, properties */
void final_plugin(void);
int count_fds(void);
uint64_t now_ms(void);

/* The other side. */
void tell(const void *data, size_t bytes);
void hear(void *data, size_t bytes);
bool heard(void); /* the other side has told something, or is at meet() */
void meet(void);  /* returns when both are here */

/* CALL(isend, comm, ...): calls the plugin, named for the watchdog, and fails unless it succeeds. TRY gives the result.
 */
extern const char *_Atomic calling; /* for the watchdog */
ncclResult_t called(ncclResult_t result);
#define TRY(member, ...) (atomic_store(&calling, #member), called(net.member(__VA_ARGS__)))
#define CALL(member, ...)                                                                                              \
  do {                                                                                                                 \
    ncclResult_t call_result_ = TRY(member, __VA_ARGS__);                                                              \
    if (call_result_ != ncclSuccess)                                                                                   \
      fail("%s returned %d (%s:%d)", #member, (int)call_result_, __FILE_NAME__, __LINE__);                             \
  } while (0)

/* A deadline for loops that poll: while (patience("waiting for ...")) ... fails when it is over, and naps at times. */
struct patience {
  uint64_t end;
  unsigned rounds;
};
struct patience patience_start(void);
void patience_spend(struct patience *patience, const char *what);

/* Connections: each has a send comm to the other side and a receive comm from it. */
struct connection {
  void *listen, *send, *recv;
  char mine[NCCL_NET_HANDLE_MAXSIZE], theirs[NCCL_NET_HANDLE_MAXSIZE];
};
void connect_all(struct connection *connections, int count);
void close_all(struct connection *connections, int count);
void close_sender(void *comm);
void close_receiver(void *comm);

/* Memory with guard bytes on both sides. It is registered with a comm when a request first uses it there, and
 * deregistered before either goes. Any thread. */
char *buffer_new(size_t bytes);
void buffer_check(const char *data, size_t bytes, const char *what); /* guards untouched */
void buffer_free(char *data);
/* A pattern in which no two places look alike, so that a shift, a cut and a mix-up show. */
void pattern_fill(char *data, size_t bytes, uint64_t seed);
void pattern_check(const char *data, size_t bytes, uint64_t seed, const char *what);

/* `data` lies in a buffer of buffer_new. One attempt; NULL if the plugin had no room. Fails if *request is not written.
 */
void *post_send(void *comm, char *data, size_t bytes, int tag);
void *post_recv(void *comm, int n, char **data, size_t *sizes, int *tags);
void *post_recv1(void *comm, char *data, size_t bytes, int tag);
/* Repeated until there is room; nothing else is tested meanwhile. */
void *must_send(void *comm, char *data, size_t bytes, int tag);
void *must_recv1(void *comm, char *data, size_t bytes, int tag);
bool test_done(void *request, int *sizes);
void wait_done(void *request, int *sizes, const char *what);

/* ---- clauses ---- */

struct clause {
  const char *name;
  void (*run)(void);
  bool bare; /* run before init */
  const char *rule;
};
extern const struct clause setup_clauses[], data_clauses[], group_clauses[], flow_clauses[], failure_clauses[],
    life_clauses[], counters_clauses[]; /* each ends with a NULL name */

#endif
