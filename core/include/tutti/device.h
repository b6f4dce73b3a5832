/*
 * tutti/device.h: what a device backend executes, and the calls through which the core reaches it.
 *
 * Version 3. It is stable: later versions only append. They may add members at the end of structs that begin with their
 * size, functions at the end of struct tt_device, and bits of its feature word. All else stays as it is, structs
 * without a size and the number of protocols among it. So a library and a core work together if both have version 1 or
 * later, whichever is newer (version 2 added TT_DEVICE_DESCRIBED, version 3 TT_DEVICE_HOST_MEMORY, TT_DEVICE_JOIN,
 * TT_DEVICE_GRAPHS, TT_DEVICE_USER_MEMORY, TT_DEVICE_MULTICAST, TT_DEVICE_SCALARS, TT_DEVICE_FABRIC, TT_DEVICE_COPY,
 * TT_DEVICE_DMABUF, TT_DEVICE_LINES, TT_DEVICE_REACH, TT_DEVICE_PARTS, TT_DEVICE_ENGINES, TT_DEVICE_FLUSH,
 * TT_DEVICE_HINTS, TT_DEVICE_CHECK and TT_DEVICE_PEERS, and what belongs to them):
 *
 *   - who reads a struct with a size reads no further than that, and takes what is not there for zero;
 *   - who fills a struct that the other side handed over (properties, status) writes no further than its size;
 *   - a feature bit that one side does not know changes nothing in what it does know;
 *   - programs are of the version of tutti/program.h that came with the older of the two: 1 with versions 1 to 3.
 *
 * docs/devices.md says how to write a backend.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TUTTI_DEVICE_H_
#define TUTTI_DEVICE_H_

#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "tutti/program.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TT_DEVICE_VERSION 3

/* Words that two sides share. C++ has no _Atomic; size and alignment are the same, and its code accesses them by its
 * own means. */
#ifdef __cplusplus
#define TT_ATOMIC(type) type
#else
#include <stdatomic.h>
#define TT_ATOMIC(type) _Atomic type
#endif

/* Slots of a connection's FIFO, NCCL's NCCL_STEPS. */
#define TT_SLOTS 8
/* Bytes in front of each slot's payload. */
#define TT_SLOT_HEADER 64

/* What an operation is, so that ranks that disagree find out before wrong data is used. */
struct tt_signature {
  uint64_t sequence; /* operations of this kind on this connection set, from 0 */
  uint64_t count;    /* elements, as the user gave them */
  int32_t root;
  uint8_t collective, datatype, op, algorithm;
  uint8_t protocol, nchannels, reserved[6];
};

/* First bytes of every slot. A slot is header, then payload; a message over a network is the same bytes. */
struct tt_slot_header {
  uint64_t bytes; /* of payload */
  uint64_t step;
  struct tt_signature signature; /* valid in the first slot of an operation on a connection */
  uint8_t reserved[16];
};

/* One entry between a device and the proxy that serves its connection, NCCL's connection FIFO. Who fills a slot writes
 * the entry, then moves the counter that it owns. */
enum { TT_FIFO_NORMAL = 0, TT_FIFO_OFFSET = 1, TT_FIFO_POINTER = 2 };
struct tt_conn_fifo {
  int32_t mode;   /* NORMAL: the slot's own place; OFFSET: at `offset` of the buffer; POINTER: at `pointer` */
  int32_t offset; /* bytes */
  int64_t size;   /* bytes of header and payload; set by who filled the slot */
  void *pointer;
};

struct tt_doorbell; /* base/doorbell.h: waiting without a kernel object */
struct tt_pool;     /* base/pool.h: memory that is used again */

enum {
  TT_CONN_PROXIED = 1, /* a proxy moves the slots: `fifo` is valid; LL slots too are published by `tail`, as whole
                          messages, since a network may tear 8-byte stores */
  TT_CONN_POOLED = 2,  /* of a proxied connection whose slots come from a pool: `slots` only say which protocols there
                          are. The proxy writes mode POINTER and the place of a step's slot into its FIFO entry before it
                          moves the counter that lets this end use it; a sender then sets `size` only, a receiver
                          nothing. A sender's `head` counts the steps for which there is room, less TT_SLOTS. With
                          TT_DEVICE_MEMORY the device asks for slots (tt_conn_asked). */
  TT_CONN_LINES = 4 /* of LL over a network, with TT_DEVICE_LINES: a proxy is the other end, and writes and reads lines
                       as a device does, in whole words; there is no `fifo`, and `tail` says nothing. A sender writes
                       the header of every slot, `step` last or with `bytes`, before or after the lines. Both
                       counters are set before this end is opened. */
};

