/* A socket that connects to itself, as it does where nobody listens on a port of this host and the kernel picks that
 * port for the client. For programs linked with -Wl,--wrap=connect. */
#ifndef TT_TESTS_COMMON_TO_ITSELF_H
#define TT_TESTS_COMMON_TO_ITSELF_H

#include <stdatomic.h>
#include <stdbool.h>

/* The next call of connect does; and whether there was another call since, so that it must be over. */
extern _Atomic bool to_itself_wanted, to_itself_over;

#endif
