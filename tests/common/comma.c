/* See comma.h. Machines that run tests often have no locale but C and POSIX, so one is compiled: of its categories only
 * the numbers are given, which needs no files of the system's. */
#include "tests/common/comma.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char compile[] = "cd '%s' && printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep \".\"\\ngrouping "
                              "3\\nEND LC_NUMERIC\\n' >source && "
                              "localedef -c --no-archive -i source ./comma >/dev/null 2>&1";

static bool is_comma(void)
{
  return strcmp(localeconv()->decimal_point, ",") == 0;
}

bool comma_locale(void)
{
  char folder[] = "/tmp/comma.XXXXXX", command[512];
  if (is_comma() || (setlocale(LC_ALL, "de_DE.UTF-8") && is_comma())) return true;
  if (mkdtemp(folder)) {
    snprintf(command, sizeof(command), compile, folder);
    int warned = system(command); /* of the categories that are not given */
    (void)warned;
    setenv("LOCPATH", folder, 1);
    setlocale(LC_NUMERIC, "comma");
    unsetenv("LOCPATH");
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command)) fprintf(stderr, "%s is left behind\n", folder);
  }
  if (is_comma()) return true;
  fprintf(stderr, "SKIP: there is no locale with a comma, and localedef makes none\n");
  return false;
}
