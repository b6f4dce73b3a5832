#include "ranks.h"
Suite *suite_errors(void) { return suite_create("errors"); }
