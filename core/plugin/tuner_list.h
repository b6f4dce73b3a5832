/* The process's list of libraries that may hold a tuner: what NCCL_TUNER_PLUGIN names, the net plugin's library, and
 * Tutti's own. One lock guards it, and init and finalize of plugins. */
#ifndef TT_PLUGIN_TUNER_LIST_H
#define TT_PLUGIN_TUNER_LIST_H

#include "plugin/library.h"
#include "plugin/tuner_shim.h"

#define TT_TUNER_FILES (2 + TT_PLUGIN_OWN_PLACES)
#define TT_TUNER_MAX_NAMED 12
#define TT_TUNER_MAX_LIBRARIES (TT_TUNER_MAX_NAMED + 4)

struct tt_tuner_library {
  char asked[TT_PLUGIN_NAME_BYTES];
  enum { TT_TUNER_NAMED, TT_TUNER_DEFAULT, TT_TUNER_OF_NET, TT_TUNER_OWN } kind;
  char files[TT_TUNER_FILES][1024]; /* tried in this order; "" is none */
  bool passed;                      /* it cannot be used, and `reason` says why, for the rest of the process */
  char reason[TT_PLUGIN_REASON_BYTES];
  void *handle; /* NULL while not loaded */
  int users;
  char path[1024];
  struct tt_tuner_plugin plugin;
};

/* Reads the value of NCCL_TUNER_PLUGIN (NULL: unset) into `libraries`; in a `secure` program only "none" counts. `own`:
 * something asks for Tutti's own tuner. Returns the number of entries. Exposed for tests. */
int tt_tuner_list_parse(const char *value, bool own, bool secure, const char *own_directory,
                        struct tt_tuner_library *libraries);

#endif
