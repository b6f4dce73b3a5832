#include "ranks.h"
Suite *suite_processes(void) { return suite_create("processes"); }
int process_main(int c, char **v) { (void)c; (void)v; return 1; }
