/* Checks many operations on communicators that are made once: collectives x types x operations x sizes x in place or
 * not x put on a stream or in a graph. The algorithm and the protocol are the environment's. Prints a line for each
 * case, "PASS ..." or "FAIL ... : why"; ends with 0 if all passed, 1 if not, 3 if it could not go on. gpu_matrix [-t
 * THREADS | -n PROCESSES] [-w RANKS,RANKS...] [-s SET] [-L BYTES] [-l LABEL] [-T SECONDS] [-R | -W] [-H HOSTS]
 * [--device D] A rank is a thread or a process; -w makes communicators of the first so many ranks. SET: all_reduce,
 * rest (the other collectives), all (both, and groups), quick (the same, few cases each), small (quick without large
 * ones), rows (many small operations in a row, so that ranks get ahead of each other), types (all types, one size),
 * grouped (groups of sends and receives), fp8 (every pair of codes, two ranks), or names of collectives, with commas.
 * -L: the largest buffer, 0 for none. -R: buffers come from ncclMemAlloc and are registered; -W: in windows. -H:
 * processes pretend to be of so many hosts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "launch.h"
#include "matrix.h"
#include "operate.h"
#include "team.h"

enum { SMALL_BYTES = 12 << 20 };
enum mode { EAGER, THRICE, GRAPH, MODES, ROW = MODES };
enum { ROW_LENGTH = 20 }; /* more than a connection has slots */
static const char *const mode_names[] = {"eager", "three in a row", "graph"};

/* What all jobs of one line have done. */
struct verdict {
  uint64_t wrong;
  char first[160];
};

/* A rank. */
struct rank {
  const struct matrix *matrix;
  struct perf_worker worker;
  int number, world; /* its own; ranks of the communicator that is tested */
  uint64_t root;     /* goes round, so that all ranks have a turn */
  struct verdict verdict;
  int failures; /* lines of rank 0 */
};

struct job {
  const struct perf_collective *collective;
  const struct perf_type *type;
  const struct perf_op *op;
  size_t elements, unalign;
  bool in_place;
  enum mode mode;
};

static struct perf_case case_of(struct rank *rank, const struct job *job)
{
  struct perf_worker *w = &rank->worker;
  struct perf_case c = {.collective = job->collective,
                        .type = job->type,
                        .op = job->collective->reduces ? job->op : NULL,
                        .root = (int)(rank->root % (uint64_t)rank->world),
                        .rank = rank->number,
                        .nranks = rank->world,
                        .in_place = job->in_place,
                        .send = &w->send[0],
                        .recv = &w->recv[0]};
  size_t shift = PERF_GUARD + job->unalign * (size_t)job->type->bytes;
  c.collective->shape(&c.shape, job->elements, c.rank, c.nranks);
  c.send->data = c.send->base + shift;
  c.recv->data = c.recv->base + shift;
  return c;
}

static void look(struct rank *rank, const struct job *job, const struct perf_case *c)
{
  struct perf_verdict found;
  perf_worker_must(&rank->worker, 0, "reading its buffers", perf_check_verify(c, &found));
  if (found.wrong && !rank->verdict.wrong)
    snprintf(rank->verdict.first, sizeof(rank->verdict.first), "%zu %s %s%s: %.90s", job->elements, job->type->name,
             c->op ? c->op->name : "", job->unalign ? " unaligned" : "", found.first);
  rank->verdict.wrong += found.wrong;
}

/* Ranks outside of the communicator take part in the barriers alone. */
static void run_job(struct rank *rank, const struct job *job)
{
  struct perf_worker *w = &rank->worker;
  bool active = rank->number < rank->world;
  int launches = job->mode == GRAPH ? 2 : 1, times = job->mode == THRICE && !job->in_place ? 3 : 1;
  if (job->mode == ROW) times = ROW_LENGTH;
  void **graphs = NULL;
  struct perf_case c = {0};
  if (active) c = case_of(rank, job);
  rank->root++;
  if (active && job->mode == GRAPH) graphs = perf_capture(w, &c, 1, 1);
  for (int i = 0; i < launches; i++) {
    c.epoch = ++w->epoch;
    if (active) perf_worker_must(w, 0, "filling its buffers", perf_check_prepare(&c));
    /* No barrier: a rank that is early must not touch the buffers of one that has not come yet. */
    if (active && graphs) perf_replay(w, graphs);
    for (int k = 0; active && !graphs && k < times; k++) perf_enqueue(w, &c, 1, 0);
    if (active) perf_worker_wait(w);
    if (active) look(rank, job, &c); /* while others are still at it: they owe this rank nothing more */
    perf_team_barrier(w->team, w->thread);
  }
  if (active) perf_graphs_drop(w, graphs);
}

