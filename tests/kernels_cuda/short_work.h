/* A work of one loop, made by hand, and reading what tt_cuda_put_short makes of it: it must say what the program and
 * the geometry say. */
#ifndef TEST_KERNELS_CUDA_SHORT_WORK_H
#define TEST_KERNELS_CUDA_SHORT_WORK_H

#include <check.h>
#include <stdbool.h>
#include "tutti/device.h"

enum { MOST_RANKS = 16, MOST_CHANNELS = 3 };
/* Elements, floats, of a channel's share of a block. */
#define SHARE 1000

extern struct made_work {
  struct tt_work work;
  struct tt_work_channel channels[MOST_CHANNELS];
  struct tt_conn conns[MOST_CHANNELS][2 * MOST_RANKS];
  struct tt_conn *ends[MOST_CHANNELS][2 * MOST_RANKS];
  const void *inputs[MOST_RANKS]; /* members' */
  void *outputs[MOST_RANKS];
} made;

/* Makes `made.work`. Parts are so long that the last of a share are cut short or empty. */
void make_work(const struct tt_program *program, int nchannels, int protocol, bool in_place);
/* Makes a work, and reads its short form; returns whether it has one, which it must if it is short enough. Adds the
 * number of its barriers, if asked to. */
bool read_work(const struct tt_program *program, int nchannels, int protocol, bool in_place, int *barriers);

/* test_attributes.c, test_engines.c */
void add_attributes(TCase *tc);
void add_engines(TCase *tc);
/* test_exchange.c */
void add_exchanges(TCase *tc);

#endif
