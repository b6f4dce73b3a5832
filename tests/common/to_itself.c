/* See to_itself.h. */
#include "tests/common/to_itself.h"

#include <sys/socket.h>

_Atomic bool to_itself_wanted, to_itself_over;
static _Atomic bool is_met;

/* The linker has shared libraries refer to it too. */
#define SEEN __attribute__((visibility("default")))
int __real_connect(int fd, const struct sockaddr *address, socklen_t bytes);
SEEN int __wrap_connect(int fd, const struct sockaddr *address, socklen_t bytes);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
  if (address->sa_family == AF_UNIX) return __real_connect(fd, address, bytes);
  if (atomic_load(&is_met)) atomic_store(&to_itself_over, true);
  if (atomic_exchange(&to_itself_wanted, false)) atomic_store(&is_met, bind(fd, address, bytes) == 0);
  return __real_connect(fd, address, bytes);
}
