/* Network devices that work as one (virtual NICs): which to fuse, and what becomes of the machine then.
 *
 * The caller asks for a plan, has the net plugin make a device of each group (makeVDevice), and puts those that it got
 * into the tree. All from a tree that tt_topology_detect made, before ranks tell each other; the plan is the same on
 * all ranks of a host if they see the same NICs. */
#ifndef TT_TOPOLOGY_MERGE_H
#define TT_TOPOLOGY_MERGE_H

#include "nccl.h"
#include "topology/detect.h"
#include "topology/xml.h"

enum { TT_MERGE_MOST = 8 }; /* devices in one: NCCL_NET_MAX_DEVS_PER_NIC_V12 */

struct tt_merge_group {
  int count;
  int devs[TT_MERGE_MOST]; /* of the plugin; the first by its number leads */
};

/* What users say, as text; NULL: not set. */
struct tt_merge_rules {
  const char
      *level; /* NCCL_NET_MERGE_LEVEL: LOC (none), PORT (of one card; the default), PIX, PXB, P2C, PXN, PHB, SYS */
  const char *force;  /* NCCL_NET_FORCE_MERGE: "mlx5_0,mlx5_1;mlx5_2:1,mlx5_3:1" */
  const char *policy; /* NCCL_NET_MERGE_POLICY: ALL (the default), or RAIL: only those of one rail */
  int most;           /* devices that the plugin can fuse; at most TT_MERGE_MOST */
};

/* ncclInvalidUsage if the level or the policy is none, whether or not there is anything to fuse. */
ncclResult_t tt_merge_check(const struct tt_merge_rules *rules);

/* Groups of two devices and more; devices that are in none stay as they are. A device is in one group at most: first
 * those that are forced, then, in the order of their numbers, each with those that are near to it. *groups is the
 * caller's to free. Errors are variables that are wrong: ncclInvalidUsage. */
ncclResult_t tt_merge_plan(const struct tt_xml *xml, const struct tt_merge_rules *rules,
                           const struct tt_detect_net *nets, int nnets, struct tt_merge_group **groups, int *ngroups);

/* The machine in which device `merged` works for a group: below what all of the group are below, on a link as wide as
 * theirs together, or as the narrowest on the way. *out is the caller's to free. */
ncclResult_t tt_merge_apply(const struct tt_xml *xml, const struct tt_merge_group *group,
                            const struct tt_detect_net *merged, struct tt_xml **out);

#endif