/* One end of one direction of one connection, as an executor sees it. `tail` counts slots filled and is written by the
 * sending side only; `head` counts slots emptied and is written by the receiving side only; both start from the same
 * step and never decrease (64 bits do not wrap; the 32-bit LL flags do). Between device ends that share memory, LL data
 * carries its own flags and tail stays behind until the next Simple slot. Slots of LL128, and all slots in device
 * memory, begin at 64 modulo 128 and are multiples of 128 bytes apart, so that payloads begin at a line of 128 bytes.
 */
struct tt_conn {
  unsigned char *slots[TT_NUM_PROTOCOLS]; /* TT_SLOTS slots each, slot_bytes apart; NULL: no such protocol here */
  size_t slot_bytes[TT_NUM_PROTOCOLS];    /* header and payload */
  TT_ATOMIC(uint64_t) * head;
  TT_ATOMIC(uint64_t) * tail;
  struct tt_conn_fifo *fifo;     /* TT_SLOTS entries, or NULL */
  struct tt_doorbell *peer_bell; /* rung after a post; NULL when proxied */
  uint64_t step;                 /* this end's next step; advanced by the executor only, atomically: reports read it */
  uint32_t flags;                /* TT_CONN_* */
  int32_t peer;                  /* rank at the other end, or TT_PEER_NETWORK */
  void *twin;                    /* what the backend's conn_open made of it, or NULL; then `step` is not used */
};

/* Of a connection with TT_CONN_POOLED on a device with TT_DEVICE_MEMORY, behind the FIFO: the step up to which, itself
 * not among them, works that run will use this end, whichever end it is. A work writes it before it first waits there,
 * and it never decreases; as far as it says so there are slots, and no further. The core sets where it begins. */
static inline TT_ATOMIC(uint64_t) * tt_conn_asked(const struct tt_conn *conn)
{
  return (TT_ATOMIC(uint64_t) *)(void *)(conn->fifo + TT_SLOTS);
}

/* Bytes of user data that fit a slot. An LL line is 16 bytes with 8 of data, an LL128 line 128 bytes
 * with 120; line 0 carries the signature's hash. */
static inline size_t tt_conn_capacity(size_t slot_bytes, int protocol)
{
  size_t payload = slot_bytes - TT_SLOT_HEADER;
  if (protocol == TT_PROTO_LL128) return (payload / 128 - 1) * 120;
  return protocol == TT_PROTO_LL ? (payload - 16) / 2 : payload;
}

/* Where a channel's chunks lie. In elements. A block's share [lo, hi) of this channel is moved in loops; loop l covers
 * `parts * chunk` elements from lo + l * parts * chunk, except that the last loop cuts what is left with `last_chunk`.
 * Blocks of a buffer are `stride` elements apart. Scratch and shared memory are used again by each loop: there part p
 * of block b lies scratch_lo + b * scratch_stride + p * chunk elements from the buffer's start (shared_lo,
 * shared_stride).
 */
struct tt_geometry {
  size_t lo, hi;
  size_t chunk;
  size_t last_chunk;
  size_t input_stride, output_stride, scratch_stride;
  size_t scratch_lo;               /* this channel's area of every scratch buffer */
  size_t shared_lo, shared_stride; /* likewise of the members' shared memory */
  uint64_t loops;                  /* >= 1 even when the share is empty */
};

/* Offset (from the block's start) and length, in elements, of a part in a loop. */
static inline size_t tt_geometry_part(const struct tt_geometry *g, uint32_t parts, uint64_t loop, uint32_t part,
                                      size_t *offset)
{
  size_t chunk = loop + 1 == g->loops ? g->last_chunk : g->chunk;
  size_t at = g->lo + (size_t)loop * parts * g->chunk + (size_t)part * chunk;
  *offset = at < g->hi ? at : g->hi;
  size_t left = g->hi - *offset;
  return left < chunk ? left : chunk;
}

/* How values are combined. */
struct tt_reduction {
  uint8_t op;            /* ncclSum .. ncclMin: the elementary operation */
  uint8_t datatype;      /* ncclDataType_t */
  uint8_t scale_inputs;  /* multiply values read from TT_INPUT by `scale`, in the type itself */
  uint8_t divide_result; /* integers: divide the final result by `divisor`, truncating */
  union {
    uint64_t bits;
    float f32; /* for all floating types up to 32 bits */
    double f64;
    int64_t i64;
  } scale;
  int64_t divisor;
};

/* The work of one operation on one channel. */
struct tt_work_channel {
  const struct tt_program *program;
  struct tt_conn **send, **recv; /* by index into program->peers; NULL where the program does not use that direction */
  struct tt_geometry geometry;
};

