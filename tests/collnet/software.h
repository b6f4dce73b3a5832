/* A collnet plugin in software, for tests: the first rank of a group reduces what the others send it over TCP. Nothing
 * of it blocks but connect. The environment asks for faults:
 *
 *     SOFTWARE_COLLNET_FAULT   init, devices, listen, connect, register, post, test: that call fails (devices: there
 *                              are none); small: an operation has 1000 bytes at most (v9 on)
 *     SOFTWARE_COLLNET_AFTER   for post and test: after so many operations that went well
 *     SOFTWARE_COLLNET_ONLY    the one type that is reduced: "float32"
 *     SOFTWARE_COLLNET_LATE    so many tests say "not yet" of an operation that is done
 *     SOFTWARE_COLLNET_PATIENCE  milliseconds that connect waits for a member; -1: for ever
 *     SOFTWARE_COLLNET_LOG     a file to which each operation is written, a line of count, type and operation each
 */
#ifndef TESTS_COLLNET_SOFTWARE_H
#define TESTS_COLLNET_SOFTWARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tutti/collnet.h"

extern ncclDebugLogger_t software_logger;
#define WARN(...) software_logger(NCCL_LOG_WARN, NCCL_NET, __FILE__, __LINE__, __VA_ARGS__)

/* reduce.c: into[i] = op(into[i], from[i]). */
size_t software_bytes(ncclDataType_t type); /* 0: not reduced */
const char *software_type_name(ncclDataType_t type);
void software_reduce(void *into, const void *from, size_t count, ncclDataType_t type, ncclRedOp_t op);

/* group.c: who is connected with whom. A group has one socket a member on its root, rank 0, and one on the others. */
struct group;
struct request;
ncclResult_t software_listen(void *handle, void **listener);
ncclResult_t software_connect(void *handles[], int nranks, int rank, void *listener, struct group **group);
ncclResult_t software_close_listen(void *listener);
void software_close(struct group *group);
/* NULL in *request where too much is in flight. */
ncclResult_t software_post(struct group *group, const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, struct request **request);
ncclResult_t software_test(struct request *request, int *done);

#endif
