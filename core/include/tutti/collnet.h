/*
 * tutti/collnet.h: the collnet plugin ABI, versions 6 to 12, compatible with NCCL's: networks that reduce.
 *
 * A library that may also be a net plugin (tutti/net.h) exports one or more data objects `ncclCollNetPlugin_vN` of type
 * ncclCollNet_vN_t. The loader takes the newest version that it knows, copies the struct, and never writes to it. What
 * tutti/net.h says of return values, of objects, of logging and of properties holds here too. Everything is documented
 * once, at ncclCollNet_v12_t; older versions by their difference from the next newer one.
 *
 * A collComm is a group of ranks, one of each host, whose buffers the network reduces. Operations on a collComm are
 * posted by all its ranks in the same order, and several are in flight at once.
 *
 * Threads: as tutti/net.h says for init ... finalize; reduceSupport as devices. listen, connect, regMr, regMrDmaBuf,
 * deregMr and close* are called by the thread that makes or destroys a communicator or by a proxy service thread, one
 * at a time for a collComm; iallreduce ... test by a proxy progress thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TUTTI_COLLNET_H_
#define TUTTI_COLLNET_H_

#include "tutti/net.h"

#ifdef __cplusplus
extern "C" {
#define TUTTI_COLLNET_ASSERT(condition) static_assert(condition, #condition)
#else
#define TUTTI_COLLNET_ASSERT(condition) _Static_assert(condition, #condition)
#endif

/* One piece of a scattered buffer. */
typedef struct {
  void *mhandle;
  void *address;
  size_t size;
} ncclNetSGE_v9_t;
typedef ncclNetSGE_v9_t ncclNetSGE_v10_t;
typedef ncclNetSGE_v9_t ncclNetSGE_v11_t;
typedef ncclNetSGE_v9_t ncclNetSGE_v12_t;
typedef struct {
  void *mhandle;
  void *address;
  uint32_t size;
} ncclNetSGE_v8_t;

/* ---- Versions 12 and 11 ---- */

typedef struct {
  /* Of the network, for messages and to compare ranks. */
  const char *name;
  /* Once for each communicator; *ctx is the plugin's and comes back with listen and finalize. An error means that the
   * network is not used; finalize is then not called. */
  ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t logFunction);
  /* 0 is no error: the network is then not used, and all further members may be NULL. */
  ncclResult_t (*devices)(int *ndev);
  /* maxCollBytes is the largest buffer of an operation. */
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t *props);
  /* Never blocks. `handle` has NCCL_NET_HANDLE_MAXSIZE bytes, which the caller brings to all ranks of the group. */
  ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
  /* `handles` has nranks entries in the order of the group, the caller's own at `rank`. Called once by all ranks of the
   * group; may block until all have called it, and should end with an error when that takes too long. The listenComm is
   * closed afterwards. */
  ncclResult_t (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
  /* *supported: whether iallreduce takes this type with this operation (ncclSum, ncclProd, ncclMax or ncclMin). The
   * same answer on all ranks. */
  ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
  /* As in ncclNet_v12_t. */
  ncclResult_t (*regMr)(void *collComm, void *data, size_t size, int type, void **mhandle);
  /* May be NULL. */
  ncclResult_t (*regMrDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                              void **mhandle);
  ncclResult_t (*deregMr)(void *collComm, void *mhandle);
  /* Element i of recvData becomes the reduction of all ranks' elements i of sendData, in an order that is the same on
   * all ranks. The buffers do not overlap and stay until the request is done. *request NULL with ncclSuccess: could not
   * be posted now, call again with the same arguments. */
  ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, size_t count, ncclDataType_t dataType,
                             ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle, void **request);
  /* May be NULL, as may ireducescatter. The windows let a large operation be done piece by piece: of the bytesPerRank
   * bytes of each rank, those from windowOffset on, windowBytes of them. */
  ncclResult_t (*iallgather)(void *collComm, void *sendData, int nRecvParts, ncclNetSGE_v12_t *recvParts,
                             size_t bytesPerRank, size_t windowOffset, size_t windowBytes, void *sendMhandle,
                             void **request);
  ncclResult_t (*ireducescatter)(void *collComm, int nSendParts, ncclNetSGE_v12_t *sendParts, void *recvData,
                                 size_t bytesPerRank, size_t windowOffset, size_t windowBytes, ncclDataType_t dataType,
                                 ncclRedOp_t redOp, void *recvMhandle, void **request);
  /* Makes received data visible to a GPU. May be NULL. *request NULL: nothing to wait for. */
  ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
  /* *done is 0 or 1; the request is dead once it is 1. *size may be set to the bytes received; it is not NULL. */
  ncclResult_t (*test)(void *request, int *done, int *size);
  /* Also with requests in flight, which are given up. */
  ncclResult_t (*closeColl)(void *collComm);
  ncclResult_t (*closeListen)(void *listenComm);
  /* May be NULL. */
  ncclResult_t (*makeVDevice)(int *d, ncclNetVDeviceProps_v12_t *props);
  /* Once for each successful init, after all collComms of that communicator are closed. May be NULL. */
  ncclResult_t (*finalize)(void *ctx);
} ncclCollNet_v12_t;

