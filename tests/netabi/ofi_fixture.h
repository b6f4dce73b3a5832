/* What tests of net-ofi alone are written with: the plugin in this process, which has both ends, over a libfabric that
 * stands before the real one (tests/fakes/fabric). Each test runs in a process of its own, since parameters are read
 * once. */
#ifndef OFI_FIXTURE_H
#define OFI_FIXTURE_H

#include "tests/common/net_plugin.h"

extern void *listener;
extern char handle[NCCL_NET_HANDLE_MAXSIZE];

/* The devices there are, with FAKE_FABRIC=`words`; NULL: the real library. */
int start(const char *words);
/* The same over tcp, and a listener. */
void start_tcp(const char *words);
void finish(void);
/* Connects the process with itself; the first error of either side. */
ncclResult_t try_connect(void **send, void **recv);
/* One message; the first error. */
ncclResult_t transfer(void *send, void *recv, char *out, char *in, size_t bytes, void *out_memory, void *in_memory);
/* The same into a buffer of another size. */
ncclResult_t transfer_into(void *send, void *recv, char *out, size_t bytes, char *in, size_t room, void *out_memory,
                           void *in_memory);
/* The end of main(): the plugin's file and the fake's are its arguments. */
int run(int argc, char **argv, TCase *tcase);

#endif
