/* A loaded collnet plugin of any version, and the shim that presents it as v12: as shim.h for net plugins. Members up
 * to deregMr kept their place from v6 on, and are called through abi.v12 where their signature did not change either.
 * Those behind moved with v8, so `bind` notes them by name. */
#ifndef TT_PLUGIN_COLLNET_SHIM_H
#define TT_PLUGIN_COLLNET_SHIM_H

#include "plugin/collnet.h"
#include "plugin/shim.h"

struct tt_collnet_shim;

struct tt_collnet_plugin {
  const struct tt_collnet_shim *shim;
  union {
    ncclCollNet_v6_t v6;
    ncclCollNet_v7_t v7;
    ncclCollNet_v8_t v8;
    ncclCollNet_v9_t v9;
    ncclCollNet_v10_t v10;
    ncclCollNet_v11_t v11;
    ncclCollNet_v12_t v12;
  } abi;
  /* Moved, but the same otherwise. */
  ncclResult_t (*test)(void *request, int *done, int *size);
  ncclResult_t (*close_coll)(void *comm);
  ncclResult_t (*close_listen)(void *comm);
  unsigned can;    /* TT_COLLNET_CAN_* */
  int inits;       /* v10 and older: communicators that count on the one init; guarded by the loader's lock */
  char path[1024]; /* of the file */
};

struct tt_collnet_library; /* the loader's */

struct tt_collnet {
  struct tt_collnet_plugin *plugin;
  struct tt_collnet_library *library;
  uint64_t comm_id;
  void *ctx; /* v11 and newer */
  int ndev;
};

struct tt_collnet_shim {
  int version;
  size_t bytes;            /* of the plugin's struct */
  unsigned can;            /* what the version itself allows */
  size_t max_bytes;        /* of an operation; 0: no limit but maxCollBytes */
  size_t max_registration; /* bytes; 0: no limit */
  /* Notes what moved and what can be done. */
  void (*bind)(struct tt_collnet_plugin *plugin);
  ncclResult_t (*init)(struct tt_collnet *collnet);
  ncclResult_t (*finalize)(struct tt_collnet *collnet);
  ncclResult_t (*get_properties)(struct tt_collnet *collnet, int dev, ncclNetProperties_v12_t *props);
  ncclResult_t (*listen)(struct tt_collnet *collnet, int dev, void *handle, void **comm);
  ncclResult_t (*reg_mr)(struct tt_collnet *collnet, void *comm, void *data, size_t bytes, int type, void **mhandle);
  ncclResult_t (*iallreduce)(struct tt_collnet *collnet, void *comm, const struct tt_collnet_all_reduce *what,
                             void **request);
};

#define TT_COLLNET_OLDEST 6
#define TT_COLLNET_NEWEST 12
extern const struct tt_collnet_shim tt_collnet_shim_v6, tt_collnet_shim_v7, tt_collnet_shim_v8, tt_collnet_shim_v9,
    tt_collnet_shim_v10, tt_collnet_shim_v11, tt_collnet_shim_v12;

/* The shim of a version, or NULL. */
const struct tt_collnet_shim *tt_collnet_shim_of(int version);
/* Copies the struct at `symbol` and finds out what it can do. Returns the name of a member that is NULL and must not
 * be. */
const char *tt_collnet_bind(struct tt_collnet_plugin *plugin, const struct tt_collnet_shim *shim, const void *symbol);
/* Members that a plugin without devices may leave NULL: the name of one that is, or NULL. */
const char *tt_collnet_incomplete(const struct tt_collnet_plugin *plugin);

/* Sets what `bind` has to from the struct of a version. */
#define TT_COLLNET_BIND_MOVED(plugin, version)                                                                         \
  ((plugin)->test = (plugin)->abi.version.test, (plugin)->close_coll = (plugin)->abi.version.closeColl,                \
   (plugin)->close_listen = (plugin)->abi.version.closeListen,                                                         \
   (plugin)->can |= (plugin)->abi.version.iflush ? TT_COLLNET_CAN_FLUSH : 0)

/* Shared by versions: a function lives in the newest that it suits. */
ncclResult_t tt_collnet_v12_init(struct tt_collnet *collnet);
ncclResult_t tt_collnet_v12_finalize(struct tt_collnet *collnet);
ncclResult_t tt_collnet_v12_listen(struct tt_collnet *collnet, int dev, void *handle, void **comm);
ncclResult_t tt_collnet_v12_reg_mr(struct tt_collnet *collnet, void *comm, void *data, size_t bytes, int type,
                                   void **mhandle);
ncclResult_t tt_collnet_v12_iallreduce(struct tt_collnet *collnet, void *comm, const struct tt_collnet_all_reduce *what,
                                       void **request);
void tt_collnet_v12_bind(struct tt_collnet_plugin *plugin);
ncclResult_t tt_collnet_v10_init(struct tt_collnet *collnet);
ncclResult_t tt_collnet_v10_finalize(struct tt_collnet *collnet);
ncclResult_t tt_collnet_v10_listen(struct tt_collnet *collnet, int dev, void *handle, void **comm);
ncclResult_t tt_collnet_v10_get_properties(struct tt_collnet *collnet, int dev, ncclNetProperties_v12_t *props);
ncclResult_t tt_collnet_v8_iallreduce(struct tt_collnet *collnet, void *comm, const struct tt_collnet_all_reduce *what,
                                      void **request);
ncclResult_t tt_collnet_v7_reg_mr(struct tt_collnet *collnet, void *comm, void *data, size_t bytes, int type,
                                  void **mhandle);
void tt_collnet_v7_bind(struct tt_collnet_plugin *plugin);

#endif
