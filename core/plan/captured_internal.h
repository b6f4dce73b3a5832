/* What the files of captured collectives share; see captured.h. */
#ifndef TT_PLAN_CAPTURED_INTERNAL_H
#define TT_PLAN_CAPTURED_INTERNAL_H

#include <pthread.h>
#include "plan/captured.h"
#include "transport/user_range.h"

/* A message: kind, number of the collective, then what belongs to the kind. */
enum tt_captured_kind {
  TT_CAPTURED_OFFER,   /* captured here: its signature, and where its buffers lie */
  TT_CAPTURED_DECLINE, /* not to be mapped here: text */
  TT_CAPTURED_VERDICT, /* all others' buffers are mapped here: "", or why not */
};
#define TT_CAPTURED_HEAD 9
#define TT_CAPTURED_OFFER_BYTES (TT_CAPTURED_HEAD + 20 + 2 * TT_USER_RANGE_BYTES)

/* A message that was not asked for yet. */
struct tt_captured_note {
  struct tt_captured_note *next;
  int rank;
  enum tt_captured_kind kind;
  uint64_t number;
  size_t bytes; /* of what follows the head */
  unsigned char data[];
};

/* A collective of the group. */
struct tt_captured_step {
  const struct tt_task *task; /* NULL: there is nothing to agree on */
  uint64_t number;
  struct tt_user_range input, output; /* of this rank; 0 bytes: others do not touch it */
  bool mapped;
  void **inputs, **outputs; /* by rank */
};

struct tt_captured {
  struct ncclComm *comm;
  pthread_mutex_t lock; /* of the notes */
  pthread_cond_t changed;
  struct tt_captured_note *notes;
  _Atomic int nnotes;
  _Atomic uint64_t passed; /* of tt_captured_pass */
  /* Of the group; of the thread that runs it. */
  struct tt_captured_step *steps;
  int nsteps, next;
  bool asked; /* into which graph the group's first stream is captured */
  const void *stream;
  uint64_t graph; /* 0: into none */
};

/* captured_mail.c */
ncclResult_t tt_captured_mail_open(struct tt_captured *captured);
void tt_captured_mail_close(struct tt_captured *captured);
/* To all other ranks. */
ncclResult_t tt_captured_tell(struct tt_captured *captured, enum tt_captured_kind kind, uint64_t number,
                              const void *data, size_t bytes);
/* Waits until each other rank has sent one of the kinds (bits) for a collective: notes[rank], the caller's to free. On
 * failure there are none. */
ncclResult_t tt_captured_wait(struct tt_captured *captured, const struct tt_captured_step *step, uint32_t kinds,
                              struct tt_captured_note **notes);
/* What others say of collectives below a number is answered: there is nothing to agree on here, or it is done. */
void tt_captured_pass(struct tt_captured *captured, uint64_t number);

#endif