struct tt_device_context;
struct tt_device_team; /* of one rank: the backend's */

struct tt_work {
  size_t size;
  struct tt_signature signature;
  struct tt_reduction reduction;
  int32_t protocol;
  uint32_t nchannels;
  const void *input;
  void *output;
  void **scratch; /* program->nscratch buffers; NULL if none */
  struct tt_work_channel *channels;
  const TT_ATOMIC(uint32_t) * abort; /* non-zero: stop */
  int32_t rank;
  /* Works of one launch with the same order key run one after the other; works with different keys concurrently. The
   * collectives of a communicator share one key; each direction of each point-to-point pair has its own. */
  uint64_t order;
  uint32_t complete;                 /* set by the backend when this work is done */
  struct tt_device_context *context; /* whose rank it is; NULL for a device without contexts */
  void *shared;                      /* TT_SHARED; NULL if the programs use none */
  void **copies;                     /* the members' copies by index into program->members, for devices without
                                        multicast addresses */
  void *multicast;                   /* the multicast address, for devices that have them */
  uint64_t op_count;                 /* the operation's number in logs and reports */
  struct tt_pool *pool;              /* memory for the host backend, which is part of the core; may be NULL */
  /* With TT_DEVICE_SCALARS and reduction.scale_inputs: where the factor lies, one element of the reduction's type in
   * memory that the device reads, when the work runs; NULL: it is reduction.scale. */
  const void *scale_at;
  const void **member_inputs; /* TT_MEMBER_INPUT: each member's input as this rank's device reaches it, by index
                                 into program->members; NULL: the programs use none */
  void **member_outputs;      /* TT_MEMBER_OUTPUT, likewise */
  /* With TT_DEVICE_ENGINES, of a work with one channel whose program uses members' buffers, and copies without
   * reducing: not 0 if copy engines are to copy, in stream order between the messages that come before and after. */
  uint32_t engines;
  /* Not 0: the work comes again. Works of a context with the same number differ only in input, output, member_inputs,
   * member_outputs, op_count and complete, so that a backend may keep what it made of the others. */
  uint64_t repeat;
  uint64_t answer; /* the core's own: which answer of a tuner that is asked again it goes by; 0: none */
};

/* Bytes of one element; 0 for a value that is no type. */
static inline size_t tt_datatype_bytes(int datatype)
{
  static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return datatype >= 0 && datatype < (int)sizeof(bytes) ? bytes[datatype] : 0;
}

/* A launch in flight. */
struct tt_launch;

/* What a backend is able to do. */
enum {
  /* Works run on streams: launch returns when they are enqueued, and peers' works move without this rank's host. */
  TT_DEVICE_STREAMS = 1,
  /* Users' buffers lie in the device's own memory. So do connections' buffers between ranks of one host: they are made
   * with `alloc`, and reach the peer by `export_memory` and `import_memory`. Each protocol has connections of its own.
   */
  TT_DEVICE_MEMORY = 2,
  /* Values of ncclFloat8e4m3 and ncclFloat8e5m2 can be reduced, not only moved. */
  TT_DEVICE_FP8 = 4,
  /* Connections may be TT_CONN_POOLED: with TT_DEVICE_MEMORY those of Simple, where there is TT_DEVICE_HOST_MEMORY. */
  TT_DEVICE_POOLED = 8,
  /* The backend knows the machine around its devices: describe and peer_status are there. */
  TT_DEVICE_DESCRIBED = 16,
  /* Works can use memory of the host: map_host and unmap_host are there. Connections may lie in it, also proxied ones
   * (TT_CONN_PROXIED), whose counters and FIFO always do; their slots lie in the device's memory where a NIC moves them
   * from and to there. */
  TT_DEVICE_HOST_MEMORY = 32,
  /* Streams can be checked, and made to wait for each other: check_stream and follow are there. */
  TT_DEVICE_JOIN = 64,
  /* Streams may be captured into graphs: capturing and at_graph_end are there. */
  TT_DEVICE_GRAPHS = 128,
  /* Users' memory can be allocated, recognised and exported: user_alloc, user_free, find_buffer and export_buffer are
   * there. */
  TT_DEVICE_USER_MEMORY = 256,
  /* Devices may share memory with a multicast address: team_check to team_leave are there, and works take
   * tt_work.shared and multicast. */
  TT_DEVICE_MULTICAST = 512,
  /* The factor of a work may lie in memory of the device: scale_at. */
  TT_DEVICE_SCALARS = 1024,
  /* Where `describe` says that a device has joined a fabric, its memory can be exported to other hosts of it. */
  TT_DEVICE_FABRIC = 2048,
  /* Copy engines move memory beside all works: copy and copied are there. */
  TT_DEVICE_COPY = 4096,
  /* Memory of the device may become a dma-buf, for NICs: export_dmabuf is there. */
  TT_DEVICE_DMABUF = 8192,
  /* Connections of LL may be TT_CONN_LINES. */
  TT_DEVICE_LINES = 16384,
  /* Works can use users' memory of other devices of this process where it lies: reach_buffer is there. */
  TT_DEVICE_REACH = 32768,
  /* Several allocations can be imported side by side: import_parts is there. */
  TT_DEVICE_PARTS = 65536,
  /* Copy engines can do what works copy: tt_work.engines. */
  TT_DEVICE_ENGINES = 131072,
  /* The host can flush what NICs write into the device's memory: flush is there. */
  TT_DEVICE_FLUSH = 262144,
  /* Contexts heed what tt_device_config says of how works are started: `cluster` and what follows it. */
  TT_DEVICE_HINTS = 524288,
  /* It can be found out whether works can use a user's buffer: check_buffer is there. */
  TT_DEVICE_CHECK = 1048576,
  /* A rank's program has few peers at most: tt_device.peers. */
  TT_DEVICE_PEERS = 2097152,
};

