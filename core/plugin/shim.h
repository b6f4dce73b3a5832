/* A loaded net plugin of any version, and the shim that presents it as v12.
 *
 * Most members kept their place and signature from v6 to v12; they are called through abi.v12 whatever the version.
 * The members that changed go through the shim, one file a version (net_vN.c). A function that suits several versions
 * lives in the newest of them and is named by it; the older tables point at it. */
#ifndef TT_PLUGIN_SHIM_H
#define TT_PLUGIN_SHIM_H

#include "nccl.h"
#include "tutti/net.h"
#include "plugin/net.h"

struct tt_net_shim;

/* A plugin's struct, copied, zero behind what its version has. Never written after the copy: what is per process lives
 * beside it, so that two plugins of one version do not meet. */
struct tt_net_plugin {
  const struct tt_net_shim *shim;
  union {
    ncclNet_v6_t v6;
    ncclNet_v7_t v7;
    ncclNet_v8_t v8;
    ncclNet_v9_t v9;
    ncclNet_v10_t v10;
    ncclNet_v11_t v11;
    ncclNet_v12_t v12;
  } abi;
  unsigned can;                           /* TT_NET_CAN_* */
  const struct tt_net_counters *counters; /* with TT_NET_CAN_COUNT; the library's, read while it is loaded */
  int inits;        /* v10 and older: communicators that count on the one init; guarded by the loader's lock */
  const char *path; /* of the file, for messages */
};

struct tt_net_library; /* the loader's */

struct tt_net {
  struct tt_net_plugin *plugin;
  struct tt_net_library *library;
  int users; /* guarded by the loader's lock */
  uint64_t comm_id;
  void *ctx;                      /* v11 and newer */
  ncclNetCommConfig_v12_t config; /* v10 keeps a pointer to it from connect on */
  ncclProfilerCallback_t profile;
};

/* The members that changed, and the limits that came with them. make_vdevice is set where the version has it. */
struct tt_net_shim {
  int version;
  const char *symbol;
  size_t bytes;            /* of the plugin's struct */
  unsigned can;            /* what the version itself allows */
  size_t max_message;      /* bytes; 0: no limit but maxP2pBytes */
  size_t max_registration; /* bytes; 0: no limit */
  int max_fused;           /* devices in a virtual one */
  ncclResult_t (*init)(struct tt_net *net);
  ncclResult_t (*finalize)(struct tt_net *net);
  ncclResult_t (*get_properties)(struct tt_net *net, int dev, ncclNetProperties_v12_t *props);
  ncclResult_t (*listen)(struct tt_net *net, int dev, void *handle, void **comm);
  ncclResult_t (*connect)(struct tt_net *net, int dev, void *handle, void **comm);
  ncclResult_t (*accept)(struct tt_net *net, void *listen_comm, void **comm);
  ncclResult_t (*reg_mr)(struct tt_net *net, void *comm, void *data, size_t bytes, int type, void **mhandle);
  ncclResult_t (*isend)(struct tt_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle, void *phandle,
                        void **request);
  ncclResult_t (*irecv)(struct tt_net *net, void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles,
                        void **phandles, void **request);
  ncclResult_t (*make_vdevice)(struct tt_net *net, int *dev, const ncclNetVDeviceProps_v12_t *props);
};

#define TT_NET_OLDEST 6
#define TT_NET_NEWEST 12
extern const struct tt_net_shim tt_net_shim_v6, tt_net_shim_v7, tt_net_shim_v8, tt_net_shim_v9, tt_net_shim_v10,
    tt_net_shim_v11, tt_net_shim_v12;

/* The shim of a version, or NULL. */
const struct tt_net_shim *tt_net_shim_of(int version);
/* Copies the struct at `symbol` and finds out what it can do. Returns the name of a member that is NULL and must not
 * be, or NULL if the plugin is complete. */
const char *tt_net_bind(struct tt_net_plugin *plugin, const struct tt_net_shim *shim, const void *symbol);

