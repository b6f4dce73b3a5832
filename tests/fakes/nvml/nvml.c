/* An NVML without GPUs, whose machine is a text in the environment variable FAKE_NVML: one entry a GPU, separated by
 * semicolons, each a bus id and words behind it:
 *
 *   sm=90        decides how many links NVML is asked for
 *   ids=HEX      device and vendor, as nvmlPciInfo_t has them (default 233010de)
 *   links=...    a letter for each link: s to an NVSwitch (0000:c4:00.0), h to something hidden, g to an unprintable
 *                bus id, said to be a GPU's, 0 to 9 to the GPU with this number, c to a POWER CPU (0004:04:01.0); i
 * inactive, p not for peers, x its capability cannot be read, e nor its state, r nor its remote end c2c=MB/s:... a
 * letter for each chip-to-chip link: a active, i inactive fabric=STATE:CLIQUE:STATUS:HEALTH    the cluster is a UUID
 * that is all 0x11 pcie=GENERATION:WIDTH:MOST:MOST peers=...    a letter for each GPU: the digit of nvmlGpuP2PStatus_t
 * for reads and writes, w for 5 on writes only lost         it is not found by its bus id
 *
 * FAKE_NVML_INIT is the result of nvmlInit. FAKE_NVML_WITHOUT names one function that says it is not there. With
 * FAKE_NVML_OLD this is a library that has only the oldest functions.
 *
 * It ends the program if two threads are in it at once, and counts calls in fake_nvml_calls. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define EXPORT __attribute__((visibility("default")))

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, NO_FUNCTION = 13, LOST = 15, MOST_GPUS = 17 };

struct gpu {
  char pci[24], links[64], c2c[64], peers[32];
  int sm, c2c_megabytes, lost, pcie[4], fabric[4];
  unsigned ids;
};
struct pci {
  char short_id[16];
  unsigned domain, bus, device, ids, subsystem;
  char bus_id[32];
};
struct field {
  unsigned id, scope;
  long long timestamp, latency;
  int type, result;
  union {
    unsigned number;
    unsigned long long bits;
  } value;
};
struct fabric {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};

static struct gpu gpus[MOST_GPUS];
static unsigned ngpus;
EXPORT extern int fake_nvml_calls;
int fake_nvml_calls;
static int inside;

/* ---- One call at a time, and functions that are not there ---- */

static int enter(const char *function)
{
  const char *without = getenv("FAKE_NVML_WITHOUT");
  if (__atomic_fetch_add(&inside, 1, __ATOMIC_ACQ_REL) != 0) abort();
  fake_nvml_calls++;
  return without && strcmp(without, function) == 0 ? NO_FUNCTION : OK;
}

static int leave(int result)
{
  __atomic_fetch_sub(&inside, 1, __ATOMIC_ACQ_REL);
  return result;
}

#define ENTER                                                                                                          \
  if (enter(__func__) != OK) return leave(NO_FUNCTION)

/* ---- The machine ---- */

static void read_word(struct gpu *gpu, const char *word)
{
  const char *value = strchr(word, '=');
  size_t name = value ? (size_t)(value - word) : strlen(word);
  value = value ? value + 1 : "";
#define IS(text) (name == strlen(text) && strncmp(word, text, name) == 0)
  if (IS("sm"))
    gpu->sm = atoi(value);
  else if (IS("ids"))
    gpu->ids = (unsigned)strtoul(value, NULL, 16);
  else if (IS("links"))
    snprintf(gpu->links, sizeof gpu->links, "%s", value);
  else if (IS("c2c"))
    sscanf(value, "%d:%63s", &gpu->c2c_megabytes, gpu->c2c);
  else if (IS("fabric"))
    sscanf(value, "%d:%d:%d:%d", &gpu->fabric[0], &gpu->fabric[1], &gpu->fabric[2], &gpu->fabric[3]);
  else if (IS("pcie"))
    sscanf(value, "%d:%d:%d:%d", &gpu->pcie[0], &gpu->pcie[1], &gpu->pcie[2], &gpu->pcie[3]);
  else if (IS("peers"))
    snprintf(gpu->peers, sizeof gpu->peers, "%s", value);
  else if (IS("lost"))
    gpu->lost = 1;
  else
    abort();
}