/* Ends a line: rank 0 prints what all ranks found. */
static void conclude(struct rank *rank, const char *name, const char *what)
{
  struct perf_team *team = rank->worker.team;
  static _Thread_local struct verdict all[MATRIX_MOST_RANKS];
  perf_team_exchange(team, rank->worker.thread, &rank->verdict, all, sizeof(all[0]));
  memset(&rank->verdict, 0, sizeof(rank->verdict));
  uint64_t wrong = 0;
  int first = -1;
  for (int r = 0; r < team->ranks; r++) {
    wrong += all[r].wrong;
    if (all[r].wrong && first < 0) first = r;
  }
  if (rank->number != 0) return;
  rank->failures += wrong != 0;
  printf("%s %s %s%s%d rank%s of %d process%s: %s", wrong ? "FAIL" : "PASS", name, rank->matrix->label,
         *rank->matrix->label ? ", " : "", rank->world, rank->world > 1 ? "s" : "", team->control->processes,
         team->control->processes > 1 ? "es" : "", what);
  if (wrong) printf(": %llu wrong; rank %d: %s", (unsigned long long)wrong, first, all[first].first);
  printf("\n");
  fflush(stdout);
}

static void arm(struct rank *rank)
{
  if (rank->worker.thread == 0) perf_watch_arm(rank->worker.team->watch, rank->matrix->options.timeout);
}

/* Whether the device does it: not all reduce the fp8 types. */
static bool is_possible(const struct rank *rank, const struct perf_type *type, const struct perf_op *op)
{
  return !op || !perf_type_is_fp8(type) || rank->worker.team->backend->fp8;
}

/* Every type with one operation. */
static void types_line(struct rank *rank, const struct perf_collective *collective, const struct perf_op *op)
{
  static const size_t sizes[] = {1, 1023, 20011};
  char what[96];
  int count = 0;
  arm(rank);
  for (int t = 0; perf_type_at(t); t++) {
    if (!is_possible(rank, perf_type_at(t), op)) continue;
    count++;
    for (int s = 0; s < 3; s++) {
      struct job job = {
          collective, perf_type_at(t), op, sizes[s], (size_t)(s == 1), collective->in_place && (t + s) % 2, EAGER};
      run_job(rank, &job);
    }
  }
  snprintf(what, sizeof(what), "all %d types%s%s, eager", count, op ? ", " : "", op ? op->name : "");
  conclude(rank, collective->name, what);
}

/* Sizes from nothing on, odd ones, and some that begin in the middle of a vector. */
static void sizes_line(struct rank *rank, const struct perf_collective *collective, enum mode mode, bool in_place,
                       const char *type, const char *op)
{
  static const struct {
    size_t elements, unalign;
  } sizes[] = {{0, 0}, {1, 0}, {3, 1}, {16, 0}, {257, 0}, {1023, 1}, {4096, 0}, {65537, 3}, {(1 << 20) + 3, 0}};
  char what[96];
  arm(rank);
  size_t count = sizeof(sizes) / sizeof(sizes[0]) -
                 (rank->matrix->amount == MATRIX_TINY || rank->matrix->amount == MATRIX_SMALL ? 2 : 0);
  for (size_t s = 0; s < count; s++) {
    struct job job = {collective, perf_type_find(type), perf_op_find(op), sizes[s].elements, sizes[s].unalign, in_place,
                      mode};
    run_job(rank, &job);
  }
  snprintf(what, sizeof(what), "%s%s%s, sizes from 0 to %zu, %s, %s place", type, collective->reduces ? " " : "",
           collective->reduces ? op : "", sizes[count - 1].elements, mode_names[mode], in_place ? "in" : "out of");
  conclude(rank, collective->name, what);
}

