/* Messages of random sizes and tags over one connection of a net plugin with itself, in receives of one buffer or
 * several, which are posted and tested in random order. Each must come whole, to its place, and only once. */
#ifndef TT_TESTS_COMMON_TRAFFIC_H
#define TT_TESTS_COMMON_TRAFFIC_H

/* The same seed gives the same traffic. `trouble`, unless NULL, is called once in the middle. */
void traffic_seed(unsigned seed);
void random_traffic(int device, int receives, void (*trouble)(void));

#endif
