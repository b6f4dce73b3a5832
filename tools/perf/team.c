/* See team.h. */
#include "team.h"

#include <stdlib.h>
#include <string.h>

bool perf_team_make(struct perf_team *team)
{
  const struct perf_options *o = team->options;
  team->mine = calloc((size_t)(o->threads * o->comms), PERF_SLOT_BYTES);
  team->all = calloc((size_t)team->ranks, PERF_SLOT_BYTES);
  return team->mine && team->all && !pthread_barrier_init(&team->barrier, NULL, (unsigned)o->threads);
}

void perf_team_drop(struct perf_team *team)
{
  pthread_barrier_destroy(&team->barrier);
  free(team->mine);
  free(team->all);
}

void perf_team_exchange(struct perf_team *team, int thread, const void *mine, void *all, size_t bytes)
{
  size_t comms = (size_t)team->options->comms, threads = (size_t)team->options->threads;
  memcpy(team->mine + (size_t)thread * comms * bytes, mine, comms * bytes);
  pthread_barrier_wait(&team->barrier);
  if (thread == 0) {
    char sentence[1024];
    enum perf_control_state state =
        perf_control_gather(team->control, team->mine, team->all, threads * comms * bytes, sentence, sizeof(sentence));
    if (state != PERF_CONTROL_OK) perf_watch_lost(team->watch, state, sentence);
  }
  pthread_barrier_wait(&team->barrier);
  /* `all` is not written again before every thread has come to the first barrier of the next exchange. */
  memcpy(all, team->all, (size_t)team->ranks * bytes);
}

void perf_team_barrier(struct perf_team *team, int thread)
{
  pthread_barrier_wait(&team->barrier);
  if (thread == 0) {
    char sentence[1024], nothing = 0, *all = team->all;
    enum perf_control_state state = perf_control_gather(team->control, &nothing, all, 1, sentence, sizeof(sentence));
    if (state != PERF_CONTROL_OK) perf_watch_lost(team->watch, state, sentence);
  }
  pthread_barrier_wait(&team->barrier);
}