static void read_machine(void)
{
  char text[4096], *save, *more;
  snprintf(text, sizeof text, "%s", getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "");
  ngpus = 0;
  for (char *one = strtok_r(text, ";", &save); one && ngpus < MOST_GPUS; one = strtok_r(NULL, ";", &save)) {
    struct gpu *gpu = &gpus[ngpus++];
    *gpu = (struct gpu){.ids = 0x233010de};
    char *word = strtok_r(one, " ", &more);
    snprintf(gpu->pci, sizeof gpu->pci, "%s", word ? word : "");
    while ((word = strtok_r(NULL, " ", &more))) read_word(gpu, word);
  }
}

/* ---- What every NVML has ---- */

#define FUNCTION(name, ...)                                                                                            \
  EXPORT int name(__VA_ARGS__);                                                                                        \
  int name(__VA_ARGS__)

FUNCTION(nvmlInit, void)
{
  ENTER;
  read_machine();
  return leave(getenv("FAKE_NVML_INIT") ? atoi(getenv("FAKE_NVML_INIT")) : OK);
}

FUNCTION(nvmlDeviceGetCount, unsigned *count)
{
  ENTER;
  *count = ngpus;
  return leave(OK);
}

FUNCTION(nvmlDeviceGetHandleByIndex, unsigned index, struct gpu **gpu)
{
  ENTER;
  if (index >= ngpus) return leave(INVALID);
  *gpu = &gpus[index];
  return leave(OK);
}

FUNCTION(nvmlDeviceGetHandleByPciBusId, const char *pci, struct gpu **gpu)
{
  ENTER;
  for (unsigned i = 0; i < ngpus; i++) {
    *gpu = &gpus[i];
    if (strcasecmp(gpus[i].pci, pci) == 0) return leave(gpus[i].lost ? LOST : OK);
  }
  return leave(NOT_FOUND);
}

EXPORT const char *nvmlErrorString(int result);
const char *nvmlErrorString(int result)
{
  return result == LOST ? "GPU is lost" : result == NOT_SUPPORTED ? "Not Supported" : result == 9 ? "no driver" : NULL;
}

#ifndef FAKE_NVML_OLD

static int index_of(const struct gpu *gpu)
{
  return (int)(gpu - gpus);
}

