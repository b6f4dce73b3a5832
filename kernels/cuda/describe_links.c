/* The NVLinks of a GPU: which work, where they lead, and what is wrong with the others. See describe.h.
 *
 * A link counts if NVML says that it serves peers, that it is active, and what is at its other end. A link that fails
 * any of this is not used, as in NCCL; but a GPU that has less than its equals in the machine slows the whole job down,
 * so each of its links is then named with its state. Links that are inactive on all of them are how the machine is. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "kernels/cuda/describe.h"

enum { MOST_LINKS = TT_DEVICE_NEIGHBOURS };

enum state { UP, INACTIVE, NO_PEERS, NO_ANSWER, NO_STATE, NO_REMOTE, STATES };

/* `error` is NVML's, for the states that come of one. */
struct link {
  enum state state;
  int error;
};

struct links {
  int count;
  struct link link[MOST_LINKS];
};

/* ---- Which there are, and whether they are active ---- */

/* How many to ask for: as many as NVML says, else as many as GPUs of this generation have at most. */
static int count_links(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, int sm)
{
  struct tt_nvml_field field = {.id = TT_NVML_FIELD_LINK_COUNT};
  if (TT_NVML_CALL(nvml, fields, gpu, 1, &field) == TT_NVML_SUCCESS && field.result == TT_NVML_SUCCESS &&
      field.value.number > 0)
    return (int)TT_MIN(field.value.number, (uint32_t)MOST_LINKS);
  return sm < 60 ? 0 : sm < 70 ? 4 : sm < 80 ? 6 : sm < 90 ? 12 : 18;
}

static struct link ask_link(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, uint32_t number)
{
  uint32_t can = 0, active = 0;
  int error = TT_NVML_CALL(nvml, link_capability, gpu, number, TT_NVML_LINK_CAN_PEER, &can);
  if (error != TT_NVML_SUCCESS) return (struct link){NO_ANSWER, error};
  if (!can) return (struct link){NO_PEERS, 0};
  error = TT_NVML_CALL(nvml, link_state, gpu, number, &active);
  if (error != TT_NVML_SUCCESS) return (struct link){NO_STATE, error};
  return (struct link){active == 1 ? UP : INACTIVE, 0};
}

/* Newer GPUs tell the state as a field, of all links in one call; the other way may say nothing there. */
static void ask_states(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, struct links *links)
{
  struct tt_nvml_field fields[MOST_LINKS] = {0};
  for (int l = 0; l < links->count; l++)
    fields[l] = (struct tt_nvml_field){.id = TT_NVML_FIELD_LINK_STATE, .scope = (uint32_t)l};
  if (TT_NVML_CALL(nvml, fields, gpu, links->count, fields) != TT_NVML_SUCCESS) return;
  for (int l = 0; l < links->count; l++) {
    struct link *link = &links->link[l];
    if (link->state == NO_ANSWER || link->state == NO_PEERS) continue;
    if (fields[l].result == TT_NVML_SUCCESS)
      *link = (struct link){fields[l].value.number == 1 ? UP : INACTIVE, 0};
    else if (link->state != UP)
      *link = (struct link){NO_STATE, fields[l].result};
  }
}

static void ask_links(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, int sm, struct links *links)
{
  links->count = count_links(nvml, gpu, sm);
  for (int l = 0; l < links->count; l++) links->link[l] = ask_link(nvml, gpu, (uint32_t)l);
  if (sm >= 90 && links->count > 0) ask_states(nvml, gpu, links);
}

static int count_state(const struct links *links, enum state state)
{
  int count = 0;
  for (int l = 0; l < links->count; l++) count += links->link[l].state == state;
  return count;
}

/* ---- Where they lead ---- */

/* By its class, which the kernel knows also of devices that this container may not use. */
static uint32_t kind_by_class(const char *pci)
{
  char path[256], class[16] = "";
  snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/class", TT_CUDA_SYSFS, pci);
  FILE *file = fopen(path, "re");
  if (!file) return TT_NEIGHBOUR_SWITCH;
  if (!fgets(class, sizeof(class), file)) class[0] = '\0';
  fclose(file);
  if (strncmp(class, "0x03", 4) == 0) return TT_NEIGHBOUR_DEVICE;
  return strncmp(class, "0x068001", 8) == 0 ? TT_NEIGHBOUR_CPU : TT_NEIGHBOUR_SWITCH;
}

static uint32_t find_kind(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, uint32_t link, const char *pci)
{
  int type;
  struct tt_nvml_gpu *other;
  if (pci[0] == '\0') return TT_NEIGHBOUR_SWITCH;
  if (TT_NVML_CALL(nvml, link_remote_type, gpu, link, &type) == TT_NVML_SUCCESS) {
    if (type == TT_NVML_REMOTE_GPU) return TT_NEIGHBOUR_DEVICE;
    if (type == TT_NVML_REMOTE_CPU) return TT_NEIGHBOUR_CPU;
    if (type == TT_NVML_REMOTE_SWITCH) return TT_NEIGHBOUR_SWITCH;
  }
  if (nvml->by_bus_id(pci, &other) == TT_NVML_SUCCESS) return TT_NEIGHBOUR_DEVICE;
  return kind_by_class(pci);
}

static void add_link(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, uint32_t link, const char *pci,
                     struct tt_device_description *out)
{
  struct tt_device_neighbour *n = out->neighbours;
  while (n < out->neighbours + out->nneighbours && strcmp(n->pci, pci) != 0) n++;
  if (n == out->neighbours + out->nneighbours) {
    out->nneighbours++; /* there are no more than links */
    snprintf(n->pci, sizeof(n->pci), "%s", pci);
    n->kind = find_kind(nvml, gpu, link, pci);
  }
  n->links++;
}