/* From every root: who only sends is soon ahead of who receives. */
static void row_line(struct rank *rank, const struct perf_collective *collective)
{
  static const size_t sizes[] = {1, 500, 1023};
  char what[96];
  arm(rank);
  for (int i = 0; i < (collective->rooted ? rank->world : 1); i++) {
    struct job job = {collective, perf_type_find("float"), perf_op_find("sum"), sizes[(i + 1) % 3], 0, false, ROW};
    run_job(rank, &job);
  }
  snprintf(what, sizeof(what), "float%s, %d in a row", collective->reduces ? " sum" : "", ROW_LENGTH);
  conclude(rank, collective->name, what);
}

static void large_line(struct rank *rank, const struct perf_collective *collective, enum mode mode, size_t bytes)
{
  char what[96];
  size_t elements = bytes / 4 - (mode == GRAPH ? 5 : 0);
  bool in_place = collective->in_place && mode == GRAPH;
  struct job job = {collective, perf_type_find("float"), perf_op_find("sum"), elements, 0, in_place, mode};
  arm(rank);
  run_job(rank, &job);
  snprintf(what, sizeof(what), "float%s, %zu elements, %s, %s place", collective->reduces ? " sum" : "", elements,
           mode_names[mode], in_place ? "in" : "out of");
  conclude(rank, collective->name, what);
}

static void note(struct rank *rank, uint64_t wrong, const char *first)
{
  if (wrong && !rank->verdict.wrong)
    snprintf(rank->verdict.first, sizeof(rank->verdict.first), "%.*s", (int)sizeof(rank->verdict.first) - 1, first);
  rank->verdict.wrong += wrong;
}

static void fp8_lines(struct rank *rank)
{
  char what[96], first[128];
  for (int t = 0; perf_type_at(t); t++)
    for (int o = 0; perf_type_is_fp8(perf_type_at(t)) && perf_op_at(o); o++) {
      uint64_t wrong = 0;
      arm(rank);
      if (rank->number < rank->world)
        wrong = matrix_fp8(&rank->worker, rank->number, perf_type_at(t), perf_op_at(o), first, sizeof(first));
      note(rank, wrong, first);
      snprintf(what, sizeof(what), "every pair of codes of %s, %s", perf_type_at(t)->name, perf_op_at(o)->name);
      conclude(rank, "all_reduce", what);
    }
}

static void grouped_lines(struct rank *rank)
{
  char what[96], first[128];
  bool streams = rank->worker.team->backend->streams;
  for (int form = 0; form < MATRIX_GROUPS; form++)
    for (int graph = 0; graph <= streams; graph++) {
      uint64_t wrong = 0;
      arm(rank);
      if (rank->number < rank->world)
        wrong = matrix_grouped(&rank->worker, rank->number, rank->world, (enum matrix_group)form, graph, first,
                               sizeof(first));
      note(rank, wrong, first);
      snprintf(what, sizeof(what), "%s, %s", matrix_group_names[form], mode_names[graph ? GRAPH : EAGER]);
      conclude(rank, "group", what);
    }
}

static void collective_lines(struct rank *rank, const struct perf_collective *collective)
{
  if (rank->matrix->amount == MATRIX_ROWS) {
    row_line(rank, collective);
    return;
  }
  if (rank->matrix->amount == MATRIX_TYPES) {
    for (int i = 0; perf_op_at(i) && (i == 0 || collective->reduces); i++)
      types_line(rank, collective, collective->reduces ? perf_op_at(i) : NULL);
    return;
  }
  bool quick = rank->matrix->amount != MATRIX_FULL;
  bool streams = rank->worker.team->backend->streams;
  for (int i = 0; !quick && perf_op_at(i) && (i == 0 || collective->reduces); i++)
    types_line(rank, collective, collective->reduces ? perf_op_at(i) : NULL);
  for (int mode = 0; mode < MODES; mode++)
    for (int in_place = 0; in_place <= collective->in_place; in_place++) {
      if (mode == GRAPH && !streams) continue;
      if (mode == THRICE && in_place) continue; /* the second would not have the first's input */
      if (quick && mode == THRICE) continue;
      sizes_line(rank, collective, (enum mode)mode, in_place, "float", "sum");
    }
  if (!quick && streams) sizes_line(rank, collective, GRAPH, false, "bfloat16", "avg");
  if (!quick) sizes_line(rank, collective, EAGER, collective->in_place, "int8", "max");
  size_t large = rank->matrix->large;
  if (!large || rank->world != rank->matrix->worlds[0]) return;
  large_line(rank, collective, EAGER, large);
  if (streams) large_line(rank, collective, GRAPH, large / 4 * 3);
}

