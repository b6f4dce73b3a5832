/* Trees like /sys in a temporary directory.
 *
 *     struct sysfs s;
 *     sysfs_begin(&s);
 *     sysfs_node(&s, 0, "ff");
 *     sysfs_device(&s, "pci0000:3a/0000:3a:00.0/0000:3b:00.0", "0x030200", "16.0 GT/s PCIe", "16", "0");
 *     ... s.root ...
 *     sysfs_end(&s); */
#ifndef TEST_SYSFS_H
#define TEST_SYSFS_H

struct sysfs {
  char root[64];
};

void sysfs_begin(struct sysfs *s);
void sysfs_end(struct sysfs *s);
/* A file with this text, its folders included. */
void sysfs_write(struct sysfs *s, const char *path, const char *text);
void sysfs_link(struct sysfs *s, const char *path, const char *target);
/* A NUMA node with a map of processors; NULL: without. */
void sysfs_node(struct sysfs *s, int node, const char *cpumap);
/* A PCI device below devices/, with a link in bus/pci/devices. Values that are NULL have no file. */
void sysfs_device(struct sysfs *s, const char *path, const char *class, const char *speed, const char *width,
                  const char *numa);
/* The path of something in the tree, good until the next call. */
const char *sysfs_path(const struct sysfs *s, const char *path);

#endif
