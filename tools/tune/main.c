/* tutti-tune: what collectives are made of and what they should take, without running anything. */
#include <stdio.h>
#include "tune.h"

int main(int argc, char **argv)
{
  struct tune_options options;
  char error[512];
  enum tune_parse parsed = tune_options_parse(&options, argc, argv, error, sizeof(error));
  if (parsed == TUNE_PARSE_HELP) {
    tune_options_help(stdout);
    return TUNE_GOOD;
  }
  if (parsed == TUNE_PARSE_WRONG) {
    fprintf(stderr, "tutti-tune: %s\n", error);
    return TUNE_USAGE;
  }
  enum tune_status status;
  if (options.command == TUNE_SIMULATE)
    status = tune_predict(&options, error, sizeof(error));
  else if (options.command == TUNE_DECIDE)
    status = tune_decide(&options, error, sizeof(error));
  else
    status = options.collective >= 0 && options.algorithm >= 0 ? tune_show(&options, error, sizeof(error))
                                                               : tune_list(&options, error, sizeof(error));
  if (status != TUNE_GOOD) fprintf(stderr, "tutti-tune: %s\n", error);
  if (fflush(stdout) == 0 && !ferror(stdout)) return status;
  fputs("tutti-tune: the output could not be written\n", stderr);
  return TUNE_FAILED;
}
