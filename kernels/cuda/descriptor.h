/* Works as kernels read them. launch.c writes a launch: items, works and channels, one after another in one row of
 * 32-bit words, which travels in the kernel's parameters where it fits, and else lies in device memory. Programs are
 * copied to device memory once, rearranged so that a thread finds what it needs without a search. */
#ifndef TT_KERNELS_CUDA_DESCRIPTOR_H
#define TT_KERNELS_CUDA_DESCRIPTOR_H

#include <stdbool.h>
#include "kernels/cuda/shared.h"

/* Limits of what a kernel keeps in shared memory; launch.c refuses programs beyond them. */
enum {
  TT_CUDA_WARP = 32,            /* threads */
  TT_CUDA_MAX_THREADS = 512,    /* of a block */
  TT_CUDA_MAX_STRANDS = 15,     /* named barriers, of which a strand takes two; barrier 0 is the block's */
  TT_CUDA_MAX_CONNS = 64,       /* ends of connections of one channel */
  TT_CUDA_MAX_SEMAPHORES = 16,  /* of one channel */
  TT_CUDA_ENTRIES = 384,        /* operands resolved at once, of all strands */
  TT_CUDA_PROGRAM_BYTES = 8192, /* of a packed program */
  TT_CUDA_MAX_SCRATCH = 4,      /* scratch buffers */
  TT_CUDA_PARAM_WORDS = 1984    /* words of a launch in the kernel's parameters */
};

/* What an operand is to its instruction. Operands are sorted by it: sends of local chunks first, since peers wait for
 * them, then the inputs of the reduction in their order, its outputs, and receives into local chunks. */
enum {
  TT_CUDA_MOVE_SEND = 0,
  TT_CUDA_IN_LOCAL = 1,
  TT_CUDA_IN_RECV = 2,
  TT_CUDA_OUT_LOCAL = 3,
  TT_CUDA_OUT_SEND = 4,
  TT_CUDA_MOVE_RECV = 5
};

/* Flags of an operand that was resolved: its message is the first of the work on the connection; its values are scaled
 * when they are read; there is no slot for it yet. */
enum { TT_ENTRY_FIRST = 1, TT_ENTRY_SCALED = 2, TT_ENTRY_NO_CREDIT = 4 };

struct tt_cuda_operand {
  uint8_t role;
  uint8_t buffer; /* index into a work's buffers, or a member's: enum tt_buffer; of IN_RECV and OUT_SEND unused */
  uint16_t conn;  /* of the channel: sends by peer, then receives by peer; of a member's buffer: the member */
  uint32_t start, stride; /* chunk = (start + repetition * stride) % modulo; both below modulo */
  uint32_t modulo;
  uint32_t uses_before; /* of its connection by earlier instructions of a loop */
  uint32_t uses_a_loop; /* of its connection */
};

struct tt_cuda_instruction {
  uint8_t opcode;
  uint8_t flags;
  uint16_t semaphore;
  uint32_t first_repetition; /* repetitions of earlier instructions of the strand in a loop */
  uint32_t repeat;
  uint16_t first_operand;
  uint8_t nsends, ninputs, noutputs, nreceives;
  uint16_t reserved;
};

struct tt_cuda_strand {
  uint16_t first_instruction, ninstructions;
  uint32_t repetitions; /* in a loop */
  uint16_t most_operands;
  uint16_t reserved;
};

/* Followed by its strands, instructions and operands. */
struct tt_cuda_program {
  uint32_t bytes; /* of all, a multiple of 16 */
  uint32_t parts;
  uint16_t nstrands, npeers, nsemaphores, reserved;
  uint32_t instructions, operands; /* offsets from the program's start */
  uint32_t pad[2];
};

/* A launch's items come first among its words: the quad (four words) at which a chain's first work lies, and a channel
 * in the upper half. A block works on items i, i + gridDim.x, ...: on one channel of the chain's works, one after
 * another.
 */
enum { TT_CUDA_BUFFERS = 2 + TT_CUDA_MAX_SCRATCH };
/* Programs with shared memory have no scratch memory, and it has the place of that: buffers, stride, and where the
 * channel's area begins. Operands of the multicast address have a number in `conn`, which other local ones have not. A
 * message of no pieces has modulo 0. */
enum { TT_CUDA_SHARED = TT_SCRATCH, TT_CUDA_MULTICAST = TT_SCRATCH + 1, TT_CUDA_OF_MULTICAST = 1 };

