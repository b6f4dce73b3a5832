/* Where network devices are in a tree. */
#ifndef TT_TOPOLOGY_MERGE_INTERNAL_H
#define TT_TOPOLOGY_MERGE_INTERNAL_H

#include "topology/merge.h"

/* The <net> of a device; -1: none. */
int tt_merge_find(const struct tt_xml *xml, int dev);
/* What a <net>'s <nic> is below: the <pci> of its card, or a <cpu>. */
int tt_merge_card(const struct tt_xml *xml, int net);
/* The innermost element that all are in. */
int tt_merge_common(const struct tt_xml *xml, const int *nets, int count);
/* Whether two <pci> are functions of one card. */
bool tt_merge_same_card(const struct tt_xml *xml, int a, int b);

#endif
