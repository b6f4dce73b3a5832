/* What connections of devices with memory of their own have in common, whoever's memory the slots lie in: each serves
 * one protocol, their handshakes begin alike, and slots in a slab of device memory are told and found in one way.
 *
 * A handshake begins with version, role, protocol and the bytes of a slot. A place in a slab is how the slab is
 * exported, its number and bytes, where in it the piece begins, and for exports of kinds HANDLE and FABRIC the handle.
 */
#ifndef TT_TRANSPORT_DEVICE_CONN_H
#define TT_TRANSPORT_DEVICE_CONN_H

#include <stdint.h>
#include "transport/buffers.h"
#include "transport/imports.h"
#include "transport/transport.h"
#include "transport/wire.h"

/* Of an end, in its transport's resources. */
struct tt_device_conn {
  const char *what; /* for errors: "device memory" */
  int protocol;
  struct tt_buffers buffers; /* of the memory that has the slots */
};

/* Fills `common`, and what of the connector's does not depend on the transport. `what` stays the caller's. */
ncclResult_t tt_device_conn_begin(const struct tt_transport_env *env, struct tt_connector *connector, const char *what,
                                  struct tt_device_conn *common);

/* The beginning of this end's handshake; what follows is the transport's. tt_device_conn_written ends it. */
struct tt_wire_writer tt_device_conn_write(const struct tt_connector *connector, const struct tt_device_conn *common,
                                           struct tt_handshake *mine);
void tt_device_conn_written(const struct tt_wire_writer *w, struct tt_handshake *mine);
/* Reads and checks the beginning of the other end's; the reader is at what follows. tt_device_conn_read_all then says
 * whether all was well-formed, and that is what the transport's own checks come after. */
ncclResult_t tt_device_conn_read(const struct tt_connector *connector, const struct tt_device_conn *common,
                                 const struct tt_handshake *theirs, struct tt_wire_reader *r);
ncclResult_t tt_device_conn_read_all(const struct tt_connector *connector, const struct tt_device_conn *common,
                                     const struct tt_wire_reader *r);

/* A place in another rank's slab. */
struct tt_device_place {
  struct tt_import_source source;
  uint64_t offset;
};

/* Exports the slab of this end's piece for the other end, and writes where the piece is. The last of a handshake. */
ncclResult_t tt_device_conn_write_place(const struct tt_transport_env *env, const struct tt_connector *connector,
                                        const struct tt_slab_piece *piece, struct tt_wire_writer *w);
/* The reader is bad if the slab is not exported as that rank has to for this one, or is one that it lends. */
void tt_device_conn_read_place(const struct tt_transport_env *env, const struct tt_connector *connector,
                               struct tt_wire_reader *r, struct tt_device_place *place);
/* `bytes` at that place, for this rank's device, with one more reference to the slab's import. ncclRemoteError, and no
 * reference, if they are not there. */
ncclResult_t tt_device_conn_import(const struct tt_transport_env *env, const struct tt_connector *connector,
                                   const struct tt_device_place *place, size_t bytes, struct tt_import **import,
                                   unsigned char **at);
/* How the log names an export: as NCCL does. */
const char *tt_device_conn_kind(uint32_t kind);

/* Frees the resources, of which nothing is left but their memory. */
void tt_device_conn_end(struct tt_connector *connector);

#endif
