/* Ranks of one process with a buffer and a window each, on the fake device, for the tests of windows. They look into
 * communicators for what was mapped. */
#ifndef TT_TESTS_API_WINDOWS_H
#define TT_TESTS_API_WINDOWS_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"
#include "plan/comm.h"
#include "tests/fakes/device/fake.h"
#include "transport/user_buffers.h"

enum { N = 3, BYTES = 3 << 16 };

struct world {
  ncclComm_t comms[N];
  unsigned char *buffers[N];
  ncclWindow_t windows[N];
};

void ok(ncclResult_t result);
void refused(ncclResult_t result, ncclResult_t wanted, const char *words);
bool is_all(const void *ptr, size_t count, int value);

/* What the fake device has in this process: allocations and imports; nothing. */
int memories(void);
void expect_nothing_left(void);

void open_comms(struct world *world);
void destroy_all(struct world *world);
/* Buffers of ncclMemAlloc. */
void allocate(struct world *world);
void free_all(struct world *world);
/* Several allocations side by side, as expandable segments have them. */
unsigned char *allocate_parts(int device, int parts, size_t bytes);
void free_parts(unsigned char *ptr, int parts, size_t bytes);
/* The same part of all buffers, in one group. */
ncclResult_t register_all(struct world *world, size_t offset, size_t bytes);
void deregister_all(struct world *world);

ncclResult_t find(ncclComm_t comm, const void *ptr, size_t bytes, struct tt_user_place *place, void **at);
bool is_mapped(ncclComm_t comm, const void *ptr, size_t bytes);
/* Each rank finds each other's buffer where it wrote its mark, and is the only one to. */
void expect_mapped(struct world *world, size_t offset, size_t bytes, uint32_t number);
void expect_unmapped(struct world *world);
/* Registered on all ranks, and mapped on none: its handle is as good as another. */
void expect_noted(struct world *world, int before);

void add_windows(Suite *suite);
void add_windows_ends(Suite *suite);
void add_windows_parts(Suite *suite);
void add_windows_refused(Suite *suite);

#endif
