/* Opening libibverbs. */
#include "verbs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static struct tt_ib_verbs verbs;
static char trouble[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_library(void)
{
  static const struct {
    const char *name;
    void **place;
    bool optional;
  } symbols[] = {{"ibv_get_device_list", (void **)&verbs.get_device_list, false},
                 {"ibv_free_device_list", (void **)&verbs.free_device_list, false},
                 {"ibv_open_device", (void **)&verbs.open_device, false},
                 {"ibv_close_device", (void **)&verbs.close_device, false},
                 {"ibv_query_device", (void **)&verbs.query_device, false},
                 {"ibv_query_port", (void **)&verbs.query_port, false},
                 {"ibv_query_gid", (void **)&verbs.query_gid, false},
                 {"ibv_get_async_event", (void **)&verbs.get_async_event, false},
                 {"ibv_ack_async_event", (void **)&verbs.ack_async_event, false},
                 {"ibv_alloc_pd", (void **)&verbs.alloc_pd, false},
                 {"ibv_dealloc_pd", (void **)&verbs.dealloc_pd, false},
                 {"ibv_reg_mr", (void **)&verbs.reg_mr, false},
                 {"ibv_dereg_mr", (void **)&verbs.dereg_mr, false},
                 {"ibv_create_cq", (void **)&verbs.create_cq, false},
                 {"ibv_destroy_cq", (void **)&verbs.destroy_cq, false},
                 {"ibv_create_qp", (void **)&verbs.create_qp, false},
                 {"ibv_modify_qp", (void **)&verbs.modify_qp, false},
                 {"ibv_destroy_qp", (void **)&verbs.destroy_qp, false},
                 {"ibv_event_type_str", (void **)&verbs.event_type_str, false},
                 {"ibv_fork_init", (void **)&verbs.fork_init, true},
                 {"_ibv_query_gid_ex", (void **)&verbs.query_gid_ex, true},
                 {"ibv_reg_mr_iova2", (void **)&verbs.reg_mr_iova2, true},
                 {"ibv_reg_dmabuf_mr", (void **)&verbs.reg_dmabuf_mr, true}};
  void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(trouble, sizeof trouble, "%s", dlerror());
    return;
  }
  for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
    *symbols[i].place = dlsym(library, symbols[i].name);
    if (*symbols[i].place || symbols[i].optional) continue;
    snprintf(trouble, sizeof trouble, "libibverbs.so.1 has no %s; it is too old", symbols[i].name);
    return;
  }
  /* For children that touch memory which is registered here. Kernels from 5.12 on copy such pages by themselves. */
  if (verbs.fork_init) verbs.fork_init();
}

const struct tt_ib_verbs *tt_ib_verbs(const char **why)
{
  pthread_once(&once, open_library);
  if (why) *why = trouble;
  return trouble[0] ? NULL : &verbs;
}

int tt_ib_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
  /* The exported function fills a struct of an older size; newer libraries have the other in the context. */
  struct verbs_context *extended = verbs_get_ctx_op(context, query_port);
  memset(attr, 0, sizeof *attr);
  if (extended) return extended->query_port(context, port, attr, sizeof *attr);
  return verbs.query_port(context, port, (struct _compat_ibv_port_attr *)attr);
}
