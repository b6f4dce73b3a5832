/* What machine this is: a topology file, if there is one, and what sysfs, the device backend and the net plugin add.
 *
 * Each rank detects its own device and all NICs (tt_topology_detect), and hands the result to the other ranks of its
 * host as text (tt_topology_pack: exchange the sizes first, then texts of the largest size). Each fuses all of them
 * (fuse.h), and so has the same machine. What sysfs does not tell is assumed, and said in one line of the log: a
 * machine that hides itself is never an error. Errors are a topology file that is wrong, and no memory. Any thread may
 * detect. */
#ifndef TT_TOPOLOGY_DETECT_H
#define TT_TOPOLOGY_DETECT_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"
#include "topology/xml.h"

#define TT_DETECT_DEFAULT_FILE "/var/run/nvidia-topologyd/virtualTopology.xml"

struct tt_detect_nvlink {
  const char *target; /* bus id of what is at the other end; NULL: hidden, as NVSwitches of a VM are */
  const char *tclass; /* its PCI class, "0x068000" for an NVSwitch; NULL: as sysfs says, an NVSwitch if it does not */
  int count;          /* links to it */
};

/* A rank's device. Zero and NULL mean unknown, unless told otherwise. */
struct tt_detect_gpu {
  int rank;
  int dev;         /* the device's index; host device: the rank's index among those of its host */
  int sm;          /* 10 * major + minor; host device: 0 */
  bool gdr;        /* NICs reach its memory */
  const char *pci; /* "0000:3b:00.0"; NULL or "": the host device */
  int numa;        /* host device: its NUMA node; GPU: the one to assume if sysfs hides it. -1: unknown */
  int generation;  /* of the PCI link, from 1 on, as the driver knows it now */
  int width;       /* of the PCI link */
  uint16_t vendor, device, subsystem_vendor, subsystem_device;
  const struct tt_detect_nvlink *nvlinks;
  int nnvlinks;
  int c2c_links, c2c_megabytes; /* chip-to-chip links to the CPU, and MB/s of each */
};

/* A device of the net plugin. */
struct tt_detect_net {
  const char *name;
  const char *pci_path; /* its directory under sysfs; NULL: it is virtual */
  int dev, port;
  int speed;       /* Mb/s */
  int maxconn;     /* connections at once; 0: unknown */
  int rail, plane; /* -1: none */
  uint64_t guid;
  float latency; /* microseconds; 0: unknown */
  bool gdr;      /* it reaches the memory of GPUs */
  bool collnet;  /* it reduces */
};

/* A processor, in the words of topology files. */
struct tt_detect_cpu {
  const char *arch;   /* "x86_64", "arm64", "ppc64", ... */
  const char *vendor; /* x86 only, else NULL: "GenuineIntel", "AuthenticAMD", ... */
  int family, model;
};

struct tt_detect_request {
  const char *sysfs;               /* NULL: "/sys" */
  const char *file;                /* the file that the user names (NCCL_TOPO_FILE), or NULL */
  const char *default_file;        /* read if the user names none, and it is there; NULL: TT_DETECT_DEFAULT_FILE */
  const struct tt_detect_cpu *cpu; /* NULL: this machine's */
  uint64_t host_hash;              /* equal for all ranks of a host, different for those of others */
  const struct tt_detect_gpu *gpus;
  int ngpus; /* a rank: 1, its own; a tool: all */
  const struct tt_detect_net *nets;
  int nnets;
};

/* How the file's devices relate to the real ones. */
struct tt_detect_outcome {
  bool from_file;     /* a file was read */
  int gpus_stand_in;  /* so many host devices take the places of GPUs of the file */
  bool nets_stand_in; /* the NETs are those of the file, and not of the plugin: see tt_detect_net_device */
  int nnets;          /* devices of the plugin */
};

/* The machine as the ranks of the request see it, with what they do not use left out. *xml is the caller's to free.
 *
 * Host devices, where the user names a file, take the place of its GPUs: the one with dev i that of the i-th GPU in the
 * order of their dev, so that a machine can be tried without its GPUs. If the file has NETs that the plugin does not
 * have, its NETs stand for the plugin's devices too. Host devices for which there is no GPU hang off their NUMA node.
 */
ncclResult_t tt_topology_detect(const struct tt_detect_request *request, struct tt_xml **xml,
                                struct tt_detect_outcome *outcome);

/* The plugin's device that does the work of NET `dev`: itself, or, of NETs that stand in, dev modulo the number of the
 * plugin's devices. */
static inline int tt_detect_net_device(const struct tt_detect_outcome *outcome, int dev)
{
  return outcome->nets_stand_in && outcome->nnets > 0 ? dev % outcome->nnets : dev;
}

/* The NUMA node that has all processors on which the calling thread may run; -1: there is none, or several. */
int tt_detect_numa_here(const char *sysfs);

#endif
