/* See machine.h. */
#include "machine.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"

static const char *speed_of(int generation)
{
  static const char *const speeds[] = {
      "", "2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"};
  return speeds[generation];
}

void machine_begin(struct machine *m)
{
  *m = (struct machine){0};
  m->out = open_memstream(&m->text, &m->size);
  if (!m->out) abort(); /* not by check: fuzzers use this, too */
  fputs("<system version=\"1\">\n", m->out);
}

static void end_cpu(struct machine *m)
{
  while (m->depth > 0) machine_up(m);
  if (m->cpu) fputs("</cpu>\n", m->out);
}

void machine_cpu(struct machine *m, int host, int numa, const char *kind)
{
  static const char *const kinds[][2] = {
      {"amd", "arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"175\" modelid=\"1\""},
      {"skylake", "arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"85\""},
      {"sapphire", "arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\""},
      {"arm", "arch=\"arm64\""},
      {"power", "arch=\"ppc64\""},
      {"nobody", "arch=\"x86_64\" vendor=\"Nobody\""}};
  end_cpu(m);
  m->cpu = true;
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
    if (strcmp(kinds[i][0], kind) == 0)
      fprintf(m->out, "<cpu host_hash=\"0x%x\" numaid=\"%d\" affinity=\"%x,00000000\" %s>\n", host + 1, numa,
              1u << (numa & 31), kinds[i][1]);
}

void machine_bridge(struct machine *m, int generation, int width)
{
  int n = m->bridges++;
  fprintf(m->out, "<pci busid=\"%04x:%02x:00.0\" class=\"0x060400\" link_speed=\"%s\" link_width=\"%d\">\n",
          0x100 + n / 256, n % 256, speed_of(generation), width);
  m->depth++;
}

void machine_switch(struct machine *m, const char *ids)
{
  fprintf(m->out, "<pci busid=\"%04x:00:00.0\" class=\"0x060400\" link_speed=\"%s\" link_width=\"16\" %s>\n",
          0x8000 + m->bridges++, speed_of(4), ids);
  m->depth++;
}

void machine_up(struct machine *m)
{
  fputs("</pci>\n", m->out);
  m->depth--;
}

void machine_gpu(struct machine *m, int rank, int sm, const char *links)
{
  fprintf(m->out,
          "<pci busid=\"0000:%02x:00.0\" class=\"0x030200\" link_speed=\"%s\" link_width=\"16\">\n"
          "<gpu dev=\"%d\" sm=\"%d\" rank=\"%d\" gdr=\"1\">\n",
          rank, speed_of(4), rank, sm, rank);
  while (*links) {
    char *end, what = *links;
    int peer = (int)strtol(links, &end, 10), count = (int)strtol(strchr(links, '*') + 1, &end, 10);
    if (what == 's')
      fprintf(m->out, "<nvlink target=\"ffff:ff:ff.0\" count=\"%d\" tclass=\"0x068000\"/>\n", count);
    else if (what == 'c')
      fprintf(m->out, "<c2c bw=\"40000\" count=\"%d\"/>\n", count);
    else
      fprintf(m->out, "<nvlink target=\"0000:%02x:00.0\" count=\"%d\" tclass=\"0x030200\"/>\n", peer, count);
    links = end + (*end == ' ');
  }
  fputs("</gpu></pci>\n", m->out);
}

static void print_net(struct machine *m, int dev, int gigabits, bool gdr)
{
  fprintf(
      m->out,
      "<nic><net name=\"net%d\" dev=\"%d\" speed=\"%d\" port=\"1\" guid=\"0x%x\" maxconn=\"64\" gdr=\"%d\"/></nic>\n",
      dev, dev, gigabits * 1000, dev + 100, gdr);
}

void machine_net(struct machine *m, int dev, int gigabits, bool gdr)
{
  fprintf(m->out, "<pci busid=\"0001:%02x:00.0\" class=\"0x020000\" link_speed=\"%s\" link_width=\"16\">\n", dev,
          speed_of(4));
  print_net(m, dev, gigabits, gdr);
  fputs("</pci>\n", m->out);
}

void machine_virtual_net(struct machine *m, int dev, int gigabits)
{
  while (m->depth > 0) machine_up(m);
  print_net(m, dev, gigabits, false);
}

char *machine_end(struct machine *m)
{
  end_cpu(m);
  fputs("</system>\n", m->out);
  fclose(m->out);
  return m->text;
}

char *machine_hybrid_cube(void)
{
  static const char *const links[] = {"1*1 2*1 3*2 4*2", "0*1 2*2 3*1 5*2", "0*1 1*2 3*2 6*1", "0*2 1*1 2*2 7*1",
                                      "0*2 5*1 6*1 7*2", "1*2 4*1 6*2 7*1", "2*1 4*1 5*2 7*2", "3*1 4*2 5*1 6*2"};
  struct machine m;
  machine_begin(&m);
  for (int g = 0; g < 8; g++) {
    if (g % 4 == 0) machine_cpu(&m, 0, g / 4, "skylake");
    if (g % 2 == 0) machine_bridge(&m, 4, 16);
    machine_gpu(&m, g, 70, links[g]);
    if (g % 2 == 0) continue;
    machine_net(&m, g / 2, 100, true);
    machine_up(&m);
  }
  return machine_end(&m);
}

