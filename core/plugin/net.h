/* Net plugins as the core sees them: one library, whatever ABI version it speaks, presented as the newest (v12).
 *
 * A `struct tt_net` is one communicator's use of one loaded library: it holds the plugin's context and a reference that
 * keeps the library loaded. Two nets may be bound to different libraries of the same old version, or to one library.
 *
 * Choosing, per communicator:
 *     tt_net_candidates(&request, &set);              local: what loads and has devices here
 *     tt_net_offer(set, mine);                        a byte string to all-gather, also when candidates failed
 *     tt_net_choose(set, offers, nranks, rank, &net); the same answer on all ranks
 *     tt_net_set_free(set);
 *     ... tt_net_close(net);
 *
 * Threads: the functions of "Choosing", "Life" and "Looking" may be called by any thread; they take one process-wide
 * lock, as do tt_net_devices and tt_net_make_vdevice, since plugins expect these one at a time. All others call
 * straight into the plugin and obey the thread rules of tutti/net.h. */
#ifndef TT_PLUGIN_NET_H
#define TT_PLUGIN_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "tutti/counters.h"
#include "tutti/net.h"

struct tt_net;
struct tt_net_set;

/* ---- Choosing ---- */

struct tt_net_request {
  uint64_t comm_id;               /* equal on all ranks of the communicator */
  int traffic_class;              /* from the user's config; NCCL_CONFIG_UNDEF_INT is handed on as undefined (-1) */
  const char *net_name;           /* from the user's config, or NULL; NCCL_NET wins over it */
  ncclProfilerCallback_t profile; /* handed to plugins; NULL: their events are dropped */
};

/* Loads what NCCL_NET_PLUGIN and Tutti's own directory offer, in order, and keeps what has devices here and the wanted
 * name. An empty set is no error unless something was asked for by name: a communicator of one host needs no network.
 * ncclInvalidUsage, naming the variable and what exists, if a named plugin cannot be loaded or no network has the
 * wanted name. *set is made also on failure (it is NULL only for lack of memory): its offer tells the other ranks. */
ncclResult_t tt_net_candidates(const struct tt_net_request *request, struct tt_net_set **set);
int tt_net_set_count(const struct tt_net_set *set);

/* The set as a versioned byte string of fixed size, to be all-gathered. */
#define TT_NET_OFFER_BYTES 640
void tt_net_offer(const struct tt_net_set *set, uint8_t offer[TT_NET_OFFER_BYTES]);

/* Takes the first of rank 0's candidates that all ranks have, in the same ABI version, starts it, and logs the choice
 * and what was passed over. `offers` holds nranks strings in rank order. *net is NULL, with ncclSuccess, if no rank
 * has any network. ncclInvalidUsage, on every rank and naming the ranks that differ, if they have nothing in common or
 * tt_net_candidates failed on one of them. */
ncclResult_t tt_net_choose(struct tt_net_set *set, const uint8_t *offers, int nranks, int rank, struct tt_net **net);

/* Gives back the candidates that were not chosen. NULL is allowed. */
void tt_net_set_free(struct tt_net_set *set);

/* ---- Life ---- */

/* One more user of the same net and context (a communicator that shares its parent's resources). */
struct tt_net *tt_net_retain(struct tt_net *net);
/* The last close finalizes the context; the last net of a library unloads it. All comms must be closed before. NULL is
 * allowed. */
ncclResult_t tt_net_close(struct tt_net *net);

/* ---- What it is ---- */

const char *tt_net_name(const struct tt_net *net); /* the plugin's own name; valid until closed, as is the path */
const char *tt_net_path(const struct tt_net *net); /* the file it came from */
int tt_net_version(const struct tt_net *net);      /* the ABI version in use, 6 to 12 */

/* Capability bits: what the plugin really has, since every function below can be called. */
enum {
  TT_NET_CAN_DMABUF = 0x1,          /* tt_net_reg_mr_dmabuf */
  TT_NET_CAN_FLUSH = 0x2,           /* tt_net_iflush; without it flushes complete at once */
  TT_NET_CAN_DEVICE_MR = 0x4,       /* device offload: unused by the core, listed for tutti-info */
  TT_NET_CAN_CONSUMED = 0x8,        /* tt_net_irecv_consumed */
  TT_NET_CAN_VDEVICE = 0x10,        /* tt_net_make_vdevice */
  TT_NET_CAN_ATTR = 0x20,           /* tt_net_set_attr */
  TT_NET_CAN_LARGE = 0x40,          /* messages above 1 GiB (v9 on; see maxP2pBytes) */
  TT_NET_CAN_OPTIONAL_RECV = 0x80,  /* NCCL_NET_OPTIONAL_RECV_COMPLETION reaches the plugin (v9 on) */
  TT_NET_CAN_PROFILE = 0x100,       /* phandles reach the plugin (v10 on) */
  TT_NET_CAN_TRAFFIC_CLASS = 0x200, /* the traffic class reaches the plugin (v10 on) */
  TT_NET_CAN_CONTEXT = 0x400,       /* the plugin is told of each communicator and of its end (v11 on) */
  TT_NET_CAN_COUNT = 0x800          /* tt_net_read_counters */
};
unsigned tt_net_can(const struct tt_net *net);

/* ---- Calls. Semantics are those of ncclNet_v12_t in tutti/net.h; here is only what the shims add ---- */

/* The number of devices now, virtual ones included. More are an error: making a communicator takes time in proportion
 * to their square, and no machine has nearly so many. */
