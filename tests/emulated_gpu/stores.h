/* Stores that are under way: made by a thread, and not yet seen by others. They arrive in any order, but those to one
 * place in theirs. */
#ifndef TESTS_EMULATED_GPU_STORES_H
#define TESTS_EMULATED_GPU_STORES_H

#include <stdbool.h>
#include <stdint.h>

struct store {
  unsigned char *to;
  uint32_t bytes;
  unsigned char data[16];
};
struct stores {
  struct store *list; /* in their order */
  uint32_t count, room;
};

/* Makes some arrive if there would be more than `most`, which is at most 128. */
void stores_put(struct stores *stores, void *to, const void *data, uint32_t bytes, uint32_t most);
/* Puts what is under way to a place into what was read there. */
void stores_look(const struct stores *stores, const void *from, void *data, uint32_t bytes);
bool stores_touch(const struct stores *stores, const void *at, uint32_t bytes);
/* Those of one become those of another. */
void stores_move(struct stores *from, struct stores *to, uint32_t most);
/* One of them arrives, any; or all do. */
void stores_arrive(struct stores *stores);
void stores_arrive_all(struct stores *stores);
void stores_free(struct stores *stores);

#endif
