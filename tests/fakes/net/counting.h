/* What the counting network saw (counting.c). Found with dlsym as "counting_read", since the plugin is loaded by path.
 */
#ifndef TT_TESTS_FAKES_NET_COUNTING_H
#define TT_TESTS_FAKES_NET_COUNTING_H

#include <stddef.h>

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
  int held; /* calls that wait in isend now */
};
/* Reads the counts; `clear` begins anew, but for what is open now. */
typedef void counting_read_fn(struct counting *counts, int clear);
/* "counting_hold": isend does not return while `hold` is 1. */
typedef void counting_hold_fn(int hold);

#endif
