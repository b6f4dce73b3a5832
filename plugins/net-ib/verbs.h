/* libibverbs, opened when it is first needed, so that the plugin loads where it is not installed. The header gives
 * types and the inline functions of the data path (ibv_poll_cq, ibv_post_send, ibv_post_recv), which go through the
 * context and need no library. */
#ifndef TT_IB_VERBS_H
#define TT_IB_VERBS_H

#include <infiniband/verbs.h>
#include "nccl.h"

#undef ibv_reg_mr
#undef ibv_query_port

struct tt_ib_verbs {
  struct ibv_device **(*get_device_list)(int *count);
  void (*free_device_list)(struct ibv_device **list);
  struct ibv_context *(*open_device)(struct ibv_device *device);
  int (*close_device)(struct ibv_context *context);
  int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
  int (*query_port)(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr);
  int (*query_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
  int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
  void (*ack_async_event)(struct ibv_async_event *event);
  struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
  int (*dealloc_pd)(struct ibv_pd *pd);
  struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *address, size_t bytes, int access);
  int (*dereg_mr)(struct ibv_mr *mr);
  struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *user, struct ibv_comp_channel *channel,
                              int vector);
  int (*destroy_cq)(struct ibv_cq *cq);
  struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
  int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
  int (*destroy_qp)(struct ibv_qp *qp);
  const char *(*event_type_str)(enum ibv_event_type type);
  /* NULL in older libraries */
  int (*fork_init)(void);
  int (*query_gid_ex)(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t bytes);
  struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *address, size_t bytes, uint64_t iova, unsigned access);
  struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access);
};

/* The library's functions, or NULL with the reason in *why. Opened once, never closed: what it loads (the drivers) may
 * not be unloaded. Any thread. */
const struct tt_ib_verbs *tt_ib_verbs(const char **why);

/* All members of the port's attributes that the library knows; the others are 0. An errno, or 0. */
int tt_ib_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);

#endif
