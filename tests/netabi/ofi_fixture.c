/* See ofi_fixture.h. */
#include "ofi_fixture.h"

#include <stdio.h>
#include <stdlib.h>

static const char *path, *fake;
void *listener;
char handle[NCCL_NET_HANDLE_MAXSIZE];

/* The devices there are, with FAKE_FABRIC=`words`; NULL: the real library. */
int start(const char *words)
{
  int count = -1;
  if (words) setenv("TUTTI_OFI_LIBRARY", fake, 1);
  if (words) setenv("FAKE_FABRIC", words, 1);
  ck_assert_int_eq(net_load(path), ncclSuccess);
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  return count;
}

void start_tcp(const char *words)
{
  setenv("FI_PROVIDER", "tcp", 1);
  ck_assert_int_ge(start(words), 1);
  ck_assert_int_eq(net->listen(context, 0, handle, &listener), ncclSuccess);
}

void finish(void)
{
  if (listener) ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  ck_assert_int_eq(net->finalize(context), ncclSuccess);
}

/* Connects the process with itself; the first error of either side. */
ncclResult_t try_connect(void **send, void **recv)
{
  return net_meet(0, handle, listener, send, recv);
}

/* One message; the first error. */
ncclResult_t transfer(void *send, void *recv, char *out, char *in, size_t bytes, void *out_memory, void *in_memory)
{
  return transfer_into(send, recv, out, bytes, in, bytes, out_memory, in_memory);
}

ncclResult_t transfer_into(void *send, void *recv, char *out, size_t bytes, char *in, size_t room, void *out_memory,
                           void *in_memory)
{
  void *requests[2] = {NULL, NULL}, *data = in, *phandle = NULL;
  int tag = 3, done[2] = {0, 0};
  ncclResult_t result = net->irecv(recv, 1, &data, &room, &tag, &in_memory, &phandle, &requests[0]);
  if (result == ncclSuccess) result = net->isend(send, out, bytes, tag, out_memory, NULL, &requests[1]);
  for (uint64_t end = now_ms() + LONG_MS; result == ncclSuccess && (!done[0] || !done[1]);) {
    ck_assert_msg(now_ms() < end, "a message of %zu bytes does not arrive", bytes);
    for (int i = 0; i < 2 && result == ncclSuccess; i++)
      if (!done[i]) result = net->test(requests[i], &done[i], NULL);
  }
  return result;
}

int run(int argc, char **argv, TCase *tcase)
{
  if (argc != 3) {
    fprintf(stderr, "usage: %s libtutti-net-ofi.so fake-fabric.so\n", argv[0]);
    return 2;
  }
  path = argv[1];
  fake = argv[2];
  return net_run("net-ofi", tcase, 120);
}
