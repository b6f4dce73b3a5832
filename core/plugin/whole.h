/* Whether the file of a shared library is all there, before the dynamic linker maps it. */
#ifndef TT_PLUGIN_WHOLE_H
#define TT_PLUGIN_WHOLE_H

#include <stdbool.h>
#include "plugin/library.h"

/* False, with the reason, if dlopen of `file` would wait for ever or end the process: that maps the segments that the
 * headers promise and touches them, and beyond the end of the file that is a SIGBUS. Of all else it finds the words. */
bool tt_plugin_whole(const char *file, char reason[TT_PLUGIN_REASON_BYTES]);

#endif