struct tt_device_properties {
  size_t size;          /* sizeof(struct tt_device_properties) of the core */
  char name[64];        /* "NVIDIA H100 80GB HBM3" */
  char pci[16];         /* "0000:1b:00.0", or "" */
  unsigned char id[16]; /* equal on all processes of the host for the same device, different for different ones */
  int32_t capability;   /* CUDA: 10 * major + minor; 0 elsewhere */
  int32_t processors;   /* of which a channel occupies one */
  uint64_t memory;      /* bytes */
};

/* What is at the other end of links. */
enum { TT_NEIGHBOUR_DEVICE = 0, TT_NEIGHBOUR_SWITCH = 1, TT_NEIGHBOUR_CPU = 2 };
#define TT_DEVICE_NEIGHBOURS 36

/* One neighbour and the links to it that work: NVLinks, all of one speed. */
struct tt_device_neighbour {
  char pci[24]; /* bus id as in tt_device_description; "" where it cannot be seen, as a switch from a virtual machine */
  uint32_t kind; /* TT_NEIGHBOUR_* */
  uint32_t links;
};

/* What `describe` could find out. Members whose bit is not set are 0, and say nothing. */
enum {
  TT_DESCRIBED_NUMBER = 1,
  TT_DESCRIBED_GPU_DIRECT = 2,
  TT_DESCRIBED_IDS = 4,
  TT_DESCRIBED_PCIE = 8,
  TT_DESCRIBED_NEIGHBOURS = 16, /* and there may be none */
  TT_DESCRIBED_C2C = 32,        /* and there may be no such link */
  TT_DESCRIBED_FABRIC = 64,     /* and fabric_state may be that there is none */
};

/* How far a device is in joining a fabric that spans hosts (multi-node NVLink). */
enum { TT_FABRIC_NONE = 0, TT_FABRIC_NOT_STARTED = 1, TT_FABRIC_IN_PROGRESS = 2, TT_FABRIC_COMPLETED = 3 };

/* What a device is to the machine around it. Plain data of the caller's; nothing in it is freed. */
struct tt_device_description {
  size_t size;         /* sizeof(struct tt_device_description) of the core */
  uint32_t known;      /* TT_DESCRIBED_* */
  int32_t capability;  /* always: as in tt_device_properties */
  char pci[24];        /* always, or "" for a device that is no PCI device: domain (4 digits or more), bus, device and
                          function in small letters, as in /sys: "0000:1b:00.0" */
  int32_t number;      /* TT_DESCRIBED_NUMBER: of the device among all of the host, however many this process sees */
  int32_t part;        /* always: of a device that is split in parts with a bus id between them, 0 or more; -1: whole */
  uint32_t gpu_direct; /* TT_DESCRIBED_GPU_DIRECT: 1 if NICs can read and write its memory */
  uint16_t vendor, device, subsystem_vendor, subsystem_device; /* TT_DESCRIBED_IDS: PCI ids */
  /* TT_DESCRIBED_PCIE: generation (1: 2.5 GT/s, 2: 5, 3: 8, 4: 16, 5: 32, 6: 64) and number of lanes of its PCI link:
   * now, which may be less while it sleeps, and at most; 0: not known. */
  uint32_t pcie_generation, pcie_width, pcie_most_generation, pcie_most_width;
  uint32_t nneighbours; /* TT_DESCRIBED_NEIGHBOURS */
  struct tt_device_neighbour neighbours[TT_DEVICE_NEIGHBOURS];
  uint32_t c2c_links, c2c_megabytes; /* TT_DESCRIBED_C2C: chip-to-chip links to its CPU that work, and MB/s of each */
  uint32_t fabric_state;             /* TT_DESCRIBED_FABRIC: TT_FABRIC_*; the rest is valid with COMPLETED */
  int32_t fabric_status;             /* 0: it went well; else the driver's error, and it cannot be used */
  uint32_t fabric_clique;            /* devices of one cluster and clique reach each other's memory */
  uint32_t fabric_health;            /* the driver's mask; 0: not known */
  unsigned char fabric_cluster[16];  /* UUID */
};

