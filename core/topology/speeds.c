/* Bandwidths that a topology file does not give, because they follow from what a device is. The numbers are those that
 * NCCL 2.30 calculates with: what its authors measured or read in data sheets. GB/s, one direction. */
#include <string.h>
#include "base/check.h"
#include "base/text.h"
#include "topology/draft.h"

float tt_speed_nvlink(int sm)
{
  return sm >= 100 ? 40.1f : sm >= 90 ? 20.6f : sm == 86 ? 12.0f : sm >= 70 ? 20.0f : sm >= 60 ? 18.0f : 20.0f;
}

float tt_speed_between_cpus(const struct tt_node *cpu)
{
  if (cpu->cpu.arch == TT_ARCH_POWER) return 32.0f;
  if (cpu->cpu.arch == TT_ARCH_ARM) return 6.0f;
  switch (cpu->cpu.vendor) {
  case TT_VENDOR_AMD:
    return 16.0f;
  case TT_VENDOR_ZHAOXIN:
    return cpu->cpu.model == TT_MODEL_ZHAOXIN_YONGFENG ? 9.0f : 6.0f;
  case TT_VENDOR_INTEL:
    return cpu->cpu.model == TT_MODEL_INTEL_EMERALD_RAPIDS    ? 40.0f
           : cpu->cpu.model == TT_MODEL_INTEL_SAPPHIRE_RAPIDS ? 22.0f
           : cpu->cpu.model == TT_MODEL_INTEL_SKYLAKE         ? 10.0f
                                                              : 6.0f;
  default:
    return TT_LOCAL_BANDWIDTH;
  }
}

/* What a lane carries, in 100 Mb/s, less what coding takes. Virtual machines often say nothing: then the third
 * generation, and 16 lanes, are assumed. */
float tt_speed_pci(int width, const char *speed)
{
  static const struct {
    double rate;
    int carries;
  } generations[] = {{2.5, 15}, {5, 30}, {8, 60}, {16, 120}, {32, 240}, {64, 480}};
  int carries = 60;
  const char *unit;
  double rate = tt_text_leading(speed, &unit);
  while (*unit == ' ') unit++;
  if (strncmp(unit, "GT/s", 4) == 0)
    for (size_t i = 0; i < TT_COUNT(generations); i++)
      if (rate == generations[i].rate) carries = generations[i].carries;
  return (float)((width > 0 ? width : 16) * carries) / 80.0f;
}

/* A thread that copies between its memory and that of others. Like a slot of which nothing is known: enough to tell
 * one NUMA node from several, whose links have numbers of the same kind, and NICs that are slower from faster ones. */
float tt_speed_host_device(void)
{
  return tt_speed_pci(0, "");
}
