/* Which elements of two trees are one device, and which comes first. */
#ifndef TT_TOPOLOGY_FUSE_KEY_H
#define TT_TOPOLOGY_FUSE_KEY_H

#include "topology/xml.h"

/* Below 0, 0 or above: whether element `a` of a tree comes before element `b` of a tree, is the same, or comes behind
 * it, among the children of one parent. */
int tt_fuse_compare(const struct tt_xml *a_xml, int a, const struct tt_xml *b_xml, int b);
/* A bus id as a number, ~0 if it is none. */
uint64_t tt_fuse_bus(const struct tt_xml *xml, int element, const char *attribute);
/* Sets an attribute of which two values were seen; *differs tells whether they were known and differ. */
ncclResult_t tt_fuse_value(struct tt_xml *into, int element, const char *name, const char *value, bool *differs);

#endif
