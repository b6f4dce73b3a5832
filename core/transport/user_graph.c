/* Windows in captured graphs: what an operation uses that is captured stays mapped as long as its graph can run. */
#include "base/check.h"
#include "transport/user_internal.h"

static void let_go(void *window)
{
  tt_user_window_let_go(window);
}

ncclResult_t tt_user_window_keep(struct tt_user_buffers *buffers, struct tt_user_window *window, void *stream)
{
  const struct tt_device *device = buffers->env->device;
  struct tt_device_context *context = buffers->context->handle;
  uint64_t graph = 0;
  if (!(device->features & TT_DEVICE_GRAPHS)) return ncclSuccess;
  TT_TRY(device->capturing(context, stream, &graph));
  if (graph == 0 || window->graph == graph) return ncclSuccess;
  tt_user_window_hold(window);
  TT_TRY(device->at_graph_end(context, stream, let_go, window)); /* has let go if it failed */
  window->graph = graph;
  return ncclSuccess;
}