char *machine_hgx(int sm, int links)
{
  struct machine m;
  char switches[16];
  snprintf(switches, sizeof(switches), "s*%d", links);
  machine_begin(&m);
  for (int g = 0; g < 8; g++) {
    if (g % 4 == 0) machine_cpu(&m, 0, g / 4, "sapphire");
    machine_bridge(&m, 4, 16);
    machine_gpu(&m, g, sm, switches);
    machine_net(&m, g, 200, true);
    machine_up(&m);
  }
  return machine_end(&m);
}

char *machine_pcie(const char *kind, int ngpus)
{
  struct machine m;
  machine_begin(&m);
  for (int cpu = 0; cpu < 2; cpu++) {
    machine_cpu(&m, 0, cpu, kind);
    for (int g = cpu; g < ngpus; g += 2) machine_gpu(&m, g, 86, "");
    if (cpu == 0) machine_net(&m, 0, 100, true);
  }
  return machine_end(&m);
}

char *machine_virtual(void)
{
  struct machine m;
  machine_begin(&m);
  machine_cpu(&m, 0, -1, "nobody");
  for (int g = 0; g < 4; g++) {
    machine_bridge(&m, 0, 0);
    machine_gpu(&m, g, 80, "");
    machine_up(&m);
  }
  machine_virtual_net(&m, 0, 100);
  return machine_end(&m);
}

char *machine_arm_board(void)
{
  struct machine m;
  machine_begin(&m);
  machine_cpu(&m, 0, -1, "arm");
  machine_gpu(&m, 0, 121, "c*8");
  machine_net(&m, 0, 100, true);
  return machine_end(&m);
}

char *machine_trays(int ntrays)
{
  struct machine m;
  machine_begin(&m);
  for (int h = 0; h < ntrays; h++) {
    machine_cpu(&m, h, 0, "arm");
    machine_bridge(&m, 4, 16);
    machine_gpu(&m, 2 * h, 100, "s*18");
    machine_gpu(&m, 2 * h + 1, 100, "s*18");
    machine_net(&m, h, 400, true);
  }
  return machine_end(&m);
}

static int pick(uint32_t *state, int below)
{
  *state = *state * 1103515245u + 12345u;
  return (int)((*state >> 16) % (uint32_t)below);
}

/* CPUs with trees of bridges, on which GPUs and NICs hang; some GPUs linked in pairs, some to a switch. */
char *machine_random(unsigned seed)
{
  static const char *const kinds[] = {"amd", "skylake", "sapphire", "arm", "power", "nobody"};
  struct machine m;
  uint32_t state = seed * 2654435761u + 1;
  const char *kind = kinds[pick(&state, 6)];
  int ncpus = 1 + pick(&state, 4), gpus = 0, nets = 0, linking = pick(&state, 3), nhosts = 1 + (pick(&state, 8) == 0);
  int first; /* of two picks, so that their order is sure */
  machine_begin(&m);
  for (int c = 0; c < ncpus; c++) {
    machine_cpu(&m, c % nhosts, c, kind);
    for (int i = 0, n = 1 + pick(&state, 10); i < n; i++) {
      switch (pick(&state, 5)) {
      case 0:
        first = pick(&state, 7);
        machine_bridge(&m, first, pick(&state, 3) * 8);
        break;
      case 1:
        if (m.depth > 0) machine_up(&m);
        break;
      case 2:
        first = pick(&state, 3);
        machine_net(&m, nets++, 100 << first, pick(&state, 4) != 0);
        break;
      case 3:
        if (pick(&state, 4) != 0) break;
        machine_virtual_net(&m, nets++, 10);
        break;
      default: {
        char links[32] = "";
        if (linking == 1 || (linking == 2 && gpus % 4 == 3)) snprintf(links, sizeof(links), "s*%d", 6);
        machine_gpu(&m, gpus++, 70 + 10 * pick(&state, 4), links);
      }
      }
    }
  }
  if (gpus == 0) machine_gpu(&m, gpus++, 80, "");
  return machine_end(&m);
}

struct tt_topology *machine_topology(char *text, const struct tt_topology_rules *rules)
{
  struct tt_topology_rules standard = tt_topology_rules_default();
  struct tt_topology *t = NULL;
  struct tt_xml *xml;
  ck_assert_msg(tt_xml_parse(text, strlen(text), "machine", "system", &xml) == ncclSuccess, "%s\n%s",
                tt_log_thread_error(), text);
  ck_assert_msg(tt_topology_create(xml, rules ? rules : &standard, 0, 0, &t) == ncclSuccess, "%s\n%s",
                tt_log_thread_error(), text);
  tt_xml_free(xml);
  free(text);
  return t;
}

const char *machine_path(const struct tt_topology *t, enum tt_node_type from_type, int from, enum tt_node_type to_type,
                         int to)
{
  static char text[32];
  const struct tt_path *path = tt_topology_path_between(t, from_type, from, to_type, to);
  snprintf(text, sizeof(text), "%s %.4g", tt_topology_name_path((enum tt_path_type)path->type),
           (double)path->bandwidth);
  return text;
}