/* Properties without rail and plane, and virtual devices of at most 4. */
typedef struct {
  const char *name;
  ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t *props);
  ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
  ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
  ncclResult_t (*regMr)(void *collComm, void *data, size_t size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                              void **mhandle);
  ncclResult_t (*deregMr)(void *collComm, void *mhandle);
  ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, size_t count, ncclDataType_t dataType,
                             ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle, void **request);
  ncclResult_t (*iallgather)(void *collComm, void *sendData, int nRecvParts, ncclNetSGE_v11_t *recvParts,
                             size_t bytesPerRank, size_t windowOffset, size_t windowBytes, void *sendMhandle,
                             void **request);
  ncclResult_t (*ireducescatter)(void *collComm, int nSendParts, ncclNetSGE_v11_t *sendParts, void *recvData,
                                 size_t bytesPerRank, size_t windowOffset, size_t windowBytes, ncclDataType_t dataType,
                                 ncclRedOp_t redOp, void *recvMhandle, void **request);
  ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
  ncclResult_t (*test)(void *request, int *done, int *size);
  ncclResult_t (*closeColl)(void *collComm);
  ncclResult_t (*closeListen)(void *listenComm);
  ncclResult_t (*makeVDevice)(int *d, ncclNetVDeviceProps_v11_t *props);
  ncclResult_t (*finalize)(void *ctx);
} ncclCollNet_v11_t;

/* ---- Versions 10 and 9: one state for the process instead of a context for each communicator ----
 * init is called when the plugin is loaded and again only after its last communicator has gone; there is no finalize.
 */

typedef struct {
  const char *name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v9_t *props);
  ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
  ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
  ncclResult_t (*regMr)(void *collComm, void *data, size_t size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                              void **mhandle);
  ncclResult_t (*deregMr)(void *collComm, void *mhandle);
  ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, size_t count, ncclDataType_t dataType,
                             ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle, void **request);
  ncclResult_t (*iallgather)(void *collComm, void *sendData, int nRecvParts, ncclNetSGE_v9_t *recvParts,
                             size_t bytesPerRank, size_t windowOffset, size_t windowBytes, void *sendMhandle,
                             void **request);
  ncclResult_t (*ireducescatter)(void *collComm, int nSendParts, ncclNetSGE_v9_t *sendParts, void *recvData,
                                 size_t bytesPerRank, size_t windowOffset, size_t windowBytes, ncclDataType_t dataType,
                                 ncclRedOp_t redOp, void *recvMhandle, void **request);
  ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
  ncclResult_t (*test)(void *request, int *done, int *size);
  ncclResult_t (*closeColl)(void *collComm);
  ncclResult_t (*closeListen)(void *listenComm);
  ncclResult_t (*makeVDevice)(int *d, ncclNetVDeviceProps_v9_t *props);
} ncclCollNet_v9_t;

typedef ncclCollNet_v9_t ncclCollNet_v10_t;

