/* Two ports that work as one, and messages over them. */
#ifndef IB_PORTS_H
#define IB_PORTS_H

#include "ib_fixture.h"

enum { MESSAGES = 100, WINDOW = 16, BYTES = 200000 };

/* The same two ports at both ends, of little patience; their device. */
int open_fused(struct pair *pair);
/* Two ports here and two others there, so that what happens to one has to do with one side. */
void open_apart(struct pair *pair, size_t bytes);
/* Messages of all sizes with many under way; `action` in the middle. Buffers are spoiled as soon as they are free
 * again, so that a second write would show. */
void stream(struct pair *pair, const char *action, int when);

#endif
