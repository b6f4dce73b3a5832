/* What a thread of an emulated kernel calls; device.h and include/kernels/cuda/ptx.cuh have the names that kernels use.
 */
#ifndef TESTS_EMULATED_GPU_THREADS_H
#define TESTS_EMULATED_GPU_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct emu_index {
  unsigned x, y, z;
};
/* Of the thread that runs. */
struct emu_place {
  struct emu_index thread, block, block_size, grid_size;
};
extern struct emu_place *emu_place;

/* All lanes of a warp come, and each gets the answer. */
enum emu_meeting { EMU_SYNC, EMU_ALL, EMU_ANY, EMU_FROM_FIRST };
uint64_t emu_meet(enum emu_meeting kind, uint64_t value);
/* threads: 0 for the whole block. True for all if `value` is for one. */
bool emu_barrier(int id, int threads, bool value);
/* Before a load that a lane may do while others of its warp do not: others may run, and the lane may fall behind. */
void emu_may_part(void);
/* The thread changes something that others see. */
void emu_moved(void);
/* Stores without an order. The thread sees its own; others of the block those from before a barrier, a meeting or a
 * release (emu_publish) that they know of; all others see them some day, or behind the fence of a thread that sees
 * them. Of 16, 8 or 1 bytes. */
void emu_store(void *to, const void *data, uint32_t bytes);
void emu_load(const void *from, void *data, uint32_t bytes);
/* 16 bytes that lanes of a warp, if they are together, read of a line of 128 bytes at once. */
void emu_load_together(const void *from, void *data);
void emu_publish(void);
void emu_fence(void);
/* What this thread sees under way to a place arrives, before another kind of store goes there. */
void emu_settle(const void *at, uint32_t bytes);
/* Where the copies of what a multicast address names lie, at most `most`; none: ends the process (multicast.c). */
int emu_copies(const void *at, void **copies, int most);
/* Where a thread waits for the grid before its own, if that is not over (grid.h); and where it lets the next begin. */
void emu_await_grid(void);
void emu_let_grid_begin(void);
/* Ends the process, and says where it was. */
__attribute__((noreturn)) void emu_die(const char *what);

#ifdef __cplusplus
}
#endif

#endif
