/* A scripted network: a wire between a send comm and a recv comm of one process, with moods. It checks what a plugin
 * may rely on: that memory is registered, that a slot is left alone until its request is complete, and that all
 * registrations are gone when a comm is closed. */
#ifndef TT_TESTS_PROXY_FAKE_NET_H
#define TT_TESTS_PROXY_FAKE_NET_H

#include <stdbool.h>
#include <stddef.h>
#include "plugin/net.h"

enum fake_call { FAKE_NONE, FAKE_REG, FAKE_ISEND, FAKE_IRECV, FAKE_DMABUF, FAKE_FLUSH, FAKE_TEST_FLUSH, FAKE_TEST };

struct fake_mood {
  int null_percent;       /* requests refused for now */
  int slow_percent;       /* tests that say "not yet" */
  bool in_order;          /* else requests complete in any order */
  enum fake_call failing; /* this call fails from ... */
  int fail_after;         /* ... this many successes on */
  bool late;              /* what is received into a device's memory shows there when it was flushed, not before */
  int change_size;        /* added to the size that a receive reports; the data are cut or padded */
  unsigned seed;
};

struct fake_count {
  int registered, ever_registered; /* now, ever */
  int sends, recvs;                /* accepted */
  int of_device, dmabufs;          /* registrations of a device's memory, and by dma-buf, ever */
  int flushes;
  int in_flight;
  int closed;
  int closed_in_flight; /* requests that were not complete when their comm was closed */
  int faults;           /* rules broken by the caller; each is printed */
  int tag;              /* of the last send */
};

struct tt_net *fake_net(void);
/* From now on this is a device's memory, until the next wire. */
void fake_device_memory(void *memory, size_t bytes);
/* A device flushes by itself: what was received shows. */
void fake_device_flush(void);
/* What a descriptor of a dma-buf is read from here. */
struct fake_dmabuf {
  const void *memory;
  size_t bytes;
};
/* A fresh wire; sets the mood and clears the counts. */
void fake_open(const struct fake_mood *mood, void **send_comm, void **recv_comm);
/* The sending end of the wire, for who sends by hand; closed by who has it. */
void *fake_send_comm(void);
void fake_set_mood(const struct fake_mood *mood);
struct fake_count fake_counts(void);

#endif