/* The logger that plugins get; it remembers per thread whether the plugin warned. */
void tt_net_log(ncclDebugLogLevel level, unsigned long flags, const char *where, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Call before a member, then hand its result to tt_net_checked: an error that the plugin did not explain itself is
 * reported with the plugin's name and the member's. */
void tt_net_before(void);
struct tt_plugin_identity {
  const char *kind, *name, *path;
  int version;
};
ncclResult_t tt_plugin_checked(const struct tt_plugin_identity *plugin, const char *member, ncclResult_t result);
ncclResult_t tt_net_checked(const struct tt_net *net, const char *member, ncclResult_t result);

/* Shared by versions, see above. */
ncclResult_t tt_net_v12_init(struct tt_net *net);
ncclResult_t tt_net_v12_finalize(struct tt_net *net);
ncclResult_t tt_net_v12_listen(struct tt_net *net, int dev, void *handle, void **comm);
ncclResult_t tt_net_v12_connect(struct tt_net *net, int dev, void *handle, void **comm);
ncclResult_t tt_net_v12_accept(struct tt_net *net, void *listen_comm, void **comm);
ncclResult_t tt_net_v12_reg_mr(struct tt_net *net, void *comm, void *data, size_t bytes, int type, void **mhandle);
ncclResult_t tt_net_v12_isend(struct tt_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
                              void *phandle, void **request);
ncclResult_t tt_net_v12_irecv(struct tt_net *net, void *comm, int n, void **data, size_t *bytes, int *tags,
                              void **mhandles, void **phandles, void **request);
ncclResult_t tt_net_v11_make_vdevice(struct tt_net *net, int *dev, const ncclNetVDeviceProps_v12_t *props);
ncclResult_t tt_net_v10_finalize(struct tt_net *net);
ncclResult_t tt_net_v10_listen(struct tt_net *net, int dev, void *handle, void **comm);
ncclResult_t tt_net_v9_init(struct tt_net *net);
ncclResult_t tt_net_v9_connect(struct tt_net *net, int dev, void *handle, void **comm);
ncclResult_t tt_net_v9_get_properties(struct tt_net *net, int dev, ncclNetProperties_v12_t *props);
ncclResult_t tt_net_v8_isend(struct tt_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
                             void *phandle, void **request);
ncclResult_t tt_net_v8_irecv(struct tt_net *net, void *comm, int n, void **data, size_t *bytes, int *tags,
                             void **mhandles, void **phandles, void **request);
ncclResult_t tt_net_v7_reg_mr(struct tt_net *net, void *comm, void *data, size_t bytes, int type, void **mhandle);

/* Copying properties: `to` is a v12 struct, `from` a struct of the version or newer. */
#define TT_NET_COPY_V6(to, from)                                                                                       \
  ((to)->name = (from)->name, (to)->pciPath = (from)->pciPath, (to)->guid = (from)->guid,                              \
   (to)->ptrSupport = (from)->ptrSupport, (to)->speed = (from)->speed, (to)->port = (from)->port,                      \
   (to)->latency = (from)->latency, (to)->maxComms = (from)->maxComms, (to)->maxRecvs = (from)->maxRecvs)
#define TT_NET_COPY_V7(to, from)                                                                                       \
  (TT_NET_COPY_V6(to, from), (to)->netDeviceType = (from)->netDeviceType,                                              \
   (to)->netDeviceVersion = (from)->netDeviceVersion)
#define TT_NET_COPY_V8(to, from) (TT_NET_COPY_V7(to, from), (to)->regIsGlobal = (from)->regIsGlobal)
/* vProps are copied by tt_net_copy_vprops, since the arrays differ in length. */
#define TT_NET_COPY_V9(to, from)                                                                                       \
  (TT_NET_COPY_V8(to, from), (to)->forceFlush = (from)->forceFlush, (to)->maxP2pBytes = (from)->maxP2pBytes,           \
   (to)->maxCollBytes = (from)->maxCollBytes, tt_net_copy_vprops(&(to)->vProps, &(from)->vProps))
#define TT_NET_COPY_V11(to, from) (TT_NET_COPY_V9(to, from), (to)->maxMultiRequestSize = (from)->maxMultiRequestSize)

void tt_net_copy_vprops(ncclNetVDeviceProps_v12_t *to, const ncclNetVDeviceProps_v11_t *from);
/* What a device has when its version cannot say otherwise. */
void tt_net_default_properties(int dev, ncclNetProperties_v12_t *props);

#endif
