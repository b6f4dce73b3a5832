/* User objects: what a graph and its executables hold, and tell of their end. */
#include "gpu.h"

#include <stdlib.h>

struct CUuserObject_st {
  struct CUuserObject_st *next;
  unsigned references;
  cudaHostFn_t destroy;
  void *argument;
};
static struct CUuserObject_st *all;

/* Its destructor is called on a thread for such, which may be later. */
static void give_up(struct CUuserObject_st *object, unsigned count)
{
  object->references -= count;
  if (object->references > 0) return;
  struct CUuserObject_st **place = &all;
  while (*place != object) place = &(*place)->next;
  *place = object->next;
  emu_call_later(object->destroy, object->argument, NULL);
  free(object);
}

static void hold(struct emu_held **held, struct CUuserObject_st *object, unsigned count)
{
  struct emu_held *one = emu_calloc(1, sizeof(*one));
  *one = (struct emu_held){.next = *held, .object = object, .count = count};
  *held = one;
}

struct emu_held *emu_objects_copy(const struct emu_held *objects)
{
  struct emu_held *copy = NULL;
  for (; objects != NULL; objects = objects->next) {
    objects->object->references++;
    hold(&copy, objects->object, 1);
  }
  return copy;
}

void emu_objects_free(struct emu_held *objects)
{
  while (objects != NULL) {
    struct emu_held *next = objects->next;
    give_up(objects->object, objects->count);
    free(objects);
    objects = next;
  }
}

static bool is_object(const struct CUuserObject_st *object)
{
  const struct CUuserObject_st *other = all;
  while (other != NULL && other != object) other = other->next;
  return other != NULL;
}

static cudaError_t create(cudaUserObject_t *out, void *argument, cudaHostFn_t destroy, unsigned count)
{
  struct CUuserObject_st *object = emu_calloc(1, sizeof(*object));
  *object = (struct CUuserObject_st){.next = all, .references = count, .destroy = destroy, .argument = argument};
  *out = all = object;
  return cudaSuccess;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *argument, cudaHostFn_t destroy, unsigned count,
                                 unsigned flags)
{
  if (object == NULL || destroy == NULL || count == 0 || flags != cudaUserObjectNoDestructorSync)
    return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_NO_CONTEXT, create(object, argument, destroy, count));
}

static cudaError_t release(cudaUserObject_t object, unsigned count)
{
  if (!is_object(object) || count == 0 || count > object->references) return cudaErrorInvalidValue;
  give_up(object, count);
  return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count)
{
  EMU_RUNTIME(EMU_NO_CONTEXT, release(object, count));
}

static cudaError_t retain(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags)
{
  if (!emu_graph_is(graph) || !is_object(object) || count == 0) return cudaErrorInvalidValue;
  if (flags == cudaGraphUserObjectMove && count > object->references) return cudaErrorInvalidValue;
  if (flags != cudaGraphUserObjectMove) object->references += count;
  hold(&graph->objects, object, count);
  return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags)
{
  if (flags != 0 && flags != cudaGraphUserObjectMove) return cudaErrorInvalidValue;
  EMU_RUNTIME(EMU_NO_CONTEXT, retain(graph, object, count, flags));
}