/* What the driver thinks of one device's use of another's memory. */
enum {
  TT_PEER_STATUS_GOOD = 0,
  TT_PEER_STATUS_CHIPSET = 1,     /* the chipset cannot do it */
  TT_PEER_STATUS_DEVICE = 2,      /* one of the devices cannot */
  TT_PEER_STATUS_PLACE = 3,       /* they are too far from each other */
  TT_PEER_STATUS_DISABLED = 4,    /* by the driver's configuration */
  TT_PEER_STATUS_UNSUPPORTED = 5, /* for another reason */
  TT_PEER_STATUS_UNKNOWN = 6,     /* there is no answer */
};
struct tt_device_peer {
  size_t size;
  uint32_t read, write; /* TT_PEER_STATUS_* */
};

/* Memory of a device, allocated or imported. Filled by alloc and import_memory, cleared by release. */
struct tt_device_memory {
  void *ptr;      /* valid on the context's device */
  size_t bytes;   /* usable */
  void *resource; /* the backend's */
};

/* Memory on its way to another rank of the same host. FD: `fd` is passed over a Unix socket, and belongs to who has
 * this struct. HANDLE: `handle` is all. LOCAL: within one process only; `handle` then holds the backend's pointers.
 * FABRIC: `handle` is all, and can be imported on other hosts of the same fabric too. */
enum { TT_EXPORT_NONE = 0, TT_EXPORT_LOCAL = 1, TT_EXPORT_FD = 2, TT_EXPORT_HANDLE = 3, TT_EXPORT_FABRIC = 4 };
/* For whom it is: a rank of another process of this host (FD or HANDLE); of this process (LOCAL); of another host, with
 * TT_DEVICE_FABRIC only (FABRIC). */
enum { TT_EXPORT_NEAR = 0, TT_EXPORT_HERE = 1, TT_EXPORT_FAR = 2 };
struct tt_device_export {
  uint32_t kind;
  int32_t fd; /* -1: none */
  uint64_t bytes;
  unsigned char handle[64];
};

/* What a device is to teams: ranks, each with a device of its own, that hold copies of one piece of memory and reach
 * all copies at once through a multicast address. */
struct tt_device_multicast {
  size_t size;
  char why[192];       /* why the device cannot be in a team, as the rest of "rank 3: ..."; "": it can */
  uint8_t reduces[16]; /* by ncclDataType_t: bit op (ncclSum to ncclMin) if a read of all copies combines such values */
  uint32_t fabric;     /* 1: a team may span hosts of a fabric, by TT_EXPORT_FABRIC */
};

struct tt_device_team_config {
  size_t size;
  uint32_t devices; /* of the team */
  uint32_t kind;    /* TT_EXPORT_LOCAL (all ranks are of this process), FD or FABRIC: how it goes to the others */
  uint64_t bytes;   /* of a copy */
};

/* An allocation of a user's. */
struct tt_device_buffer {
  size_t size;
  void *base;       /* where the allocation begins, as the context's device sees it */
  size_t bytes;     /* of all of it */
  uint64_t id;      /* of the allocation in this process; never given to another one, even at the same address */
  int32_t device;   /* index of the device that has it; -1: the host's memory */
  uint32_t exports; /* bit TT_EXPORT_LOCAL, FD or HANDLE: export_buffer can make that of it; 0: it can be mapped by
                       nobody else (stream-ordered pools, managed memory, several allocations mapped side by side) */
};

/* Whether works of a context can use a buffer where it lies. */
struct tt_device_check {
  size_t size;
  /* Of the caller: */
  const void *ptr;
  uint64_t bytes; /* > 0 */
  uint32_t write; /* not 0: works write to it, else they read it */
  /* Of the device: what is wrong and how to put it right, as the rest of "sendbuff is 0x7f32..., 4096 bytes: "; "":
   * nothing that can be found out. */
  char why[300];
};

