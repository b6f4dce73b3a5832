/* See signals.h. */
#include "signals.h"

sigset_t perf_signals(void)
{
  static const int all[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction now;
  sigset_t set;
  sigemptyset(&set);
  for (int i = 0; i < 3; i++)
    if (!sigaction(all[i], NULL, &now) && now.sa_handler != SIG_IGN) sigaddset(&set, all[i]);
  return set;
}