/* Of both buffers, which lie alike on all ranks. */
static void set_windows(struct rank *rank, ncclWindow_t *windows, bool on)
{
  struct perf_worker *w = &rank->worker;
  for (int i = 0; i < 2; i++) {
    const struct perf_buffer *buffer = i ? w->recv : w->send;
    if (on)
      perf_worker_try(
          w, rank->number, "ncclCommWindowRegister",
          ncclCommWindowRegister(w->comms[0], buffer->base, buffer->bytes, &windows[i], NCCL_WIN_COLL_SYMMETRIC));
    else
      perf_worker_try(w, rank->number, "ncclCommWindowDeregister", ncclCommWindowDeregister(w->comms[0], windows[i]));
  }
}

static void set_buffers(struct rank *rank, void **handles, bool on)
{
  struct perf_worker *w = &rank->worker;
  for (int i = 0; rank->matrix->registers && i < 2; i++) {
    const struct perf_buffer *buffer = i ? w->recv : w->send;
    if (on)
      perf_worker_try(w, rank->number, "ncclCommRegister",
                      ncclCommRegister(w->comms[0], buffer->base, buffer->bytes, &handles[i]));
    else
      perf_worker_try(w, rank->number, "ncclCommDeregister", ncclCommDeregister(w->comms[0], handles[i]));
  }
}

/* A communicator of the first ranks, and everything on it. */
static void run_world(struct rank *rank, int ranks)
{
  struct perf_worker *w = &rank->worker;
  static _Thread_local ncclUniqueId ids[MATRIX_MOST_RANKS];
  ncclUniqueId id = {{0}};
  rank->world = ranks;
  arm(rank);
  if (rank->number == 0) perf_worker_try(w, 0, "ncclGetUniqueId", ncclGetUniqueId(&id));
  perf_team_exchange(w->team, w->thread, &id, ids, sizeof(id));
  bool active = rank->number < ranks;
  if (active)
    perf_worker_try(w, rank->number, "ncclCommInitRank", ncclCommInitRank(w->comms, ranks, ids[0], rank->number));
  void *handles[2];
  ncclWindow_t windows[2];
  bool in_windows = rank->matrix->windows;
  if (active && in_windows) set_windows(rank, windows, true);
  if (active && !in_windows) set_buffers(rank, handles, true);
  for (int i = 0; perf_collective_at(i); i++)
    if (matrix_has(rank->matrix, perf_collective_at(i)->name)) collective_lines(rank, perf_collective_at(i));
  if (matrix_has(rank->matrix, "grouped")) grouped_lines(rank);
  if (!strcmp(rank->matrix->set, "fp8")) fp8_lines(rank);
  perf_team_barrier(w->team, w->thread);
  if (active && in_windows) set_windows(rank, windows, false);
  if (active && !in_windows) set_buffers(rank, handles, false);
  if (active) perf_worker_try(w, rank->number, "ncclCommDestroy", ncclCommDestroy(w->comms[0]));
  perf_team_barrier(w->team, w->thread);
}