/* ---- Version 8: counts as int, at most MAX_COLLNET_SIZE bytes; no virtual devices ---- */

typedef struct {
  const char *name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v8_t *props);
  ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
  ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
  ncclResult_t (*regMr)(void *collComm, void *data, size_t size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                              void **mhandle);
  ncclResult_t (*deregMr)(void *collComm, void *mhandle);
  ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, int count, ncclDataType_t dataType,
                             ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle, void **request);
  ncclResult_t (*iallgather)(void *collComm, void *sendData, int nRecvParts, ncclNetSGE_v8_t *recvParts,
                             size_t bytesPerRank, size_t windowOffset, size_t windowBytes, void *sendMhandle,
                             void **request);
  ncclResult_t (*ireducescatter)(void *collComm, int nSendParts, ncclNetSGE_v8_t *sendParts, void *recvData,
                                 size_t bytesPerRank, size_t windowOffset, size_t windowBytes, ncclDataType_t dataType,
                                 ncclRedOp_t redOp, void *recvMhandle, void **request);
  ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
  ncclResult_t (*test)(void *request, int *done, int *size);
  ncclResult_t (*closeColl)(void *collComm);
  ncclResult_t (*closeListen)(void *listenComm);
} ncclCollNet_v8_t;

/* ---- Version 7: no iallgather and ireducescatter; registrations of less than 2 GiB ---- */

typedef struct {
  const char *name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v7_t *props);
  ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
  ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
  ncclResult_t (*regMr)(void *collComm, void *data, int size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                              void **mhandle);
  ncclResult_t (*deregMr)(void *collComm, void *mhandle);
  ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, int count, ncclDataType_t dataType,
                             ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle, void **request);
  ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
  ncclResult_t (*test)(void *request, int *done, int *size);
  ncclResult_t (*closeColl)(void *collComm);
  ncclResult_t (*closeListen)(void *listenComm);
} ncclCollNet_v7_t;

/* ---- Version 6: properties without device offload ---- */

typedef struct {
  const char *name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int *ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v6_t *props);
  ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
  ncclResult_t (*connect)(void *handles[], int nranks, int rank, void *listenComm, void **collComm);
  ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
  ncclResult_t (*regMr)(void *collComm, void *data, int size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                              void **mhandle);
  ncclResult_t (*deregMr)(void *collComm, void *mhandle);
  ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, int count, ncclDataType_t dataType,
                             ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle, void **request);
  ncclResult_t (*iflush)(void *collComm, void *data, int size, void *mhandle, void **request);
  ncclResult_t (*test)(void *request, int *done, int *size);
  ncclResult_t (*closeColl)(void *collComm);
  ncclResult_t (*closeListen)(void *listenComm);
} ncclCollNet_v6_t;

typedef ncclCollNet_v12_t ncclCollNet_t;
#define NCCL_COLLNET_PLUGIN_SYMBOL ncclCollNetPlugin_v12

/* ---- The layouts are the ABI (64-bit platforms) ---- */

TUTTI_COLLNET_ASSERT(sizeof(ncclCollNet_v12_t) == 152 && sizeof(ncclCollNet_v11_t) == 152);
TUTTI_COLLNET_ASSERT(sizeof(ncclCollNet_v9_t) == 144 && sizeof(ncclCollNet_v8_t) == 136);
TUTTI_COLLNET_ASSERT(sizeof(ncclCollNet_v7_t) == 120 && sizeof(ncclCollNet_v6_t) == 120);
TUTTI_COLLNET_ASSERT(offsetof(ncclCollNet_v12_t, iallreduce) == 80 && offsetof(ncclCollNet_v12_t, test) == 112);
TUTTI_COLLNET_ASSERT(offsetof(ncclCollNet_v7_t, iflush) == 88 && offsetof(ncclCollNet_v7_t, closeListen) == 112);
TUTTI_COLLNET_ASSERT(sizeof(ncclNetSGE_v9_t) == 24 && sizeof(ncclNetSGE_v8_t) == 24);

#undef TUTTI_COLLNET_ASSERT

#ifdef __cplusplus
}
#endif

#endif
