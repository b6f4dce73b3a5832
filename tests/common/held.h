/* What this process holds, for tests that something leaves nothing behind. Any thread. */
#ifndef TT_TESTS_COMMON_HELD_H
#define TT_TESTS_COMMON_HELD_H

#include <stdbool.h>

struct held {
  int threads, descriptors;
  int mappings; /* of shared memory: memfds, and files in /dev/shm */
};

struct held held_now(void);
int held_threads(void);
int held_descriptors(void);
/* Waits until no more is held than before, up to `ms` milliseconds: threads that were told to end may take a moment,
 * and joined ones are still listed for one. *now: what is held at last. */
bool held_settles(struct held before, int ms, struct held *now);

#endif
