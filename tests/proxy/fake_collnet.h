/* A scripted network that reduces: two members in one process, with moods. It stands in for the plugin layer. */
#ifndef TT_TESTS_PROXY_FAKE_COLLNET_H
#define TT_TESTS_PROXY_FAKE_COLLNET_H

#include "fake_net.h"
#include "plugin/collnet.h"
#include "tutti/device.h"

/* FAKE_REG, FAKE_ISEND (posting) and FAKE_TEST may fail; change_size has no meaning. */
struct tt_collnet *fake_collnet(void);
/* A fresh network; sets the mood and clears the counts. */
void fake_collnet_open(const struct fake_mood *mood, void *comms[2]);
struct fake_count fake_collnet_counts(void);

#endif
