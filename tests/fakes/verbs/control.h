/* What tests may ask of the fake verbs library beside verbs, found with dlsym. */
#ifndef FAKE_VERBS_CONTROL_H
#define FAKE_VERBS_CONTROL_H

#include <stdint.h>

/* Does what a line of FAKE_VERBS_SCRIPT says (script.c), now. 0, or -1 if it cannot be understood. */
int fake_verbs_do(const char *action);
/* How often something happened since the process started: a call's name, "rnr", "inline", "write", "write_imm", "read",
 * "inside_a_line" (a write that begins at no multiple of 128), "stored" (a write that has come), "dmabuf", ... */
uint64_t fake_verbs_count(const char *what);
/* Objects that exist now: "qp", "cq", "mr", "pd", "context". */
int fake_verbs_live(const char *what);
/* The flow label, traffic class, service level, ... that the QP was given for the packets it sends, and how many
 * requests were "posted" and "acked"; -1: no such QP. */
long fake_verbs_qp(uint32_t number, const char *what);
/* The numbers of all QPs, at most `most`; returns how many. */
int fake_verbs_qps(uint32_t *numbers, int most);

#endif
