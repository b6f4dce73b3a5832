/* Opening the shared libraries of plugins of any kind: how names become files, and why a file did not load. */
#ifndef TT_PLUGIN_LIBRARY_H
#define TT_PLUGIN_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#define TT_PLUGIN_NAME_BYTES 256
#define TT_PLUGIN_REASON_BYTES 384

enum tt_plugin_found {
  TT_PLUGIN_OPEN,    /* *handle is set */
  TT_PLUGIN_MISSING, /* there is no such file */
  TT_PLUGIN_BROKEN   /* there is one, and it cannot be loaded */
};

/* dlopen with RTLD_NOW | RTLD_LOCAL. The whole word STATIC_PLUGIN (any case) means the program itself. On failure
 * `reason` says in words why: no file, not a library, one that is cut short, a dependency that is missing. */
enum tt_plugin_found tt_plugin_open(const char *file, void **handle, char reason[TT_PLUGIN_REASON_BYTES]);

/* The second name to try, as NCCL does: "<prefix>-<name>.so" for a name without '/' that is not of the form lib*.so.
 * False if there is none, or it would be too long. */
bool tt_plugin_suffix_name(const char *prefix, const char *name, char file[TT_PLUGIN_NAME_BYTES]);

/* Where plugins of Tutti's own are: in tutti/ beside the library; around the drop-in, which lies in tutti/compat/; or
 * just beside it, for those who copy it all. Number `i` of the two places for a file's name; false if it is too long.
 */
#define TT_PLUGIN_OWN_PLACES 2
bool tt_plugin_own_file(const char *library_dir, const char *name, int i, char *file, size_t size);

/* The path of the file that holds `symbol`. */
void tt_plugin_path(const void *symbol, char *path, size_t size);

/* True in setuid and setgid programs and the like, where the environment must not choose what is loaded. */
bool tt_plugin_secure(void);

#endif