struct tt_device_config {
  size_t size;
  int32_t index; /* of the device */
  int32_t rank, nranks;
  uint32_t unused; /* was padding, which `size` has always counted and older cores leave as it was: never read */
  /* Since version 3, with TT_DEVICE_HINTS. How the context's works are started; no hint changes what they do. Each rank
   * has its own. What a device cannot do, or cannot do with all channels of a launch running at the same time, it
   * leaves, with a line of its `log` at NCCL_LOG_INFO; a context can be opened all the same. */
  uint32_t cluster; /* 2 to 8: channels of a launch that are to run near each other (CUDA: a thread block cluster), at
                       most: the largest number that divides the launch's channels; 0, 1: it does not matter */
  uint32_t links;   /* not 0: processors are to be chosen for the sake of the links to other devices, each channel
                       being taken to use these as much as another (CUDA: NVLink utilisation-centric scheduling) */
  uint32_t apart;   /* not 0: fences of works are not to wait for what the user's own kernels write, nor the other way
                       round (CUDA: the remote memory synchronisation domain); not worth a line */
};

/* What a context's works say of themselves. */
struct tt_device_status {
  size_t size;
  ncclResult_t result;           /* ncclSuccess, or the failure that ended the works */
  uint32_t stalled;              /* a work waits for a peer, and has for at least 50 ms; true until it goes on */
  int32_t peer;                  /* rank that it waits for */
  uint32_t sending;              /* it waits for room to send, not for data */
  struct tt_signature signature; /* of that work */
  char text[512];                /* of a failure: the sentence, naming rank, peer and operation */
  uint32_t unexplained;          /* of a failure: ranks disagree, and `text` cannot say how; others may know more */
};

/* A backend. Functions may be called from any thread unless they say otherwise; none but close, release, unmap_host,
 * drain and the host device's launch waits for works. What a device without TT_DEVICE_STREAMS or TT_DEVICE_MEMORY does
 * not need is NULL, and so are its contexts. A function that fails has said why in a line of its `log`, at
 * NCCL_LOG_WARN. */
struct tt_device {
  size_t size;
  const char *name;
  uint32_t protocols;                      /* bit p: protocol p can be executed */
  size_t default_buffer[TT_NUM_PROTOCOLS]; /* bytes of a connection's 8 slots unless the user says otherwise */
  ncclResult_t (*count)(int *devices);
  /* Starts works. Without TT_DEVICE_STREAMS: they and what they point to stay untouched until `finish`, `stream` is
   * NULL, and works may be of several ranks. With it: all works are of one context; they are enqueued on `stream` (the
   * device's own kind of handle), which may be capturing; *launch is NULL, and the works may be freed, since what is
   * needed was copied. Programs, connections and scratch memory stay valid until the context is closed. One thread at a
   * time for a context, whose works run in the order of their launches, whatever the streams. */
  ncclResult_t (*launch)(struct tt_work *const *works, int nworks, void *stream, struct tt_launch **launch);
  /* Does what can be done now; never blocks. *moved: something was done; *done: all works are complete. An error names
   * the rank, the peer and the operation, and ends the launch. */
  ncclResult_t (*progress)(struct tt_launch *launch, int *moved, int *done);
  /* Frees the launch, complete or not. */
  void (*finish)(struct tt_launch *launch);

  uint32_t version;  /* TT_DEVICE_VERSION */
  uint32_t features; /* TT_DEVICE_* */
  int32_t channels;  /* that it likes to use at most for large data; 0: no opinion */
  /* The device that the calling thread has chosen (cudaSetDevice). */
  ncclResult_t (*current)(int *index);
  ncclResult_t (*properties)(int index, struct tt_device_properties *properties);
  /* Whether device `from` can read and write memory of device `to` of the same host directly. Both are indices of this
   * process. */
  ncclResult_t (*can_map)(int from, int to, int *can);
  /* One rank's use of a device. Whatever may block or wait for running works later (loading code, above all) is done
   * here. */
  ncclResult_t (*open)(const struct tt_device_config *config, struct tt_device_context **context);
  /* Waits for works that run, at most a second once they were stopped; frees everything. */
  void (*close)(struct tt_device_context *context);
  /* Zeroed memory that the device and, by export, its peers can use, and NICs where the device lets them. `bytes` is
   * rounded up as the device needs. */
  ncclResult_t (*alloc)(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory);
  void (*release)(struct tt_device_context *context, struct tt_device_memory *memory);
  /* `local`: TT_EXPORT_FAR, TT_EXPORT_NEAR or TT_EXPORT_HERE. */
  ncclResult_t (*export_memory)(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                                struct tt_device_export *out);
  ncclResult_t (*import_memory)(struct tt_device_context *context, const struct tt_device_export *in,
                                struct tt_device_memory *memory);
  /* Makes conn->twin, which works then use: the device's own state of an end, counting from conn->step. All pointers of
   * `conn` are valid on the device. Sets *head and *tail to conn->step where that is not 0: both ends do, before either
   * moves. */
  ncclResult_t (*conn_open)(struct tt_device_context *context, struct tt_conn *conn);
  void (*conn_close)(struct tt_device_context *context, struct tt_conn *conn);
  /* Ends all works of the context, running and to come, soon; never waits. */
  void (*stop)(struct tt_device_context *context);
  /* Waits until all works that were launched are done, or timeout_ms have passed: *done tells which. Those that graphs
   * repeat are among them where the device knows. */
  ncclResult_t (*drain)(struct tt_device_context *context, int timeout_ms, int *done);
  /* Cheap, and takes no lock that anyone waits with: reads memory that works write. Watchdogs of users call it. */
  ncclResult_t (*status)(struct tt_device_context *context, struct tt_device_status *status);

