/* Dialling of a link: which address is tried next, and when it is time to give up. Used by link.c only. */
#ifndef TT_BOOTSTRAP_DIAL_H
#define TT_BOOTSTRAP_DIAL_H

#include "bootstrap/link.h"

/* Goes on with a paused or connecting link. */
void tt_dial_progress(struct tt_link *link);
/* The attempt in flight failed: takes the next address, pauses before the next round, or closes the link. */
void tt_dial_failed(struct tt_link *link, const char *why, bool refused);
/* Socket options of every connection. */
void tt_dial_tune(int fd);
/* In link.c: the end of a link. */
void tt_link_close(struct tt_link *link, const char *why);

#endif
