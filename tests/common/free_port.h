/* A port for a test whose processes or ranks are told where to meet, or where they meet nobody. */
#ifndef TT_TESTS_COMMON_FREE_PORT_H
#define TT_TESTS_COMMON_FREE_PORT_H

/* One that nobody has. It is below those that the kernel hands out (ports.py says the same), so that no other test gets
 * it before it is listened to. */
int free_port(void);

#endif
