/* A stand-in for libibverbs.so.1 for machines without RDMA hardware: devices that are made up, and reliable connections
 * whose packets travel over Unix sockets between the threads and processes of this machine. Data is really written into
 * the peer's memory, by a thread of the peer's process, and only where its registrations allow that.
 *
 * It is strict. What a NIC would answer with an error completion gets one. What a program must never do (a state
 * skipped, an attribute left out, an object destroyed that is in use) is said on stderr and ends the process, so that
 * no test can pass over it; so is a full send or receive queue, which real NICs refuse, but which a correct count never
 * reaches.
 *
 * The environment says what the devices are (device.c), and what goes wrong and when (script.c); the functions of
 * control.h do the same while a test runs. One lock guards everything. */
#ifndef FAKE_VERBS_H
#define FAKE_VERBS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#pragma GCC visibility push(default)
#include <infiniband/verbs.h>
#include "control.h"
#pragma GCC visibility pop

#define CONTAINER(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

/* ---- device.c ---- */

#define FAKE_DEVICES 16
#define FAKE_PORTS 2
#define FAKE_GIDS 8

struct fake_port {
  bool up;
  bool ethernet, unknown;
  uint16_t lid;
  int gids;
  union ibv_gid gid[FAKE_GIDS];
  int gid_version[FAKE_GIDS]; /* of RoCE: 1 or 2 */
};

struct fake_device {
  struct ibv_device device;
  int index, ports;
  int speed, width; /* codes of the specification */
  bool removed;
  struct fake_port port[FAKE_PORTS];
  int opened;
};

struct fake_event {
  struct ibv_async_event event;
  struct fake_event *next;
};

struct fake_context {
  struct fake_device *device;
  struct fake_event *events, *unacknowledged;
  int pds, cqs;
  struct verbs_context verbs; /* whose last member the program sees */
};

/* What a device can do; FAKE_VERBS_LIMITS changes it. */
struct fake_limits {
  int qp, cqe, wr, sge, inline_bytes, msg_bytes, mr;
};
extern struct fake_limits fake_limits;

struct fake_context *fake_context(struct ibv_context *context);
struct fake_port *fake_port(struct ibv_context *context, int number);
struct fake_device *fake_find_device(const char *name);
void fake_devices_init(void);
int fake_contexts(void); /* that are open */
/* Queues an event for all contexts of the device. `element` may be NULL. */
void fake_raise(struct fake_device *device, enum ibv_event_type type, void *element);
/* Waits until no event of this object is unacknowledged, as destroying it does. */
void fake_wait_acknowledged(struct fake_context *context, void *element);

/* ---- memory.c ---- */

struct fake_pd {
  struct ibv_pd pd;
  int users;
};

struct fake_mr {
  struct ibv_mr mr;
  uint64_t iova;
  size_t bytes;
  unsigned access;
  char *base;   /* where iova is in this process */
  void *mapped; /* of a dma-buf; to be unmapped */
  size_t mapped_bytes;
};

/* The place of [address, address + bytes) if the key covers it with these rights, else NULL. */
char *fake_memory(struct ibv_pd *pd, uint32_t key, uint64_t address, size_t bytes, unsigned access);
/* Copies as a NIC does: words become visible in order, each whole. */
void fake_store(char *to, const char *from, size_t bytes);
void fake_load(char *to, const char *from, size_t bytes);

/* ---- queue.c ---- */

struct fake_cqe {
  struct ibv_wc wc;
  struct fake_qp *qp;
  bool sends;
  uint64_t retires; /* entries of its queue that polling it gives back, counted from the start */
  uint64_t ready_ns;
};

struct fake_cq {
  struct ibv_cq cq;
  struct fake_cqe *ring;
  int count, capacity, users;
  bool dead;
};

#define FAKE_SGE 4
#define FAKE_INLINE 1024
struct fake_send {
  uint64_t wr_id;
  enum ibv_wr_opcode opcode;
  unsigned flags;
  uint32_t imm;
  uint64_t remote;
  uint32_t rkey;
  int sges;
  struct ibv_sge sge[FAKE_SGE];
  size_t bytes;
  char inlined[FAKE_INLINE];
};

struct fake_receive {
  uint64_t wr_id;
};

struct fake_qp {
  struct ibv_qp qp;
  uint64_t serial; /* tells it from a later one at the same address */
  struct ibv_qp_cap cap;
  struct ibv_qp_attr attr; /* as modified so far */
  bool all_signaled;
  /* Counts of entries since the start; the ring has cap.max_send_wr of them. */
  struct fake_send *sends;
  uint64_t posted, sent, acked, retired;
  struct fake_receive *receives;
  uint64_t offered, consumed, returned;
  /* wire.c */
  int listen_fd, in_fd, out_fd;
  bool out_lost, in_lost;
  size_t out_offset;  /* of the entry being sent */
  size_t read_offset; /* of the read response being received */
  bool out_blocked;
  bool rnr;             /* the peer has no receive for our next message */
  uint64_t progress_ns; /* when the peer last answered, or when something was first sent after silence */
  bool in_stalled;      /* the packet in `held` waits for a receive */
  char *held;           /* a packet that was read and not yet executed */
  size_t held_bytes;
  size_t in_offset; /* of the message being received */
  int events;       /* of poll, in this round */
  struct fake_qp *next;
};

extern struct fake_qp *fake_qps;
extern int fake_live_cqs;
/* A completion of the send or receive queue; see fake_cqe. An error moves the QP into its error state and flushes. */
void fake_complete_send(struct fake_qp *qp, enum ibv_wc_status status);
void fake_complete_receive(struct fake_qp *qp, uint32_t imm, uint32_t bytes);
void fake_fail_send(struct fake_qp *qp, enum ibv_wc_status status);
void fake_to_error(struct fake_qp *qp);

int fake_poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc);
int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* ---- wire.c ---- */

bool fake_wire_open(struct fake_qp *qp); /* gives it a number and a name; false with errno */
void fake_wire_close(struct fake_qp *qp);
void fake_wire_wake(void);

/* ---- script.c ---- */

extern pthread_mutex_t fake_lock;
uint64_t fake_now_ns(void);
__attribute__((format(printf, 1, 2))) void fake_misuse(const char *format, ...);
void fake_count(const char *what);
/* The errno with which this call is to fail, or 0. */
int fake_should_fail(const char *call);
/* The status that the next completion of a send queue is to have. */
enum ibv_wc_status fake_send_status(void);
uint64_t fake_delay_ns(void); /* how late a completion is to show */
bool fake_reorders(void);
int fake_torn_usec(void); /* the pause between lines of a short write; 0: none */
/* Reads the environment, once. Called by ibv_get_device_list. */
void fake_script_init(void);
/* Does what is due; returns the milliseconds to the next thing, or -1. */
int fake_script_run(void);

#endif
