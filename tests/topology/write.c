/* Writes a machine of machine.h as a topology file: topology_machine NAME [N]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "machine.h"

int main(int argc, char **argv)
{
  const char *name = argc > 1 ? argv[1] : "";
  const int n = argc > 2 ? atoi(argv[2]) : 4;
  char *text = NULL;
  if (strcmp(name, "cube") == 0) text = machine_hybrid_cube();
  if (strcmp(name, "hgx") == 0) text = machine_hgx(90, 18);
  if (strcmp(name, "pcie") == 0) text = machine_pcie("amd", n);
  if (strcmp(name, "virtual") == 0) text = machine_virtual();
  if (strcmp(name, "arm") == 0) text = machine_arm_board();
  if (strcmp(name, "trays") == 0) text = machine_trays(n);
  if (!text) {
    return 2;
  }
  fputs(text, stdout);
  free(text);
  return 0;
}