  /* Since version 2, with TT_DEVICE_DESCRIBED. Describes device `index` of this process. What cannot be found out is
   * not `known`, and no failure; that there is no such device is one. The first call for a device may take some
   * milliseconds, and warns of links that do not work; later ones are cheap and silent. Needs no context, and makes
   * none. */
  ncclResult_t (*describe)(int index, struct tt_device_description *description);
  /* Whether device `from` can read and write the memory of device `to` of the same host, as far as the driver knows.
   * Both are bus ids, so that devices can be asked about which this process does not see; where the driver does not
   * either, the answer is TT_PEER_STATUS_UNKNOWN. Fails for what is no bus id. */
  ncclResult_t (*peer_status)(const char *from, const char *to, struct tt_device_peer *status);

  /* Since version 3, with TT_DEVICE_HOST_MEMORY. Makes memory of this process, whole pages of it, usable by the
   * context's works: private memory, or shared with other processes, which do the same for their own devices. *at is
   * where works find it. A range may be mapped several times, also by several contexts, but not parts of a range that
   * is. It stays mapped by the host, and unmap_host, with the same address and size, comes before the host unmaps it.
   */
  ncclResult_t (*map_host)(struct tt_device_context *context, void *ptr, size_t bytes, void **at);
  void (*unmap_host)(struct tt_device_context *context, void *ptr, size_t bytes);

  /* Since version 3, with TT_DEVICE_JOIN. ncclInvalidArgument, with the reason, for what is no stream of the context's
   * device, as far as can be found out without following a handle that may be dead. Cheap. */
  ncclResult_t (*check_stream)(struct tt_device_context *context, void *stream);
  /* What is enqueued on `stream` from now on waits for what is on `leader` now. If `leader` is captured, so is `stream`
   * from then on. Waits for nothing. */
  ncclResult_t (*follow)(struct tt_device_context *context, void *stream, void *leader);

  /* Since version 3, with TT_DEVICE_GRAPHS. Whether a stream is captured, and into which graph: *graph is its number in
   * this process, and 0 if it is not. */
  ncclResult_t (*capturing)(struct tt_device_context *context, void *stream, uint64_t *graph);
  /* Has `done` called with `argument` once, when the graph that `stream` is captured into and all that was instantiated
   * from it are gone; at once if the call fails. `done` is called from any thread, perhaps one of the driver's: it must
   * not wait, nor call the device. */
  ncclResult_t (*at_graph_end)(struct tt_device_context *context, void *stream, void (*done)(void *argument),
                               void *argument);

  /* Since version 3, with TT_DEVICE_USER_MEMORY. Zeroed memory on device `index` that peers can map where the device
   * allows that (ncclMemAlloc); bytes > 0. Needs no context. user_free takes only what user_alloc gave, and is told
   * so by its caller's books. */
  ncclResult_t (*user_alloc)(int index, size_t bytes, void **ptr);
  ncclResult_t (*user_free)(void *ptr);
  /* The allocation around `ptr`, whoever made it; ncclInvalidArgument if there is none. Cheap enough for each call of
   * a user's. */
  ncclResult_t (*find_buffer)(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer);
  /* As export_memory, of the allocation around `ptr`, whose exports have the kind. import_memory takes it: the import
   * begins where the allocation does. An import by FD or HANDLE keeps the memory from being freed in truth until it is
   * released, though the user frees it. */
  ncclResult_t (*export_buffer)(struct tt_device_context *context, const void *ptr, int local,
                                struct tt_device_export *out);