#define TT_NET_MOST_DEVICES 1024
ncclResult_t tt_net_devices(struct tt_net *net, int *ndev);
/* Members that an old version lacks are filled in: forceFlush and regIsGlobal 0, vProps the device itself, maxP2pBytes
 * 1 GiB, maxCollBytes 512 MiB, maxMultiRequestSize 1, railId and planeId undefined. Always: name is not NULL, maxRecvs
 * at least 1, maxP2pBytes within 1 .. NCCL_MAX_NET_SIZE_BYTES (else ncclInternalError naming the plugin), and
 * NCCL_PTR_DMABUF is cleared where regMrDmaBuf is missing. */
ncclResult_t tt_net_get_properties(struct tt_net *net, int dev, ncclNetProperties_v12_t *props);
/* Devices that the plugin can fuse to one; 0: it fuses none. */
int tt_net_most_fused(const struct tt_net *net);
/* Fuses 2 or more devices. ncclInvalidUsage if the plugin cannot (TT_NET_CAN_VDEVICE), or takes at most 4. */
ncclResult_t tt_net_make_vdevice(struct tt_net *net, int *dev, const ncclNetVDeviceProps_v12_t *props);
/* Nothing happens where TT_NET_CAN_ATTR is missing, and the plugin's answer is ignored. */
void tt_net_set_attr(struct tt_net *net, const ncclNetAttr_v12_t *attr);

/* `handle` has NCCL_NET_HANDLE_MAXSIZE bytes, which are zeroed first. *comm is never NULL on success. */
ncclResult_t tt_net_listen(struct tt_net *net, int dev, void *handle, void **comm);
/* *comm must be NULL; it still is when the connection is not there yet: call again with the same `handle` storage, in
 * which the plugin may keep its state. Never asks for device offload. */
ncclResult_t tt_net_connect(struct tt_net *net, int dev, void *handle, void **comm);
ncclResult_t tt_net_accept(struct tt_net *net, void *listen_comm, void **comm);

/* *mhandle is cleared first. Through v6 and v7: ncclInternalError for 2 GiB or more. */
ncclResult_t tt_net_reg_mr(struct tt_net *net, void *comm, void *data, size_t bytes, int type, void **mhandle);
/* ncclInternalError where TT_NET_CAN_DMABUF is missing. */
ncclResult_t tt_net_reg_mr_dmabuf(struct tt_net *net, void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                  int fd, void **mhandle);
ncclResult_t tt_net_dereg_mr(struct tt_net *net, void *comm, void *mhandle);

/* *request is cleared first, so NULL afterwards means "not posted, try again" also for plugins that do not write it.
 * phandle reaches v10 and newer. Through v8 and older: ncclInternalError above 1 GiB. */
ncclResult_t tt_net_isend(struct tt_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
                          void *phandle, void **request);
/* *request may be (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION on entry, which v9 and newer see; else it is cleared.
 * `phandles` may be NULL: the plugin then gets an array of NULLs. 1 <= n <= TT_NET_MAX_RECVS. Sizes as in tt_net_isend.
 */
#define TT_NET_MAX_RECVS 64
ncclResult_t tt_net_irecv(struct tt_net *net, void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles,
                          void **phandles, void **request);
/* *request is cleared first; NULL afterwards means complete. Complete at once where TT_NET_CAN_FLUSH is missing. */
ncclResult_t tt_net_iflush(struct tt_net *net, void *comm, int n, void **data, int *bytes, void **mhandles,
                           void **request);
/* `bytes` may be NULL. *done is 0 or 1. */
ncclResult_t tt_net_test(struct tt_net *net, void *request, int *done, int *bytes);
/* Nothing happens where TT_NET_CAN_CONSUMED is missing. */
ncclResult_t tt_net_irecv_consumed(struct tt_net *net, void *comm, int n, void *request);

/* A NULL comm is allowed and ignored. */
ncclResult_t tt_net_close_send(struct tt_net *net, void *comm);
ncclResult_t tt_net_close_recv(struct tt_net *net, void *comm);
ncclResult_t tt_net_close_listen(struct tt_net *net, void *comm);

/* Shows what the plugin has counted in this process, for all communicators (tutti/counters.h). Structs of an older
 * plugin are completed with zeros. Nothing is shown where TT_NET_CAN_COUNT is missing. Any thread, at any time. */
ncclResult_t tt_net_read_counters(struct tt_net *net, tt_counters_visit *visit, void *context);

/* ---- Looking: what would load, for tutti-info ---- */

enum tt_net_state {
  TT_NET_UNTRIED, /* not looked at yet in this process */
  TT_NET_USABLE,  /* loads and has devices */
  TT_NET_PASSED   /* passed over, see reason */
};

struct tt_net_report {
  char asked[256];  /* what was asked for: an entry of NCCL_NET_PLUGIN, or the file in Tutti's directory */
  char path[1024];  /* the file that was loaded; "" if none */
  char name[64];    /* the network's name; "" if not loaded */
  uint32_t exports; /* bit N: the file exports ncclNetPlugin_vN */
  int version;      /* the ABI version in use; 0: none */
  int ndev;
  unsigned can; /* TT_NET_CAN_* */
  bool named;   /* by NCCL_NET_PLUGIN */
  enum tt_net_state state;
  char reason[384]; /* why it is passed over; "" if usable */
};

/* Tries all candidates that were not tried yet, then unloads them. */
void tt_net_survey(void);
/* Fills *report for candidate i, in order of preference; false past the end. */
bool tt_net_report(int i, struct tt_net_report *report);

/* Forgets the list, so that the environment is read again; for tests. ncclInvalidUsage while a net is open. */
ncclResult_t tt_net_reset(void);

#endif
