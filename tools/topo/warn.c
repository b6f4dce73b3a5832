/* What slows a machine down and can be changed: see here.h. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "here.h"
#include "topology/detect_internal.h"

enum { ACS = 0x000d, CONFIG_BYTES = 4096, FIRST_EXTENDED = 0x100 };

/* What was looked at, for one line about what could not be seen. */
struct look {
  const char *sysfs;
  int warnings, hidden, translated;
  char first[TT_DETECT_BUS]; /* behind a translating IOMMU */
};

static unsigned word(const unsigned char *config, int at)
{
  return config[at] | (unsigned)config[at + 1] << 8;
}

/* The ACS control register; -1: the device has none, -2: the extended space is for root only. */
static int read_acs(const char *directory)
{
  unsigned char config[CONFIG_BYTES];
  char path[4200];
  snprintf(path, sizeof(path), "%s/config", directory);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t bytes = file < 0 ? 0 : read(file, config, sizeof(config));
  if (file >= 0) close(file);
  if (bytes < FIRST_EXTENDED + 8) return bytes >= FIRST_EXTENDED ? -1 : -2; /* 256 bytes: conventional PCI */
  int at = FIRST_EXTENDED;
  for (int hops = 0; hops < 64 && at >= FIRST_EXTENDED && at + 8 <= bytes; hops++) {
    if (word(config, at) == ACS) return (int)word(config, at + 6);
    at = (int)(word(config, at + 2) >> 4 & 0xffc);
  }
  return -1;
}

/* A bridge that sends what its devices tell each other up to the CPU. */
static void look_at_acs(struct look *l, const char *directory, const char *bus)
{
  static const struct {
    int bit;
    const char *name;
  } bits[] = {{0x1, "SrcValid"}, {0x4, "ReqRedir"}, {0x8, "CmpltRedir"}, {0x10, "UpstreamFwd"}};
  int control = read_acs(directory);
  l->hidden += control == -2;
  if (control < 0 || !(control & 0x1d)) return;
  printf("warning: bridge %s has ACS on (", bus);
  const char *blank = "";
  for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
    if (!(control & bits[i].bit)) continue;
    printf("%s%s", blank, bits[i].name);
    blank = " ";
  }
  printf("): what devices below it send each other goes up to the CPU. Without virtual machines, turn it off: "
         "setpci -s %s ECAP_ACS+6.w=0\n",
         bus);
  l->warnings++;
}

static double rate_of(const char *directory, const char *name)
{
  char text[64];
  return tt_detect_read(directory, name, text, sizeof(text)) && strstr(text, "GT/s") ? strtod(text, NULL) : 0;
}

/* What both ends of a link are able to do, and what it does. */
static void look_at_link(struct look *l, const char *directory, const char *bus, bool gpu)
{
  double now = rate_of(directory, "current_link_speed"), best = rate_of(directory, "max_link_speed");
  double port = rate_of(directory, "../max_link_speed");
  int width = 0, widest = 0, port_width = 0;
  tt_detect_read_int(directory, "current_link_width", 1, 64, &width);
  tt_detect_read_int(directory, "max_link_width", 1, 64, &widest);
  tt_detect_read_int(directory, "../max_link_width", 1, 64, &port_width);
  if (port > 0 && port < best) best = port;
  if (port_width > 0 && port_width < widest) widest = port_width;
  bool slow = now > 0 && now<best, narrow = width> 0 && width < widest;
  if (!slow && !narrow) return;
  printf("warning: the link of %s runs at %g GT/s x%d, and could at %g GT/s x%d%s\n", bus, now, width, best, widest,
         narrow ? ": look at its slot, riser and cable"
         : gpu  ? " (an idle GPU slows its link down; look again while it works)"
                : ": look at its slot, and at the firmware's settings");
  l->warnings++;
}

/* Whether the kernel was told to let devices use addresses as they are; where it does not say by device. */
static bool is_passed_through(const char *sysfs)
{
  char folder[4096], text[TT_DETECT_VALUE * 8];
  snprintf(folder, sizeof(folder), "%s/../proc", sysfs);
  return tt_detect_read(folder, "cmdline", text, sizeof(text)) && strstr(text, "iommu=pt");
}

static void look_at_iommu(struct look *l, const char *directory, const char *bus)
{
  char type[64];
  char group[4200];
  snprintf(group, sizeof(group), "%s/iommu_group", directory);
  bool known = tt_detect_read(group, "type", type, sizeof(type));
  if (access(group, F_OK) != 0 || (known ? strncmp(type, "DMA", 3) != 0 : is_passed_through(l->sysfs))) return;
  if (l->translated++ == 0) snprintf(l->first, sizeof(l->first), "%s", bus);
}

void topo_warn(const char *sysfs, const struct tt_xml *xml)
{
  struct look l = {.sysfs = sysfs};
  const struct tt_detection d = {.sysfs = sysfs};
  putchar('\n');
  for (int e = 0; e < xml->count; e++) {
    char bus[TT_DETECT_BUS];
    const char *text = tt_xml_is(xml, e, "pci") ? tt_xml_get(xml, e, "busid") : NULL;
    if (!text || !tt_detect_bus(text, bus)) continue;
    char *directory = tt_detect_directory(&d, bus);
    if (!directory) continue;
    int first = xml->elements[e].first;
    bool gpu = tt_xml_child(xml, first, "gpu") >= 0;
    if (gpu || tt_xml_child(xml, first, "nic") >= 0)
      look_at_iommu(&l, directory, bus);
    else
      look_at_acs(&l, directory, bus);
    look_at_link(&l, directory, bus, gpu);
    free(directory);
  }
  if (l.translated > 0) {
    printf("warning: an IOMMU translates what %d devices send, %s among them: that takes time, and GPUs may not reach "
           "each "
           "other. Boot with iommu=pt, or turn it off in the firmware\n",
           l.translated, l.first);
    l.warnings++;
  }
  if (l.hidden > 0) printf("ACS of %d bridges cannot be seen: run this as root\n", l.hidden);
  if (l.warnings == 0) printf("no warnings\n");
}
