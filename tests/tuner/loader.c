/* See loader.h. */
#include "loader.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *library;
static char file[64];

/* ---- The log ---- */

#define LINES 512
static struct {
  pthread_mutex_t lock;
  int count;
  struct {
    ncclDebugLogLevel level;
    char text[1024];
  } line[LINES];
  char last[1024];
} log_kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void logger(ncclDebugLogLevel level, unsigned long flags, const char *where, int number, const char *format, ...)
{
  va_list args;
  (void)where, (void)number;
  pthread_mutex_lock(&log_kept.lock);
  ck_assert_int_lt(log_kept.count, LINES);
  log_kept.line[log_kept.count].level = level;
  va_start(args, format);
  vsnprintf(log_kept.line[log_kept.count++].text, sizeof log_kept.line[0].text, format, args);
  va_end(args);
  pthread_mutex_unlock(&log_kept.lock);
  ck_assert(flags != 0);
}

int logged(ncclDebugLogLevel level, const char *part)
{
  int count = 0;
  pthread_mutex_lock(&log_kept.lock);
  for (int i = 0; i < log_kept.count; i++) {
    if (log_kept.line[i].level != level || !strstr(log_kept.line[i].text, part)) continue;
    strcpy(log_kept.last, log_kept.line[i].text);
    count++;
  }
  pthread_mutex_unlock(&log_kept.lock);
  return count;
}

const char *last_logged(void)
{
  return log_kept.last;
}

/* ---- Opening ---- */

static void remove_file(void)
{
  if (file[0]) unlink(file);
  file[0] = '\0';
}

void use_plugin(void)
{
  if (library) dlclose(library);
  library = dlopen(TUNER, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library != NULL, "%s", dlerror());
}

const char *use_rules(const char *text)
{
  remove_file();
  strcpy(file, "/tmp/tutti-rules-XXXXXX");
  int fd = mkstemp(file);
  ck_assert_int_ge(fd, 0);
  atexit(remove_file);
  ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  close(fd);
  setenv("NCCL_TUNER_CONFIG_FILE", file, 1);
  use_plugin();
  return file;
}

void *plugin_symbol(const char *name)
{
  void *symbol = dlsym(library, name);
  ck_assert_msg(symbol != NULL, "%s", name);
  return symbol;
}

/* The struct of a version; all have the same first members, but for their types. */
static void *plugin(int version)
{
  char name[32];
  snprintf(name, sizeof name, "ncclTunerPlugin_v%d", version);
  return plugin_symbol(name);
}

ncclResult_t start(int version, size_t nranks, size_t nnodes, void **ctx)
{
  ncclNvlDomainInfo_v6_t domains = {.nNvlDomains = (int)nnodes};
  ncclTunerConstants_v6_t constants = {0}, before = {0};
  ncclResult_t result;
  *ctx = &domains; /* to be overwritten */
  if (version == 2) return ((ncclTuner_v2_t *)plugin(2))->init(nranks, nnodes, logger, ctx);
  if (version == 3) return ((ncclTuner_v3_t *)plugin(3))->init(nranks, nnodes, logger, ctx);
  if (version == 4) return ((ncclTuner_v4_t *)plugin(4))->init(nranks, nnodes, logger, ctx);
  if (version == 5)
    result = ((ncclTuner_v5_t *)plugin(5))->init(ctx, 77, nranks, nnodes, logger, &domains, &constants);
  else
    result = ((ncclTuner_v6_t *)plugin(6))->init(ctx, 77, nranks, nnodes, logger, &domains, &constants);
  ck_assert(memcmp(&constants, &before, sizeof before) == 0); /* it has no opinion of the cost model */
  return result;
}

ncclResult_t finish(int version, void *ctx)
{
  if (version == 2) return ((ncclTuner_v2_t *)plugin(2))->destroy(ctx);
  if (version == 3) return ((ncclTuner_v3_t *)plugin(3))->destroy(ctx);
  if (version == 4) return ((ncclTuner_v4_t *)plugin(4))->destroy(ctx);
  if (version == 5) return ((ncclTuner_v5_t *)plugin(5))->finalize(ctx);
  return ((ncclTuner_v6_t *)plugin(6))->finalize(ctx);
}

/* ---- Asking ---- */

struct question all_reduce(size_t bytes)
{
  struct question question = {
      .collective = ncclFuncAllReduce, .bytes = bytes, .pipe_ops = 1, .rows = NCCL_NUM_ALGORITHMS};
  for (int a = 0; a < ROWS; a++)
    for (int p = 0; p < COLUMNS; p++) question.costs[a][p] = 10.0f + (float)(a * COLUMNS + p);
  question.costs[NCCL_ALGO_RING][NCCL_PROTO_SIMPLE] = 5;
  return question;
}

static ncclResult_t ask_v2(void *ctx, struct question *question)
{
  question->algorithm = question->protocol = -1;
  return ((ncclTuner_v2_t *)plugin(2))
      ->getCollInfo(ctx, question->collective, question->bytes,
                    question->costs[NCCL_ALGO_COLLNET_CHAIN][NCCL_PROTO_SIMPLE] >= 0,
                    question->costs[NCCL_ALGO_NVLS][NCCL_PROTO_SIMPLE] >= 0, question->pipe_ops, &question->algorithm,
                    &question->protocol, &question->nchannels);
}

/* As the ABI has it: the smallest that is not negative, the first of equals. */
static void find_winner(struct question *question)
{
  float best = 0;
  question->algorithm = question->protocol = -1;
  for (int a = 0; a < question->rows; a++)
    for (int p = 0; p < COLUMNS; p++) {
      float cost = question->costs[a][p];
      if (cost < 0 || (question->algorithm >= 0 && cost >= best)) continue;
      best = cost;
      question->algorithm = a;
      question->protocol = p;
    }
}

ncclResult_t ask(int version, void *ctx, struct question *question)
{
  float(*costs)[COLUMNS] = question->costs, before[ROWS][COLUMNS];
  ncclResult_t result;
  question->nchannels = 0;
  if (version == 2) return ask_v2(ctx, question);
  memcpy(before, question->costs, sizeof before);
  if (version == 3)
    result = ((ncclTuner_v3_t *)plugin(3))
                 ->getCollInfo(ctx, question->collective, question->bytes, question->pipe_ops, (float **)costs,
                               question->rows, COLUMNS, &question->nchannels);
  else /* v5 and v6 have the same member in the same place */
    result = ((ncclTuner_v4_t *)plugin(version))
                 ->getCollInfo(ctx, question->collective, question->bytes, question->pipe_ops, (float **)costs,
                               question->rows, COLUMNS, question->reg_buff, &question->nchannels);
  for (int a = 0; a < ROWS; a++)
    for (int p = 0; p < COLUMNS; p++)
      if ((before[a][p] < 0 || a >= question->rows) && question->costs[a][p] != before[a][p])
        ck_abort_msg("v%d wrote to row %d, column %d, which is not for it", version, a, p);
  find_winner(question);
  return result;
}

bool unchanged(int version, const struct question *question)
{
  struct question fresh = all_reduce(question->bytes);
  if (question->nchannels != 0) return false;
  if (version == 2) return question->algorithm == -1 && question->protocol == -1;
  return memcmp(fresh.costs, question->costs, sizeof fresh.costs) == 0;
}