  /* Since version 3, with TT_DEVICE_MULTICAST. Device `index` of this process; cheap, and needs no context. */
  ncclResult_t (*team_check)(int index, struct tt_device_multicast *out);
  /* A team is made in this order, and all ranks do each step before one does the next: one creates it, the others
   * import what it exported; each adds its device; each binds its copy, zeroed, and gets the address of that and the
   * multicast address. Where a step fails on one rank no rank goes on, and all that have the team leave it. The
   * configuration is the same on all. An fd in `out` is the caller's to close, and is not closed by an import. */
  ncclResult_t (*team_create)(struct tt_device_context *context, const struct tt_device_team_config *config,
                              struct tt_device_export *out, struct tt_device_team **team);
  ncclResult_t (*team_import)(struct tt_device_context *context, const struct tt_device_team_config *config,
                              const struct tt_device_export *in, struct tt_device_team **team);
  ncclResult_t (*team_add)(struct tt_device_context *context, struct tt_device_team *team);
  ncclResult_t (*team_bind)(struct tt_device_context *context, struct tt_device_team *team, void **own, void **all);
  /* After any step, and with none of this rank's works under way. Others may go on using their copies, though not the
   * multicast address. */
  void (*team_leave)(struct tt_device_context *context, struct tt_device_team *team);

  /* Since version 3, with TT_DEVICE_COPY. Begins a copy between two places that the context can use, `to` perhaps in a
   * peer's memory. Works do not wait for it, nor it for works. *ticket counts the context's copies from 1. */
  ncclResult_t (*copy)(struct tt_device_context *context, void *to, const void *from, size_t bytes, uint64_t *ticket);
  /* *ticket: all copies up to this one are done, and seen by who is told so. Never waits. */
  ncclResult_t (*copied)(struct tt_device_context *context, uint64_t *ticket);

  /* Since version 3, with TT_DEVICE_REACH. Makes the allocation around `ptr`, which a device of this process has,
   * usable by the context's works at its own address, for as long as it lives; fills *buffer as find_buffer does. Holds
   * nothing, and so has no opposite. ncclInvalidArgument for memory that other devices cannot use. Cheap where it was
   * done before; else it may take a millisecond, and waits for no work. */
  ncclResult_t (*reach_buffer)(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer);

  /* Since version 3, with TT_DEVICE_DMABUF. A descriptor of a dma-buf that is [ptr, ptr + bytes) of memory of `alloc`,
   * whole pages of the host's size, for who gives NICs access to it. *fd is the caller's to close, also before the
   * memory is released. `pci`: with its addresses on the PCI bus, where the device also has another link to its CPU.
   * What the device or the driver cannot do is a failure with the reason. */
  ncclResult_t (*export_dmabuf)(struct tt_device_context *context, const void *ptr, size_t bytes, int pci, int *fd);

  /* Since version 3, with TT_DEVICE_PARTS. As import_memory, of `count` exports that become one range of addresses, in
   * their order: what export_buffer made of allocations that lie side by side at their owner. ncclInvalidArgument where
   * that cannot be done with memory of this kind. */
  ncclResult_t (*import_parts)(struct tt_device_context *context, const struct tt_device_export *in, int count,
                               struct tt_device_memory *memory);

  /* Since version 3, with TT_DEVICE_FLUSH. What a NIC has written into memory of `alloc`, and has told this thread of,
   * works find that hear of it after this call. Waits for nothing but the way to the device. The first call may take
   * milliseconds; where it fails, with the reason, so do all later ones, and the device has no such flushes here. */
  ncclResult_t (*flush)(struct tt_device_context *context);

  /* Since version 3, with TT_DEVICE_CHECK, which needs no TT_DEVICE_MEMORY. Whether all of a buffer can be used: memory
   * that the device's works reach, which has not ended before the buffer does. Touches neither the buffer nor any
   * stream, waits for nothing, and may be called while streams are captured. For who looks for mistakes, so that it
   * need not be cheap. `context` is NULL on a device without contexts. Fails only where nothing can be found out. */
  ncclResult_t (*check_buffer)(struct tt_device_context *context, struct tt_device_check *check);

  /* Since version 3, with TT_DEVICE_PEERS. Other ranks that a rank's program may name, in its messages or as members:
   * those of communicators with more have no programs in which a rank deals with all. At least as many as rings, trees,
   * and sends and receives have: 8. */
  uint32_t peers;
};

/* What a library `libtutti-device-NAME.so` exports, as TT_DEVICE_SYMBOL: its backend, which lives as long as the
 * library stays loaded, or NULL with a sentence that says why it cannot be used here. `log` prints a line at a level of
 * ncclDebugLogLevel. Called once. */
#define TT_DEVICE_SYMBOL "tutti_device"
typedef void tt_device_log(int level, const char *text);
typedef const struct tt_device *tt_device_entry(tt_device_log *log, char *why, size_t why_size);

#ifdef __cplusplus
}
#endif

#endif
