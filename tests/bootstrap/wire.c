#include "ranks.h"
Suite *suite_wire(void) { return suite_create("wire"); }
