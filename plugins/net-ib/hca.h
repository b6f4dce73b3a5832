/* NCCL_IB_HCA: which ports of which devices to use.
 *
 *     [^][=]ENTRY[,ENTRY...]     ENTRY is NAME[:PORT[:RAIL[:PLANE]]]
 *
 * NAME is a prefix, or with `=` the whole name. `^` takes all ports but those named. The port may be left out or empty:
 * all ports. Rail and plane are numbers that the topology goes by where an entry includes a port. Empty entries are
 * passed over; a list without entries takes everything. An entry may repeat the marks of the list, as in "^a,^b". */
#ifndef TT_IB_HCA_H
#define TT_IB_HCA_H

#include <stdbool.h>
#include <stddef.h>

#define TT_IB_HCA_ENTRIES 64
struct tt_ib_hca_filter {
  bool excludes;
  int count;
  struct {
    char name[64];
    bool exact;
    int port, rail, plane; /* -1: not given */
  } entry[TT_IB_HCA_ENTRIES];
};

/* Reads the text; NULL is empty. If it cannot be understood, false, and `why` is a phrase about the entry. */
bool tt_ib_hca_parse(const char *text, struct tt_ib_hca_filter *filter, char *why, size_t size);
/* Is this port to be used? *rail and *plane get the numbers of its entry, or -1. */
bool tt_ib_hca_match(const struct tt_ib_hca_filter *filter, const char *name, int port, int *rail, int *plane);

#endif
