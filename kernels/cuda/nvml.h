/* NVML, the library that knows the machine around GPUs: its functions, numbers and layouts that are used here. They are
 * declared anew, since CUDA's toolkit need not have its header, and found at run time, since a container need not have
 * the library, nor a driver all of its functions.
 *
 * NVML is asked by one thread at a time: between tt_nvml_enter and tt_nvml_leave. Calls may take milliseconds, so that
 * what they say is kept. */
#ifndef TT_KERNELS_CUDA_NVML_H
#define TT_KERNELS_CUDA_NVML_H

#include <stddef.h>
#include <stdint.h>

/* The file that is loaded. Tests have one of their own. */
#ifndef TT_CUDA_NVML
#define TT_CUDA_NVML "libnvidia-ml.so.1"
#endif

/* Results. Other than these are only named. */
enum { TT_NVML_SUCCESS = 0, TT_NVML_NOT_SUPPORTED = 3, TT_NVML_NO_FUNCTION = 13 };

struct tt_nvml_gpu; /* a handle */

/* Of its struct's several versions the longest; older functions fill the part in front of bus_id only. */
struct tt_nvml_pci {
  char short_id[16]; /* "0000:1B:00.0" */
  uint32_t domain, bus, device;
  uint32_t ids;       /* device, then vendor in the low half */
  uint32_t subsystem; /* likewise */
  char bus_id[32];    /* "00000000:1B:00.0" */
};
_Static_assert(sizeof(struct tt_nvml_pci) == 68, "NVML's layout");

/* A question that has a number rather than a function, and its answer. */
enum {
  TT_NVML_FIELD_LINK_COUNT = 91,
  TT_NVML_FIELD_LINK_STATE = 165, /* 1: active. `scope` is the link */
  TT_NVML_FIELD_C2C_COUNT = 170,
  TT_NVML_FIELD_C2C_STATUS = 171, /* 1: active. `scope` is the link */
  TT_NVML_FIELD_C2C_MOST_MBPS = 172
};
struct tt_nvml_field {
  uint32_t id, scope;
  int64_t timestamp, latency;
  int32_t type;   /* of the value; all that are asked for are unsigned */
  int32_t result; /* of this one */
  union {
    uint32_t number;
    uint64_t bits;
  } value;
};
_Static_assert(sizeof(struct tt_nvml_field) == 40, "NVML's layout");

enum { TT_NVML_LINK_CAN_PEER = 0 }; /* a capability of links */
enum { TT_NVML_REMOTE_GPU = 0, TT_NVML_REMOTE_CPU = 1, TT_NVML_REMOTE_SWITCH = 2 };
enum { TT_NVML_PEER_READ = 0, TT_NVML_PEER_WRITE = 1 };

struct tt_nvml_fabric {
  uint32_t version; /* size of this, and 2 in the highest byte */
  unsigned char cluster[16];
  int32_t status;
  uint32_t clique;
  uint8_t state; /* TT_FABRIC_* have the same numbers */
  uint32_t health;
};
_Static_assert(sizeof(struct tt_nvml_fabric) == 36, "NVML's layout");

/* Each function with the names under which it is looked for, newest first; NULL where NVML has none of them. */
#define TT_NVML_FUNCTIONS(X)                                                                                           \
  X(init, "nvmlInit_v2", "nvmlInit", void)                                                                             \
  X(count, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount", uint32_t *count)                                             \
  X(by_index, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex", uint32_t index, struct tt_nvml_gpu **gpu) \
  X(by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId", const char *pci,                   \
    struct tt_nvml_gpu **gpu)                                                                                          \
  X(index, "nvmlDeviceGetIndex", NULL, struct tt_nvml_gpu *gpu, uint32_t *index)                                       \
  X(pci, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", struct tt_nvml_gpu *gpu, struct tt_nvml_pci *pci)       \
  X(generation, "nvmlDeviceGetCurrPcieLinkGeneration", NULL, struct tt_nvml_gpu *gpu, uint32_t *generation)            \
  X(width, "nvmlDeviceGetCurrPcieLinkWidth", NULL, struct tt_nvml_gpu *gpu, uint32_t *width)                           \
  X(most_generation, "nvmlDeviceGetMaxPcieLinkGeneration", NULL, struct tt_nvml_gpu *gpu, uint32_t *generation)        \
  X(most_width, "nvmlDeviceGetMaxPcieLinkWidth", NULL, struct tt_nvml_gpu *gpu, uint32_t *width)                       \
  X(fields, "nvmlDeviceGetFieldValues", NULL, struct tt_nvml_gpu *gpu, int count, struct tt_nvml_field *fields)        \
  X(link_capability, "nvmlDeviceGetNvLinkCapability", NULL, struct tt_nvml_gpu *gpu, uint32_t link, int capability,    \
    uint32_t *can)                                                                                                     \
  X(link_state, "nvmlDeviceGetNvLinkState", NULL, struct tt_nvml_gpu *gpu, uint32_t link, uint32_t *active)            \
  X(link_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo", struct tt_nvml_gpu *gpu,   \
    uint32_t link, struct tt_nvml_pci *pci)                                                                            \
  X(link_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType", NULL, struct tt_nvml_gpu *gpu, uint32_t link, int *type)  \
  X(peer_status, "nvmlDeviceGetP2PStatus", NULL, struct tt_nvml_gpu *from, struct tt_nvml_gpu *to, int what,           \
    uint32_t *status)                                                                                                  \
  X(fabric, "nvmlDeviceGetGpuFabricInfoV", NULL, struct tt_nvml_gpu *gpu, struct tt_nvml_fabric *fabric)

struct tt_nvml {
#define TT_NVML_MEMBER(member, newest, older, ...) int (*member)(__VA_ARGS__);
  TT_NVML_FUNCTIONS(TT_NVML_MEMBER)
#undef TT_NVML_MEMBER
  const char *(*error_string)(int result);
};

/* The functions, with the lock held; NULL if there is no NVML, which has then been said once. init, count, by_index and
 * by_bus_id are always there. Each call is followed by one of tt_nvml_leave, whatever it gave. */
const struct tt_nvml *tt_nvml_enter(void);
void tt_nvml_leave(void);

/* NVML's words for a result, which no function has for TT_NVML_NO_FUNCTION where it is this file's. */
const char *tt_nvml_error(const struct tt_nvml *nvml, int result);
/* A call of a function that may not be there. */
#define TT_NVML_CALL(nvml, function, ...) ((nvml)->function ? (nvml)->function(__VA_ARGS__) : TT_NVML_NO_FUNCTION)

#endif