static void ask_remotes(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, struct links *links,
                        struct tt_device_description *out)
{
  for (int l = 0; l < links->count; l++) {
    struct link *link = &links->link[l];
    if (link->state != UP) continue;
    struct tt_nvml_pci remote = {.short_id = ""};
    char pci[24];
    link->error = TT_NVML_CALL(nvml, link_remote, gpu, (uint32_t)l, &remote);
    if (link->error != TT_NVML_SUCCESS) {
      link->state = NO_REMOTE;
      continue;
    }
    remote.short_id[sizeof(remote.short_id) - 1] = remote.bus_id[sizeof(remote.bus_id) - 1] = '\0';
    if (!tt_cuda_bus_id(remote.bus_id, pci)) tt_cuda_bus_id(remote.short_id, pci);
    add_link(nvml, gpu, (uint32_t)l, pci, out);
  }
}

/* ---- What is wrong with the others ---- */

/* Links that are active on the GPU of the same kind that has most of them. */
static int most_of_equals(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, int sm)
{
  struct tt_nvml_pci own = {0}, its;
  uint32_t count;
  int most = 0;
  if (TT_NVML_CALL(nvml, pci, gpu, &own) != TT_NVML_SUCCESS || nvml->count(&count) != TT_NVML_SUCCESS) return 0;
  for (uint32_t i = 0; i < count; i++) {
    struct tt_nvml_gpu *other;
    struct links links = {0};
    its = (struct tt_nvml_pci){0};
    if (nvml->by_index(i, &other) != TT_NVML_SUCCESS || nvml->pci(other, &its) != TT_NVML_SUCCESS) continue;
    if (its.ids != own.ids || (its.domain == own.domain && its.bus == own.bus && its.device == own.device)) continue;
    ask_links(nvml, other, sm, &links);
    most = TT_MAX(most, count_state(&links, UP));
  }
  return most;
}

struct text {
  char *at;
  size_t left;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  int written = vsnprintf(text->at, text->left, format, args);
  va_end(args);
  size_t step = written < 0 ? 0 : TT_MIN((size_t)written, text->left - 1);
  text->at += step;
  text->left -= step;
}

static bool is_same(struct link a, struct link b)
{
  return a.state == b.state && a.error == b.error;
}

static int count_same(const struct links *links, struct link link)
{
  int count = 0;
  for (int l = 0; l < links->count; l++) count += is_same(links->link[l], link);
  return count;
}

/* "links 0-3, 7 are inactive; ..." */
static void say_states(const struct tt_nvml *nvml, const struct links *links, char *buffer, size_t size)
{
  static const char *const words[STATES] = {[INACTIVE] = "inactive",
                                            [NO_PEERS] = "not made for peers",
                                            [NO_ANSWER] = "not told of",
                                            [NO_STATE] = "in a state that cannot be read",
                                            [NO_REMOTE] = "active, with an other end that cannot be read"};
  struct text text = {buffer, size};
  bool said[MOST_LINKS] = {false};
  buffer[0] = '\0';
  for (int first = 0; first < links->count; first++) {
    struct link link = links->link[first];
    if (link.state == UP || said[first]) continue;
    bool one = count_same(links, link) == 1;
    add(&text, "%slink%s ", buffer[0] ? "; " : "", one ? "" : "s");
    for (int l = first; l < links->count; l++) {
      if (!is_same(links->link[l], link)) continue;
      int last = l;
      while (last + 1 < links->count && is_same(links->link[last + 1], link)) last++;
      add(&text, l == first ? "%d" : ", %d", l);
      if (last > l) add(&text, "-%d", last);
      for (; l < last; l++) said[l] = true;
      said[last] = true;
    }
    add(&text, " %s %s", one ? "is" : "are", words[link.state]);
    if (link.error != TT_NVML_SUCCESS) add(&text, " (%s)", tt_nvml_error(nvml, link.error));
  }
}

static void tell(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, const char *name, int sm,
                 const struct links *links)
{
  char states[600];
  int up = count_state(links, UP), most;
  if (up == links->count) return;
  say_states(nvml, links, states, sizeof(states));
  most = most_of_equals(nvml, gpu, sm);
  if (up < most)
    TT_WARN("%s has %d of %d NVLinks that can be used, and another GPU of its kind in this machine has %d; its data "
            "takes slower paths, which slows all ranks down: %s. See what nvidia-smi nvlink -s and dmesg (Xid) say; "
            "restart the fabric manager or reset the GPU",
            name, up, links->count, most, states);
  else if (count_state(links, NO_REMOTE) + count_state(links, NO_STATE) > 0)
    TT_WARN("%s has NVLinks of which NVML tells too little to use them: %s. See what nvidia-smi nvlink -s and dmesg "
            "(Xid) say",
            name, states);
  else if (up + count_state(links, INACTIVE) > 0)
    TT_INFO(TT_GRAPH, "%s uses %d of %d NVLinks: %s", name, up, links->count, states);
}

void tt_cuda_describe_links(const struct tt_nvml *nvml, struct tt_nvml_gpu *gpu, const char *name,
                            struct tt_device_description *out)
{
  struct links links = {0};
  if (!nvml->link_capability || !nvml->link_remote) {
    TT_INFO(TT_GRAPH, "%s: this version of NVML tells nothing of NVLinks", name);
    return;
  }
  ask_links(nvml, gpu, out->capability, &links);
  ask_remotes(nvml, gpu, &links, out);
  out->known |= TT_DESCRIBED_NEIGHBOURS;
  tell(nvml, gpu, name, out->capability, &links);
}