static void *run_rank(void *arg)
{
  struct rank *rank = arg;
  struct perf_worker *w = &rank->worker;
  size_t bytes = rank->matrix->large > SMALL_BYTES ? rank->matrix->large : SMALL_BYTES;
  if (bytes < matrix_group_bytes(w->team->ranks)) bytes = matrix_group_bytes(w->team->ranks);
  perf_worker_choose(w, 0);
  for (int i = 0; i < 2; i++)
    if (!perf_buffer_make(i ? w->recv : w->send, w->team->backend, rank->matrix->registers, bytes, 64))
      perf_watch_fail(w->team->watch, "rank %d: no memory: %s", rank->number, w->team->backend->error());
  if (w->team->backend->streams) perf_worker_must(w, 0, "making a stream", w->team->backend->stream_make(w->streams));
  perf_team_barrier(w->team, w->thread);
  for (int i = 0; i < rank->matrix->world_count; i++) run_world(rank, rank->matrix->worlds[i]);
  perf_buffer_drop(w->send);
  perf_buffer_drop(w->recv);
  w->team->backend->stream_drop(w->streams[0]);
  return NULL;
}

/* What one thread needs, in one piece. */
struct seat {
  struct rank rank;
  pthread_t thread;
  ncclComm_t comm;
  cudaStream_t stream;
  struct perf_buffer send, recv;
};

static int run(struct matrix *matrix, struct perf_control *control)
{
  struct perf_options *o = &matrix->options;
  struct perf_watch watch = {.program = "gpu_matrix", .control = control, .launched = control->processes > 1};
  struct perf_team team = {.options = o, .control = control, .watch = &watch, .ranks = control->processes * o->threads};
  struct seat *seats = calloc((size_t)o->threads, sizeof(*seats));
  char why[512], host[16];
  snprintf(host, sizeof(host), "host %d", control->process * matrix->hosts / control->processes);
  if (matrix->hosts) setenv("NCCL_HOSTID", host, 1); /* before the library looks */
  perf_watch_start(&watch);
  if (!seats || !perf_team_make(&team)) perf_watch_fail(&watch, "out of memory");
  team.backend = perf_backend_select(o->device, why, sizeof(why));
  if (!team.backend) perf_watch_fail(&watch, "%s", why);
  team.host_first = control->process * o->threads;
  team.devices = team.backend->count();
  if (team.devices < 1) perf_watch_fail(&watch, "%s", team.backend->error());
  for (int t = 0; t < o->threads; t++) {
    struct seat *seat = &seats[t];
    seat->rank = (struct rank){.matrix = matrix, .number = team.host_first + t};
    seat->rank.worker = (struct perf_worker){.team = &team,
                                             .thread = t,
                                             .comms = &seat->comm,
                                             .streams = &seat->stream,
                                             .send = &seat->send,
                                             .recv = &seat->recv};
    if (t > 0 && pthread_create(&seat->thread, NULL, run_rank, &seat->rank))
      perf_watch_fail(&watch, "cannot start %d threads", o->threads);
  }
  run_rank(&seats[0].rank);
  for (int t = 1; t < o->threads; t++) pthread_join(seats[t].thread, NULL);
  /* From here on other processes may end; they do so together, with the first one's verdict. */
  int status = seats[0].rank.failures ? PERF_EXIT_FAILED : PERF_EXIT_OK;
  perf_watch_stop(&watch);
  if (perf_control_gather(control, &status, team.all, sizeof(status), why, sizeof(why)) == PERF_CONTROL_OK)
    memcpy(&status, team.all, sizeof(status));
  perf_team_drop(&team);
  perf_control_close(control);
  free(seats);
  return status;
}

int main(int argc, char **argv)
{
  static struct matrix matrix;
  struct perf_control control;
  char error[256] = "";
  if (!matrix_parse(&matrix, argc, argv)) {
    fprintf(stderr, "usage: gpu_matrix [-t N | -n N] [-w N,N] [-s "
                    "all_reduce|rest|all|quick|small|tiny|rows|types|grouped|fp8|NAME,NAME] "
                    "[-L BYTES] [-l LABEL] [-T SECONDS] [-R] [-H HOSTS] [--device auto|host|cuda]\n");
    return PERF_EXIT_USAGE;
  }
  perf_control_open(&control, 0, 1, NULL);
  if (matrix.options.processes > 1) {
    int status =
        perf_launch(&control, matrix.options.processes, matrix.options.threads, "gpu_matrix", error, sizeof(error));
    if (error[0]) fprintf(stderr, "gpu_matrix: %s\n", error);
    if (status >= 0) return status;
  }
  return run(&matrix, &control);
}
