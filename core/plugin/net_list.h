/* The process's list of net plugins: what the environment and Tutti's own directory offer, in order of preference, and
 * what became of each. One lock guards the list and the calls into plugins that must come one at a time. */
#ifndef TT_PLUGIN_NET_LIST_H
#define TT_PLUGIN_NET_LIST_H

#include "plugin/library.h"
#include "plugin/net.h"
#include "plugin/shim.h"

#define TT_NET_MAX_NAMED 14
#define TT_NET_MAX_LIBRARIES (TT_NET_MAX_NAMED + 4)

struct tt_net_library {
  struct tt_net_report report;
  char files[2][1024]; /* tried in this order; the second may be "" */
  void *handle;        /* NULL while not loaded */
  int users;           /* nets, and callers between load and unload */
  bool collnet_only;   /* found to hold a collnet plugin and no net plugin */
  struct tt_net_plugin plugin;
};

/* Not recursive. Everything below is called with the lock held. */
void tt_net_list_lock(void);
void tt_net_list_unlock(void);

/* Number i of the list, which is made at the first call; NULL past the end. */
struct tt_net_library *tt_net_list_at(int i);

/* Loads the library and finds its newest known version. false: it cannot be used, and the report says why, for the
 * rest of the process. Balanced by unload. */
bool tt_net_library_load(struct tt_net_library *library);
void tt_net_library_unload(struct tt_net_library *library);

/* Loads, starts the plugin for a communicator and looks at its devices. false as above. Balanced by tt_net_drop. */
bool tt_net_library_start(struct tt_net_library *library, const struct tt_net_request *request, struct tt_net **net);
ncclResult_t tt_net_drop(struct tt_net *net);

/* Reads a value of NCCL_NET_PLUGIN (NULL: unset) into `list`; in a `secure` program only "none" counts. Returns the
 * number of entries. Exposed for tests. */
int tt_net_list_parse(const char *value, bool secure, const char *own_directory, struct tt_net_library *list);

#endif
