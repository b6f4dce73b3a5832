/* What the counting network saw (counting.c). Found with dlsym as "counting_read", since the plugin is loaded by path.
 */
#ifndef TT_TESTS_FAKES_NET_COUNTING_H
#define TT_TESTS_FAKES_NET_COUNTING_H

#include <stddef.h>
#include <stdint.h>

#define COUNTING_DEVICES 8
struct counting {
  int listens, sends, recvs;                /* comms open now */
  int most_listens, most_sends, most_recvs; /* at the same time */
  size_t registered, most_registered;       /* bytes */
  long isends, irecvs;                      /* requests accepted */
  long grouped;                             /* of irecvs: with more than one buffer */
  long received;                            /* messages of irecvs */
  int largest;                              /* buffers of one irecv */
  int listened[COUNTING_DEVICES];           /* comms ever, by device */
  int connected[COUNTING_DEVICES];
  int held;                  /* calls that wait in isend now */
  long refused;              /* messages that isend has not taken since counting_refuse */
  uint64_t refused_apart_ns; /* the least time between two of these */
};
/* Reads the counts; `clear` begins anew, but for what is open now. */
typedef void counting_read_fn(struct counting *counts, int clear);
/* "counting_hold": isend does not return while `hold` is 1. */
typedef void counting_hold_fn(int hold);
/* "counting_refuse": isend takes nothing while `refuse` is 1. Counts anew. */
typedef void counting_refuse_fn(int refuse);

#endif
