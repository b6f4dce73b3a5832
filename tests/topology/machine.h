/* Machines in a compact form, from which topology files are generated.
 *
 *     struct machine m;
 *     machine_begin(&m);
 *     machine_cpu(&m, 0, 0, "amd");
 *     machine_bridge(&m, 4, 16);
 *     machine_gpu(&m, 0, 80, "1*4 s*12");      rank 0: 4 links to rank 1, 12 to the switch
 *     machine_net(&m, 0, 200, true);
 *     char *xml = machine_end(&m);             ends all that is open; the caller's to free */
#ifndef TEST_MACHINE_H
#define TEST_MACHINE_H

#include <stdbool.h>
#include <stdio.h>
#include "topology/topology.h"

struct machine {
  char *text;
  size_t size;
  FILE *out;
  int depth, bridges;
  bool cpu;
};

void machine_begin(struct machine *m);
/* Ends what is open of the CPU before. Kinds: amd, skylake, sapphire, arm, power, nobody. */
void machine_cpu(struct machine *m, int host, int numa, const char *kind);
/* Opens a bridge of a PCI generation (0: unknown) and width; machine_up closes it. */
void machine_bridge(struct machine *m, int generation, int width);
void machine_switch(struct machine *m, const char *ids); /* one with the attributes vendor="..." and so on */
void machine_up(struct machine *m);
/* A GPU in a PCI slot of generation 4: "links" lists RANK*COUNT, s*COUNT (NVSwitch) and c*COUNT (C2C, 40 GB/s each). */
void machine_gpu(struct machine *m, int rank, int sm, const char *links);
/* A NIC in a slot of generation 4; or one on no bus, which closes all bridges. Gb/s. */
void machine_net(struct machine *m, int dev, int gigabits, bool gdr);
void machine_virtual_net(struct machine *m, int dev, int gigabits);
char *machine_end(struct machine *m);

/* Whole machines. */
char *machine_hybrid_cube(void);                 /* DGX-1V: 8 GPUs, two quads, 4 NICs */
char *machine_hgx(int sm, int links);            /* 8 GPUs and NICs below 4 switches, one NVSwitch */
char *machine_pcie(const char *kind, int ngpus); /* GPUs in turn on two CPUs, a NIC at the first */
char *machine_virtual(void);                     /* 4 GPUs on a flat bus, nothing known of it */
char *machine_arm_board(void);                   /* one GPU with a C2C link, a NIC at the CPU */
char *machine_trays(int ntrays);                 /* hosts of 2 GPUs each that share NVSwitches, a NIC a host */
char *machine_random(unsigned seed);

/* The topology of such a text, which is freed. */
struct tt_topology *machine_topology(char *text, const struct tt_topology_rules *rules);
/* The path between two nodes as "NVL 370.8". */
const char *machine_path(const struct tt_topology *t, enum tt_node_type from_type, int from, enum tt_node_type to_type,
                         int to);

#endif
