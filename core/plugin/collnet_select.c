/* Which network that reduces a communicator uses: the first of this rank's libraries that has one, if all ranks have
 * the same. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "plugin/collnet_shim.h"
#include "plugin/net_list.h"

/* By place in the net plugins' list; guarded by its lock. */
struct tt_collnet_library {
  void *handle; /* NULL while not loaded */
  int users;
  struct tt_collnet_plugin plugin;
};
static struct tt_collnet_library libraries[TT_NET_MAX_LIBRARIES];

static bool pass_over(struct tt_collnet_offer *offer, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool pass_over(struct tt_collnet_offer *offer, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(offer->reason, sizeof(offer->reason), format, args);
  va_end(args);
  return false;
}

/* ---- Loading ---- */

static void unload(struct tt_collnet_library *library)
{
  if (--library->users > 0) return;
  dlclose(library->handle);
  library->handle = NULL;
}

/* The newest version that both know. False without a word for a library that has no collnet plugin at all. */
static bool bind_newest(struct tt_collnet_library *library, const char *file, struct tt_collnet_offer *offer)
{
  const void *found = NULL;
  int version = TT_COLLNET_NEWEST + 1;
  while (!found && --version >= TT_COLLNET_OLDEST) {
    char symbol[40];
    snprintf(symbol, sizeof(symbol), "ncclCollNetPlugin_v%d", version);
    found = dlsym(library->handle, symbol);
  }
  if (!found) return false;
  const char *missing = tt_collnet_bind(&library->plugin, tt_collnet_shim_of(version), found);
  tt_plugin_path(found, library->plugin.path, sizeof(library->plugin.path));
  if (missing) return pass_over(offer, "ncclCollNetPlugin_v%d of %.80s has no %s", version, file, missing);
  TT_INFO(TT_INIT | TT_NET, "NET/Plugin: Loaded collnet plugin %s (v%d)", library->plugin.abi.v12.name, version);
  return true;
}

static bool load(const struct tt_net_library *net, struct tt_collnet_library *library, struct tt_collnet_offer *offer)
{
  for (int i = 0; i < 2 && !library->handle && net->files[i][0]; i++) {
    char reason[TT_PLUGIN_REASON_BYTES];
    tt_plugin_open(net->files[i], &library->handle, reason);
    if (library->handle && bind_newest(library, net->files[i], offer)) {
      library->users = 1;
      return true;
    }
    if (library->handle) dlclose(library->handle);
    library->handle = NULL;
  }
  if (!library->handle) return false;
  library->users++;
  return true;
}

/* ---- Starting ---- */

static void ask_support(struct tt_collnet_plugin *plugin, struct tt_collnet_offer *offer)
{
  for (int op = ncclSum; op <= ncclMin; op++) {
    for (int type = 0; type < ncclNumTypes; type++) {
      int supported = 0;
      ncclResult_t result = plugin->abi.v12.reduceSupport((ncclDataType_t)type, (ncclRedOp_t)op, &supported);
      if (result == ncclSuccess && supported) offer->reduces[op] |= (uint16_t)(1u << type);
    }
  }
}

static bool look_at_devices(struct tt_collnet *collnet, struct tt_collnet_offer *offer)
{
  const char *name = tt_collnet_name(collnet);
  ncclResult_t result = collnet->plugin->abi.v12.devices(&collnet->ndev);
  if (result != ncclSuccess)
    return pass_over(offer, "%.60s: counting its devices failed (error %d)", name, (int)result);
  if (collnet->ndev <= 0) return pass_over(offer, "%.60s has no devices on this machine", name);
  const char *missing = tt_collnet_incomplete(collnet->plugin);
  if (missing)
    return pass_over(offer, "ncclCollNetPlugin_v%d of %.60s has no %s", tt_collnet_version(collnet), name, missing);
  ask_support(collnet->plugin, offer);
  return true;
}

/* Called with the lock held. */
static struct tt_collnet *start(struct tt_collnet_library *library, uint64_t comm_id, struct tt_collnet_offer *offer)
{
  struct tt_collnet *collnet;
  if (TT_CALLOC(&collnet, 1) != ncclSuccess) return NULL;
  collnet->plugin = &library->plugin;
  collnet->library = library;
  collnet->comm_id = comm_id;
  ncclResult_t result = library->plugin.shim->init(collnet);
  if (result != ncclSuccess) {
    pass_over(offer, "%.60s: its init failed (error %d)", tt_collnet_name(collnet), (int)result);
  } else if (look_at_devices(collnet, offer)) {
    snprintf(offer->name, sizeof(offer->name), "%s", tt_collnet_name(collnet));
    offer->version = tt_collnet_version(collnet);
    offer->ndev = collnet->ndev;
    return collnet;
  } else {
    library->plugin.shim->finalize(collnet);
  }
  free(collnet);
  return NULL;
}

void tt_collnet_open(uint64_t comm_id, struct tt_collnet **out, struct tt_collnet_offer *offer)
{
  const struct tt_net_library *net;
  *out = NULL;
  memset(offer, 0, sizeof(*offer));
  pass_over(offer, "no library of NCCL_NET_PLUGIN holds a collnet plugin");
  if (tt_param_int(TT_PARAM_NCCL_NET_DISABLE)) {
    pass_over(offer, "NCCL_NET_DISABLE is set");
    return;
  }
  tt_net_list_lock();
  for (int i = 0; !*out && (net = tt_net_list_at(i)); i++) {
    if (!load(net, &libraries[i], offer)) continue;
    *out = start(&libraries[i], comm_id, offer);
    if (!*out) unload(&libraries[i]);
  }
  tt_net_list_unlock();
  if (*out) offer->reason[0] = '\0';
}

void tt_collnet_close(struct tt_collnet *collnet)
{
  if (!collnet) return;
  tt_net_list_lock();
  collnet->plugin->shim->finalize(collnet);
  unload(collnet->library);
  tt_net_list_unlock();
  free(collnet);
}

/* ---- What all ranks have ---- */

bool tt_collnet_agree(const struct tt_collnet_offer *offers, int nranks, struct tt_collnet_offer *agreed, char *why,
                      size_t why_size)
{
  *agreed = offers[0];
  for (int r = 0; r < nranks; r++) {
    const struct tt_collnet_offer *offer = &offers[r];
    if (!offer->name[0]) {
      snprintf(why, why_size, "rank %d has none: %s", r, offer->reason);
      return false;
    }
    if (strcmp(offer->name, agreed->name) != 0 || offer->version != agreed->version) {
      snprintf(why, why_size, "rank 0 has %s (v%d), rank %d has %s (v%d)", agreed->name, (int)agreed->version, r,
               offer->name, (int)offer->version);
      return false;
    }
    for (int op = ncclSum; op <= ncclMin; op++) agreed->reduces[op] &= offer->reduces[op];
  }
  return true;
}

bool tt_collnet_reduces(const struct tt_collnet_offer *agreed, int datatype, int op)
{
  if (op == ncclAvg) op = ncclSum;
  return op >= ncclSum && op <= ncclMin && datatype >= 0 && datatype < 16 && agreed->reduces[op] & 1u << datatype;
}
