/* net-ib over the fake verbs library, both ends in the test's process: what a test sets in the environment it sets
 * before start(). */
#ifndef IB_FIXTURE_H
#define IB_FIXTURE_H

#include <stdbool.h>
#include "tests/common/net_plugin.h"
#include "tutti/counters.h"

void start(void);                 /* opens and initialises the plugin, which must have devices */
void start_without_devices(void); /* or need not */
ncclResult_t start_result(void);  /* or may fail */
void stop(void);                  /* finalizes it, and looks that it left nothing in the verbs library */

/* The fake's functions (tests/fakes/verbs/control.h). */
void fake(const char *action);
uint64_t fake_count(const char *what);
int fake_live(const char *what);
long fake_qp(uint32_t number, const char *what);
int fake_qps(uint32_t *numbers, int most);

/* Waits until every request that was posted has gone out and was answered. */
void all_sent(void);
/* Waits until those of a device's queue pairs are answered or have failed. */
void answered(long device);
/* Waits for a line of a thread. */
void wait_logged(const char *part);
/* Has a port "up" or "down", and waits until that is known. */
void set_port(int number, const char *state);

/* ib_clock.c: the clock stands until it is told that time has passed; it may step whenever this thread reads it. Bounds
 * on hangs are those of check meanwhile. */
void clock_stop(void);
void clock_pass(int ms);
void clock_step(int ms);

/* The device that two of them make. */
int fuse(int first, int second);

/* A connection of the process with itself, and a registered buffer for either end. */
struct pair {
  void *send, *recv;
  char *out, *in;
  size_t bytes;
  void *out_memory, *in_memory;
};
void pair_open(struct pair *pair, int send_dev, int recv_dev, size_t bytes);
void pair_close(struct pair *pair);
void pair_close_send(struct pair *pair);
void pair_close_recv(struct pair *pair);
/* A GPU's memory, for the receiver; to be deregistered and unmapped. */
void *register_gpu(struct pair *pair, size_t bytes, void **memory);
void *post_send(struct pair *pair, size_t bytes, int tag);
void *post_recv(struct pair *pair, size_t bytes, int tag);
/* Tests both until each is done or has failed; NULL is done. */
void drive(void *send, void *recv, ncclResult_t results[2]);
void drive_all(void **requests, int count); /* any number, which must succeed */
void finish(void *request);                 /* one, as well */
/* One message of that many bytes, checked. */
void exchange(struct pair *pair, size_t bytes);

/* Clear-to-sends that are written while `messages` come, each of 8 bytes, whose receives are posted when `ahead` others
 * are. Tags take turns if there are several. The pair has room for NCCL_NET_MAX_REQUESTS of them. */
int clears_of(struct pair *pair, int ahead, int messages, int tags);

/* argv[1] is the plugin. The result of main. */
int run_ib_suite(int argc, char **argv, TCase *tcase);

#endif