struct tt_cuda_work {
  struct tt_signature signature;
  uint64_t signature_hash;
  unsigned char *buffers[TT_CUDA_BUFFERS]; /* input, output, scratch */
  uint64_t strides[3];                     /* of input, output and scratch blocks, in elements */
  uint64_t scale;                          /* bits of struct tt_reduction */
  int64_t divisor;
  uint8_t op, scale_inputs, divide_result, element_bytes;
  uint16_t next; /* quad of the chain's next work; 0: none */
  uint16_t nchannels;
  uint16_t channels;      /* where the first channel lies, in units of four words */
  uint16_t channel_quads; /* from one channel to the next, likewise */
  uint32_t protocol;
  uint32_t reserved[2];
  const void *scale_at; /* of struct tt_work */
};

/* Followed by 2 * npeers indices of ends in the context's table of connections. */
struct tt_cuda_channel {
  const struct tt_cuda_program *program;
  uint64_t lo, hi;
  uint64_t scratch_lo;
  uint32_t chunk, last_chunk;
  uint32_t loops;
  uint32_t npeers;
  uint32_t program_bytes;
  uint32_t reserved[3];
};

/* A short work: every channel runs the same program in a single loop, with so few repetitions that each connection is
 * used for no more than half of its slots, and without scratch memory; in LL or LL128, alone in its launch or beside
 * others (together.c), and all of it fits the kernel's parameters. Then the host resolves all but the connections'
 * steps. The words are
 *
 *     tt_cuda_short, tt_cuda_work, steps, entries, channels with their connections' indices, members' buffers
 *
 * in which positions count from the first. Several have before them an item for each block: quad | channel << 16.
 *
 * A mapped work, of a program that uses members' buffers, has the same form, in Simple, and no other: its messages are
 * all without data, and come first or last in a step of their own.
 */
struct tt_cuda_short {
  uint8_t nsteps, nstrands;
  uint16_t nentries;
  uint16_t entries;                 /* quad of the first; steps lie behind the work */
  uint16_t channels, channel_quads; /* quad of the first, and from one to the next */
  uint16_t strand_threads;
  uint16_t members;                                 /* quad of the first member's pointers; 0: none */
  uint16_t flags;                                   /* TT_CUDA_SHORT_SERVED, TT_CUDA_SHORT_TELLS */
  uint16_t first_step[TT_CUDA_MAX_STRANDS / 2 + 1]; /* of each strand; then nsteps */
};
/* SERVED: a proxy serves one of the connections. TELLS: emptied slots are told at the end, not at the beginning of the
 * next work: a proxy waits for that, or the work only receives, and its sender may be as far ahead as there are slots.
 */
enum { TT_CUDA_SHORT_SERVED = 1, TT_CUDA_SHORT_TELLS = 2 };
enum { TT_CUDA_SHORT_WORK = 8 }; /* word at which the work lies */

/* A repetition. Of `flags`: TT_FLAG_FINAL, and TT_CUDA_SHORT_BARRIER where all threads must be through the steps
 * before: it writes local memory that they read, or reads such that they wrote. */
enum { TT_CUDA_SHORT_BARRIER = 128 };
struct tt_cuda_short_step {
  uint16_t first; /* entry; of SIGNAL and WAIT: semaphore */
  uint8_t opcode, flags;
  uint8_t nsends, ninputs, noutputs, nreceives;
};

enum {                           /* of an entry, beside TT_ENTRY_FIRST and TT_ENTRY_SCALED */
       TT_CUDA_SHORT_OUTPUT = 8, /* its chunk is one of the output, else of the input */
       TT_CUDA_SHORT_LOCAL = 16,
       TT_CUDA_SHORT_MESSAGE = 32,
       TT_CUDA_SHORT_LAST = 64,   /* of its connection */
       TT_CUDA_SHORT_MEMBER = 128 /* its chunk is in the buffer of the member that `conn` says */
};

struct tt_cuda_short_entry {
  uint8_t role, flags;
  uint8_t conn;
  uint8_t uses_before; /* of its connection, by earlier repetitions */
  uint16_t part, row;  /* of its chunk */
};

/* Followed by 2 * npeers indices of ends. In bytes. */
struct tt_cuda_short_channel {
  unsigned char *input, *output; /* where the channel's share of the first block begins */
  uint64_t share;
  uint32_t part; /* of which one begins behind the other; the last may be shorter */
  uint32_t reserved;
};

/* A member's buffers, as this rank's device reaches them. */
struct tt_cuda_short_member {
  unsigned char *input, *output;
};

