/* See free_port.h. */
#include "tests/common/free_port.h"

#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST = 15000, PORTS = 17000 };

int free_port(void)
{
  for (;;) {
    unsigned drawn;
    ck_assert_int_eq(getrandom(&drawn, sizeof(drawn), 0), sizeof(drawn));
    int port = FIRST + (int)(drawn % PORTS), fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    ck_assert_int_ge(fd, 0);
    int taken = bind(fd, (struct sockaddr *)&at, sizeof(at));
    close(fd);
    if (!taken) return port;
  }
}
