/* A libfabric that stands before the real one and makes it what NICs are, and providers over sockets are not. Data
 * still moves by the real provider. FAKE_FABRIC is a comma list:
 *
 *     nics=N       each NIC is N, which say that they are on PCI
 *     hmem         they take memory of GPUs, which is the host's here
 *     local        all memory must be registered, also that which is sent from: what is posted is checked
 *     keys         keys are the provider's
 *     wide         immediate data has 64 bits, not 32
 *     uneven       so it has on the first NIC alone
 *     endpoint     registrations are bound to endpoints, and have no key before they are enabled
 *     busy=N       of N + 1 attempts to post something, N find no room
 *     shuffle      completions come in any order, and some of them late
 *     late=N       what the peer did is seen N milliseconds later
 *     lag=N        so are reads, by the second NIC of each comm that has two
 *     piece=N      messages and writes have N bytes at most
 *     inject=N     so many bytes can be injected at most
 *     taken=N      the names of the first N endpoints are taken, so that they cannot be enabled
 *     break=N      the N-th write or packet to be sent in each endpoint completes with an error
 *     spoil=KIND/NTH/OFFSET/VALUE
 *                  of the packets that begin with KIND, 32 bits, the NTH to be sent by the process has VALUE, 32
 *                  bits, at OFFSET; an OFFSET behind its end cuts it to VALUE bytes. KIND 0 are writes, whose
 *                  immediate data VALUE is, or with OFFSET 4 the upper half of it
 *     fail=CALL    getinfo, fabric, domain, endpoint, cq, av, mr: that call fails
 *
 * Who breaks a rule of libfabric is told on stderr, and aborted. */
#ifndef FAKE_FABRIC_H
#define FAKE_FABRIC_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_settings {
  int nics, busy, break_at, late, lag, taken;
  bool hmem, local, keys, endpoint, shuffle, wide, uneven;
  size_t piece;
  int inject; /* -1: what the provider says */
  char fail[16];
  struct {
    uint32_t kind, value;
    size_t offset;
    int nth; /* 0: none */
  } spoil;
};
const struct fake_settings *fake_settings(void);
_Noreturn void fake_abort(const char *what);
unsigned fake_random(void); /* the same sequence in each process */

/* What is known of an object of the real library, whose operations are replaced. Never freed, and found again where an
 * address comes back. */
struct fake_object {
  void *object;
  const void *real[3]; /* its operations */
  struct fid_ep *ep;   /* of a registration that was bound */
  bool enabled;
  const char *base; /* of a registration */
  struct fid *domain;
  size_t bytes;    /* of a registration; of an endpoint: that can be injected */
  unsigned posted; /* of an endpoint: sends and writes */
  void *broken;    /* of a completion queue: contexts whose completions are to be errors */
  struct fi_cq_data_entry held[256];
  int held_count;
  bool lags;      /* of a completion queue */
  uint64_t since; /* when the first of them came, in milliseconds */
  struct fake_object *next;
};
extern pthread_mutex_t fake_lock;
struct fake_object *fake_object(void *object); /* made if there is none; takes the lock */
struct fake_object *fake_known(void *object);  /* NULL if there is none */

void fake_memory(struct fid_domain *domain);             /* memory.c: replaces the domain's */
void fake_endpoint(struct fid_ep *ep, size_t inject);    /* post.c; `inject`: bytes that it takes so at most */
void fake_queue(struct fid_cq *cq);                      /* queue.c */
bool fake_breaks(struct fake_object *ep, void *context); /* remembers those whose completion is to be an error */
bool fake_is_broken(void *context);                      /* asked once for each */
/* Aborts unless desc is a live registration that covers the bytes. */
void fake_check_local(const void *data, size_t bytes, void *desc);

#endif
