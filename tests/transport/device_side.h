/* Ranks of tests on the fake device, some of whose functions count or fail here; pairs of ends, and data by hand. */
#ifndef TT_TESTS_TRANSPORT_DEVICE_SIDE_H
#define TT_TESTS_TRANSPORT_DEVICE_SIDE_H

#include "side.h"
#include "tests/fakes/device/fake.h"

/* What sides use after device_use_fake; and how often its functions were called (exports: to others, local). */
extern struct tt_device device_fake;
extern int device_imports, device_exports[2], device_allocs, device_maps;
extern bool device_imports_fail, device_exports_fail, device_maps_fail;
/* Of pairs: tt_transport_device, unless a test sets another one. */
extern const struct tt_transport *device_transport;

/* Fixtures. */
void device_use_fake(void);
void device_use_none(void);
/* Contexts, memory and ends. */
void device_expect_nothing_left(void);

ncclResult_t device_counted_export(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                                   struct tt_device_export *out);
ncclResult_t device_counted_import(struct tt_device_context *context, const struct tt_device_export *in,
                                   struct tt_device_memory *memory);

/* An end that is not set up. */
struct tt_connector device_half(const struct side *side, bool send, int protocol);

/* A pair of ends in this process: rank 0 sends. */
struct device_pair {
  struct side sides[2];
  struct tt_connector connectors[2];
  struct tt_handshake handshakes[2];
};
void device_set_up_pair(struct device_pair *pair, int protocol);
void device_connect_pair(struct device_pair *pair);
void device_close_pair(struct device_pair *pair);

/* Fill and read whole slots. */
void device_send(struct tt_conn *conn, int protocol, uint64_t steps);
bool device_recv(struct tt_conn *conn, int protocol, uint64_t steps);

#endif
