/* What a net plugin takes from the system around it: the loader's logger, and what the kernel says of interfaces. */
#ifndef TT_PLUGINS_SYSTEM_H
#define TT_PLUGINS_SYSTEM_H

#include <stddef.h>
#include "tutti/net.h"

/* Lines of this library and of its copy of base go to the logger, which does the filtering; NULL: nowhere. Any thread.
 */
void tt_system_log_to(ncclDebugLogger_t logger);
/* Megabits a second of a network interface, or what NCCL assumes where nobody knows. */
int tt_system_interface_speed(const char *interface);
/* The directory in /sys of what a link there leads to; "" if there is none, or no room. */
void tt_system_real_path(const char *link, char *out, size_t size);

#endif