static void fill_pci(struct pci *pci, const char *id, unsigned ids, int all)
{
  snprintf(pci->short_id, sizeof pci->short_id, "%.15s", id);
  for (char *c = pci->short_id; *c; c++)
    if (*c >= 'a' && *c <= 'f') *c = (char)(*c - 'a' + 'A');
  sscanf(id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
  pci->ids = ids;
  pci->subsystem = 0x16c110de;
  if (all) snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
}

/* ---- PCI ---- */

FUNCTION(nvmlDeviceGetIndex, struct gpu *gpu, unsigned *index)
{
  ENTER;
  *index = (unsigned)index_of(gpu);
  return leave(OK);
}

FUNCTION(nvmlDeviceGetPciInfo_v3, struct gpu *gpu, struct pci *pci)
{
  ENTER;
  fill_pci(pci, gpu->pci, gpu->ids, 1);
  return leave(OK);
}

#define PCIE(name, which)                                                                                              \
  FUNCTION(name, struct gpu *gpu, unsigned *value)                                                                     \
  {                                                                                                                    \
    ENTER;                                                                                                             \
    *value = (unsigned)gpu->pcie[which];                                                                               \
    return leave(gpu->pcie[which] ? OK : NOT_SUPPORTED);                                                               \
  }
PCIE(nvmlDeviceGetCurrPcieLinkGeneration, 0)
PCIE(nvmlDeviceGetCurrPcieLinkWidth, 1)
PCIE(nvmlDeviceGetMaxPcieLinkGeneration, 2)
PCIE(nvmlDeviceGetMaxPcieLinkWidth, 3)

/* ---- Links ---- */

static char letter(const struct gpu *gpu, unsigned link)
{
  return link < strlen(gpu->links) ? gpu->links[link] : '\0';
}

FUNCTION(nvmlDeviceGetNvLinkCapability, struct gpu *gpu, unsigned link, int capability, unsigned *can)
{
  ENTER;
  char c = letter(gpu, link);
  *can = capability == 0 && c != 'p';
  return leave(c == '\0' ? NOT_SUPPORTED : c == 'x' ? LOST : OK);
}

static int state(const struct gpu *gpu, unsigned link, unsigned *active)
{
  char c = letter(gpu, link);
  if (c == '\0' || c == 'e') return c ? LOST : INVALID;
  *active = c != 'i';
  return OK;
}

/* As on machines: the old way says nothing of GPUs that have the new one. */
FUNCTION(nvmlDeviceGetNvLinkState, struct gpu *gpu, unsigned link, unsigned *active)
{
  ENTER;
  return leave(gpu->sm >= 90 ? NOT_SUPPORTED : state(gpu, link, active));
}

FUNCTION(nvmlDeviceGetNvLinkRemotePciInfo, struct gpu *gpu, unsigned link, struct pci *pci)
{
  ENTER;
  char c = letter(gpu, link);
  if (c == 's')
    fill_pci(pci, "0000:c4:00.0", 0x1af110de, 0);
  else if (c == 'c')
    fill_pci(pci, "0004:04:01.0", 0x04ea1014, 0);
  else if (c == 'h' || c == 'g')
    snprintf(pci->short_id, sizeof pci->short_id, c == 'h' ? "fffffff:ffff:ff" : "\001\377\002");
  else if (c >= '0' && c <= '9' && (unsigned)(c - '0') < ngpus)
    fill_pci(pci, gpus[c - '0'].pci, gpus[c - '0'].ids, 0);
  else
    return leave(c == 'r' ? LOST : INVALID);
  return leave(OK);
}

FUNCTION(nvmlDeviceGetNvLinkRemoteDeviceType, struct gpu *gpu, unsigned link, int *type)
{
  ENTER;
  char c = letter(gpu, link);
  *type = c == 's' ? 2 : c == 'c' ? 1 : c == 'g' || (c >= '0' && c <= '9') ? 0 : 255;
  return leave(OK);
}

FUNCTION(nvmlDeviceGetFieldValues, struct gpu *gpu, int count, struct field *fields)
{
  ENTER;
  for (int i = 0; i < count; i++) {
    struct field *f = &fields[i];
    size_t c2c = strlen(gpu->c2c);
    f->result = OK;
    f->value.bits = 0;
    if (f->id == 91 && gpu->links[0])
      f->value.number = (unsigned)strlen(gpu->links);
    else if (f->id == 165 && gpu->sm >= 90)
      f->result = state(gpu, f->scope, &f->value.number);
    else if (f->id == 170 && c2c > 0)
      f->value.number = (unsigned)c2c;
    else if (f->id == 171 && f->scope < c2c)
      f->value.number = gpu->c2c[f->scope] == 'a';
    else if (f->id == 172 && f->scope < c2c)
      f->value.number = (unsigned)gpu->c2c_megabytes;
    else
      f->result = NOT_SUPPORTED;
  }
  return leave(OK);
}

/* ---- Peers and fabrics ---- */

FUNCTION(nvmlDeviceGetP2PStatus, struct gpu *from, struct gpu *to, int what, unsigned *status)
{
  ENTER;
  if (from == to) return leave(INVALID);
  size_t at = (size_t)index_of(to);
  char c = at < strlen(from->peers) ? from->peers[at] : '0';
  *status = c == 'w' ? (what == 1 ? 5 : 0) : (unsigned)(c - '0');
  return leave(OK);
}

FUNCTION(nvmlDeviceGetGpuFabricInfoV, struct gpu *gpu, struct fabric *fabric)
{
  ENTER;
  if (fabric->version != (sizeof *fabric | 2u << 24)) return leave(25);
  if (gpu->sm < 90) return leave(NOT_SUPPORTED);
  fabric->state = (unsigned char)gpu->fabric[0];
  fabric->clique = (unsigned)gpu->fabric[1];
  fabric->status = gpu->fabric[2];
  fabric->health = (unsigned)gpu->fabric[3];
  memset(fabric->cluster, 0x11, sizeof fabric->cluster);
  if (gpu->fabric[0] == 2) gpu->fabric[0] = 3; /* the next time it has joined */
  return leave(OK);
}

#endif
