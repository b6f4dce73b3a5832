/* The parts of detection, a file each, and what they share. */
#ifndef TT_TOPOLOGY_DETECT_INTERNAL_H
#define TT_TOPOLOGY_DETECT_INTERNAL_H

#include "topology/detect.h"

enum { TT_DETECT_BUS = 24, TT_DETECT_VALUE = 512 }; /* bytes of a bus id, of a file's text */

struct tt_detection {
  const struct tt_detect_request *request;
  struct tt_detect_outcome *outcome;
  const char *sysfs;
  struct tt_xml *xml;
  struct tt_detect_cpu cpu;
  char cpu_words[32];            /* behind `cpu` */
  int nnodes, lowest_node;       /* NUMA nodes of the machine; 0: sysfs does not tell */
  bool named_file;               /* the XML began as the file that the user named */
  char missing[TT_DETECT_VALUE]; /* what sysfs did not tell, for the log */
};

/* detect_sysfs.c: the text of a file, without the line's end and with bytes that XML cannot hold replaced; false: there
 * is none. */
bool tt_detect_read(const char *directory, const char *name, char *text, size_t size);
/* The same for a number from `least` to `most`. */
bool tt_detect_read_int(const char *directory, const char *name, int least, int most, int *value);
/* Whether text is a bus id; `bus` is then the same as sysfs writes it. */
bool tt_detect_bus(const char *text, char bus[TT_DETECT_BUS]);
/* The real path of a PCI device's directory, the caller's to free; NULL: hidden. */
char *tt_detect_directory(const struct tt_detection *d, const char *bus);
/* That of the PCI device that a path below sysfs is or belongs to. */
char *tt_detect_directory_of_path(const char *path);
/* Cuts the last part off a path; returns it. */
const char *tt_detect_last(const char *path);
void tt_detect_count_nodes(struct tt_detection *d);
/* Adds to the list of what is missing. */
void tt_detect_miss(struct tt_detection *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* detect_cpu.c: asks the processor what it is. */
void tt_detect_processor(struct tt_detection *d);
/* The <cpu> of a NUMA node (-1: unknown), made if it is not there. */
ncclResult_t tt_detect_cpu_element(struct tt_detection *d, int numa, int *element);
/* The one for what belongs to none. */
ncclResult_t tt_detect_first_cpu(struct tt_detection *d, int *element);
/* Sets what <cpu> elements lack. */
ncclResult_t tt_detect_fill_cpus(struct tt_detection *d);

/* detect_pci.c: the <pci> of a device, made with all above it if it is not there. `directory` may be NULL; then it is
 * put below the NUMA node `numa`. */
ncclResult_t tt_detect_pci(struct tt_detection *d, const char *bus, const char *directory, int numa, int *element);
/* Sets what it and all above it lack; `class` is what it is if sysfs does not tell. */
ncclResult_t tt_detect_fill_pci(struct tt_detection *d, int element, const char *class);

ncclResult_t tt_detect_add_gpus(struct tt_detection *d);
ncclResult_t tt_detect_add_nets(struct tt_detection *d);

/* detect_net.c: what is written for a network device's latency; a plugin that says what is no time says nothing. */
const char *tt_detect_latency(const struct tt_detect_net *net, char *text, size_t size);

/* detect_trim.c: a copy without what leads to no element with keep="1", and without that attribute. */
ncclResult_t tt_detect_trim(const struct tt_xml *xml, struct tt_xml **trimmed);

/* An attribute, as a number; or only if there is none. */
ncclResult_t tt_detect_set_int(struct tt_xml *xml, int element, const char *name, int64_t value);
ncclResult_t tt_detect_default(struct tt_xml *xml, int element, const char *name, const char *value);
ncclResult_t tt_detect_default_int(struct tt_xml *xml, int element, const char *name, int64_t value);

#endif
