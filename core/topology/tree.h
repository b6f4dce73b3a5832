/* What detection and fusing do with the trees of xml.h: copying them in part. */
#ifndef TT_TOPOLOGY_TREE_H
#define TT_TOPOLOGY_TREE_H

#include "topology/xml.h"

/* A copy with the elements for which `kept` is set, whose parents must be too, in their order; without the attribute
 * `without` (NULL: with all). */
ncclResult_t tt_tree_copy(const struct tt_xml *xml, const bool *kept, const char *without, struct tt_xml **copy);
/* The element after `element` in the order of the file, within the tree below `top`, which may be `element` itself; -1:
 * none. */
int tt_tree_next(const struct tt_xml *xml, int top, int element);
ncclResult_t tt_tree_copy_attributes(const struct tt_xml *from, int element, struct tt_xml *to, int copy,
                                     const char *without);

#endif
