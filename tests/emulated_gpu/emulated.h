/* The host's side of the emulated GPUs: what its files share of devices, calls and memory. Work on the GPUs is gpu.h's.
 *
 * One lock is held in each call, and by the thread that is the GPUs while it looks after streams. */
#ifndef TESTS_EMULATED_GPU_EMULATED_H
#define TESTS_EMULATED_GPU_EMULATED_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EMU_MAX_DEVICES = 16, EMU_PROCESSORS = 132, EMU_MAJOR = 9, EMU_MINOR = 0 };
#define EMU_DEVICE_BYTES ((size_t)16 << 30) /* of each device's memory */
#define EMU_GRANULARITY ((size_t)2 << 20)   /* of cuMem */

extern pthread_mutex_t emu_lock;

/* ---- Devices and contexts: devices.c ---- */

/* A device has its primary context and no other. */
struct CUctx_st {
  int device;
  bool reaches[EMU_MAX_DEVICES]; /* cudaDeviceEnablePeerAccess */
};
struct CUctx_st *emu_primary(int device); /* NULL: no such device */
int emu_device_count(void);               /* 0 before emu_enter */
int emu_device_number(int device);        /* among all of the machine: CUDA_VISIBLE_DEVICES hides some */
/* The device of the calling thread, between emu_enter and emu_leave. */
int emu_device(void);
cudaError_t emu_device_attribute(int *value, int attribute, int device);

/* ---- Calls: calls.c ---- */

/* Takes the lock, also where there is an error. CONTEXT: a thread without one gets that of device 0. */
enum emu_need { EMU_NO_CONTEXT, EMU_CONTEXT };
cudaError_t emu_enter(enum emu_need need);
/* Gives the lock back, and notes an error for cudaGetLastError. */
cudaError_t emu_leave(cudaError_t error);
/* Of the driver: nothing works before the runtime's first call or cuInit, and contexts come from the runtime. */
CUresult emu_driver_enter(enum emu_need need);
CUresult emu_driver_leave(CUresult result);

/* Functions that CUDA calls may make no calls of CUDA. */
void emu_in_callback(void);

/* Bodies of calls. */
#define EMU_RUNTIME(need, body)                                                                                        \
  do {                                                                                                                 \
    cudaError_t emu_error_ = emu_enter(need);                                                                          \
    return emu_leave(emu_error_ != cudaSuccess ? emu_error_ : (body));                                                 \
  } while (0)
#define EMU_DRIVER(need, body)                                                                                         \
  do {                                                                                                                 \
    CUresult emu_result_ = emu_driver_enter(need);                                                                     \
    return emu_driver_leave(emu_result_ != CUDA_SUCCESS ? emu_result_ : (body));                                       \
  } while (0)
#define EMU_TRY(call)                                                                                                  \
  do {                                                                                                                 \
    cudaError_t emu_error_ = (call);                                                                                   \
    if (emu_error_ != cudaSuccess) return emu_error_;                                                                  \
  } while (0)

/* Memory of the host; the process ends where there is none. */
void *emu_calloc(size_t count, size_t bytes);
void *emu_copy_of(const void *from, size_t bytes);
/* Unlike those of all other processes. */
uint64_t emu_new_id(void);

/* ---- Physical memory of devices: physical.c ---- */

/* A memfd, whose name says to other processes what it is. It lives while it has handles or mappings. */
struct emu_physical {
  struct emu_physical *next;
  int fd;
  size_t bytes;
  int device; /* as this process counts; -1: one that it does not see */
  uint64_t id;
  bool own;              /* made here: counts as used memory of the device */
  bool exporting;        /* was made with the right to export a descriptor */
  struct emu_team *team; /* a multicast object, which is no memory: see multicast.c */
  unsigned handles, mappings;
};
cudaError_t emu_physical_make(int device, size_t bytes, struct emu_physical **physical);
/* A multicast object for so many devices. */
cudaError_t emu_physical_make_team(uint32_t devices, size_t bytes, struct emu_physical **physical);
/* Takes over the descriptor, also where it fails. */
cudaError_t emu_physical_open(int fd, struct emu_physical **physical);
/* NULL: it is no handle. */
struct emu_physical *emu_physical_of(uint64_t handle);
/* Ends it when nothing holds it. */
void emu_physical_check(struct emu_physical *physical);
size_t emu_physical_used(int device);

/* ---- Multicast: multicast.c ---- */

bool emu_has_multicast(void);
/* Of an object of which this process has a descriptor: `devices` if it is made, else 0. False: no memory. */
bool emu_team_open(struct emu_physical *physical, uint32_t devices);
void emu_team_close(struct emu_physical *physical);

/* ---- Ranges of addresses that CUDA knows: ranges.c ---- */

enum emu_kind { EMU_MALLOCED, EMU_OPENED, EMU_MAPPED, EMU_HOST, EMU_REGISTERED, EMU_MANAGED };
struct emu_range {
  char *start;
  size_t bytes;
  enum emu_kind kind;
  int device; /* that made it */
  uint64_t id;
  struct emu_physical *physical; /* NULL: the host's memory */
  size_t offset;                 /* in it */
  char *area;                    /* what was mapped for it, with all around; NULL: nothing */
  size_t area_bytes;
  unsigned references;                        /* OPENED */
  struct emu_reserved *reserved;              /* MAPPED */
  unsigned long long rights[EMU_MAX_DEVICES]; /* MAPPED: CUmemAccess_flags */
};
struct emu_range *emu_range_find(const void *at);   /* that holds the address; NULL: none */
struct emu_range *emu_range_first(const void *at);  /* that ends behind the address */
struct emu_range *emu_range_before(const void *at); /* the last that ends before the address, or there */
void emu_range_add(struct emu_range *range);
void emu_range_remove(struct emu_range *range); /* and frees it; the memory stays */
bool emu_range_is_device(const struct emu_range *range);
/* Whether all of `bytes` is of ranges, in one or in such as may lie side by side; `first` is the one at `at`. False
 * with first NULL: none of CUDA's there. */
bool emu_range_covers(const void *at, size_t bytes, struct emu_range **first);

/* A range of addresses of cuMemAddressReserve. */
struct emu_reserved {
  struct emu_reserved *next;
  char *start;
  size_t bytes;
  uint64_t id;
};

/* runtime_memory.c. Maps physical memory (NULL: the host's) between pages that nobody may touch. */
cudaError_t emu_map(struct emu_physical *physical, size_t offset, size_t bytes, struct emu_range **range);
void emu_unmap(struct emu_range *range); /* and removes it */

/* ---- Faults: faults.c ---- */

void emu_faults_watch(void); /* of the calling thread, which is the GPUs' */
void emu_fault_note_gone(const struct emu_range *range);

#endif