/* A short work that is an exchange has a form of its own, in which a thread finds all that it needs after one load of a
 * launch's words: direct algorithms, one-shot, two-shot, sends and receives are such. Chunks of the input go to peers;
 * behind a barrier come a copy, a reduction, whose result may go to peers too, and receives. The words are
 *
 *     tt_cuda_exchange, its entries, channels with an index of an end for each entry
 *
 * and those of several have before them an item for each block: quad | quad of the channel << 16. Entries are in the
 * order of the struct's numbers: sends, the reduction's inputs and outputs, receives, the copy's input and output. The
 * first 64 bytes are a line of the cache through which parameters come. */
struct tt_cuda_exchange {
  struct tt_signature signature;
  uint64_t signature_hash;
  uint8_t nentries; /* at most TT_CUDA_WARP: a lane each */
  uint8_t nsends, ninputs, noutputs, nreceives, ncopies;
  uint8_t op;
  uint8_t flags;                      /* TT_CUDA_EXCHANGE_* */
  uint16_t send_share, receive_share; /* 2^TT_CUDA_SHARE_BITS divided by how many there are, rounded up */
  uint8_t local_input;                /* with PAIR: which input is this rank's */
  uint8_t reserved[11];
};
enum { TT_CUDA_SHARE_BITS = 15 };
enum {
  TT_CUDA_EXCHANGE_BESIDE = 1, /* the copy goes beside the sends; else, where memory may overlap, behind the barrier */
  TT_CUDA_EXCHANGE_PAIR = 2,   /* the reduction is of a chunk of this rank and a message; the first output is here */
  TT_CUDA_EXCHANGE_TELLS = 4   /* as TT_CUDA_SHORT_TELLS */
};
struct tt_cuda_exchange_entry {
  uint64_t offset;     /* bytes: of its row, in the input or output */
  uint16_t part;       /* in the row */
  uint8_t role, flags; /* as of tt_cuda_short_entry */
  uint8_t uses_before;
  uint8_t reserved[3];
};
struct tt_cuda_exchange_channel {
  unsigned char *input, *output; /* where the channel's share of the first block begins */
  uint32_t share, part;          /* bytes, as of tt_cuda_short_channel */
  uint32_t number;
  uint32_t reserved;
};

struct tt_cuda_launch {
  struct tt_cuda_mapped *mapped;
  uint32_t *claim;            /* set by the block that reports the first failure */
  struct tt_cuda_conn *conns; /* the context's ends, by index */
  const uint32_t *blob;       /* where the words lie, if not below */
  uint32_t nitems;
  uint32_t nwords;
  uint16_t channels, channel_quads;    /* of a single exchange: quad of the first, and from one to the next */
  uint32_t reserved;                   /* parameters begin at 16 modulo 64, so that words begin at a line */
  uint32_t words[TT_CUDA_PARAM_WORDS]; /* items, then works and channels, each at a multiple of four words */
};

/* The beginning of a launch, with its first words. */
enum { TT_CUDA_BRIEF_WORDS = 240 };
struct tt_cuda_brief {
  unsigned char front[sizeof(struct tt_cuda_launch) - 4 * TT_CUDA_PARAM_WORDS];
  uint32_t words[TT_CUDA_BRIEF_WORDS];
} __attribute__((aligned(8)));

/* kernel.cu, compiled for each data type; by protocol and what it takes. As cudaLaunchKernel takes it. */
enum tt_cuda_form {
  TT_CUDA_FORM_ANY,           /* any works */
  TT_CUDA_FORM_MIXED,         /* any works of ncclUint8, each in its own protocol, whatever is asked for */
  TT_CUDA_FORM_SHORT,         /* one short work */
  TT_CUDA_FORM_EXCHANGE,      /* one that is an exchange */
  TT_CUDA_FORM_EXCHANGE_DEEP, /* in LL128, with chunks of more lines than a block has octets of data threads */
  TT_CUDA_FORM_BRIEF,         /* exchanges of few words: the kernel is given a struct tt_cuda_brief */
  TT_CUDA_FORM_MAPPED,        /* one mapped work, in Simple */
  TT_CUDA_FORMS
};
typedef const void *tt_cuda_kernel(int protocol, int form);

static inline bool tt_cuda_is_exchange(enum tt_cuda_form form)
{
  return form == TT_CUDA_FORM_EXCHANGE || form == TT_CUDA_FORM_EXCHANGE_DEEP;
}

#endif
