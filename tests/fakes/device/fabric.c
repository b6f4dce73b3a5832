/* A fabric that spans hosts: FAKE_FABRIC is the clique that all devices of the process are in, and "closed" behind it
 * says that the process may not use it. A name of the fabric is a process and a descriptor of its, by which another
 * process of this machine finds the file, whatever host it claims to be on. */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool fake_has_fabric(void)
{
  return getenv("FAKE_FABRIC") != NULL;
}

static bool is_closed(void)
{
  const char *text = getenv("FAKE_FABRIC");
  return text == NULL || strstr(text, "closed") != NULL;
}

ncclResult_t fake_fabric_name(int fd, unsigned char name[64])
{
  if (is_closed()) return TT_FAIL(ncclSystemError, "this process may not use the fabric");
  snprintf((char *)name, 64, "/proc/%d/fd/%d", (int)getpid(), fd);
  return ncclSuccess;
}

int fake_fabric_open(const unsigned char name[64])
{
  char path[65];
  snprintf(path, sizeof path, "%.64s", (const char *)name);
  return open(path, O_RDWR | O_CLOEXEC);
}

ncclResult_t fake_describe(int index, struct tt_device_description *out)
{
  struct tt_device_description d = {.size = out->size,
                                    .known = TT_DESCRIBED_FABRIC | TT_DESCRIBED_NEIGHBOURS,
                                    .capability = 90,
                                    .part = -1,
                                    .nneighbours = 1, /* the switch */
                                    .neighbours = {{.kind = TT_NEIGHBOUR_SWITCH, .links = 18}},
                                    .fabric_state = TT_FABRIC_COMPLETED,
                                    .fabric_cluster = "a fake cluster"};
  d.fabric_clique = (uint32_t)strtoul(getenv("FAKE_FABRIC"), NULL, 10);
  snprintf(d.pci, sizeof d.pci, "0000:%02x:00.0", index + 1);
  *out = d;
  return ncclSuccess;
}

ncclResult_t fake_peer_status(const char *from, const char *to, struct tt_device_peer *status)
{
  (void)from, (void)to;
  *status =
      (struct tt_device_peer){.size = status->size, .read = TT_PEER_STATUS_UNKNOWN, .write = TT_PEER_STATUS_UNKNOWN};
  return ncclSuccess;
}
