/* A tuner plugin for tests, of the ABI version STUB_TUNER (2 to 6; 0: an object of a version that does not exist, -1:
 * one without getCollInfo). It does what the environment says in STUB_TUNER_DOES, words with blanks between, in this
 * order:
 *
 *     init=R finalize=R result=R chunkresult=R    return these results
 *     price=A,P,US                                writes a figure for algorithm A and protocol P; `nan` is one
 *     forbid                                      writes -1 everywhere
 *     forbid=A                                    in the row of an algorithm
 *     random                                      a figure of its own for everything possible, another one each time
 *     channels=N chunk=N
 *     again=N odd=A,P once                        of who asks to be asked again: after N calls; makes A with P win in
 *                                                 every other epoch; does not ask for that
 *
 * and appends a line for each call to the file STUB_TUNER_LOG. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "tutti/tuner.h"

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
  char line[256];
  const char *path = getenv("STUB_TUNER_LOG");
  if (!path) return;
  va_list args;
  va_start(args, format);
  int bytes = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  if (write(fd, line, (size_t)bytes) != bytes) abort();
  close(fd);
}

/* What follows "key=" in the instructions, or NULL. `from` is where to look, NULL: from the start. */
static const char *said(const char *from, const char *key)
{
  const char *text = from ? from : getenv("STUB_TUNER_DOES");
  size_t bytes = strlen(key);
  for (; text && *text; text++) {
    if (strncmp(text, key, bytes) == 0) return text + bytes;
    text = strchr(text, ' ');
    if (!text) break;
  }
  return NULL;
}

static ncclResult_t result_of(const char *key)
{
  const char *value = said(NULL, key);
  return value ? (ncclResult_t)atoi(value) : ncclSuccess;
}

static void set_channels(int *nchannels)
{
  const char *value = said(NULL, "channels=");
  if (value) *nchannels = atoi(value);
}

static ncclResult_t begin(void **ctx, size_t nranks, size_t nnodes)
{
  static int context;
  *ctx = &context;
  note("init %zu ranks %zu nodes\n", nranks, nnodes);
  return result_of("init=");
}

static ncclResult_t end(void *ctx)
{
  note("finalize %d\n", ctx != NULL);
  return result_of("finalize=");
}

#if STUB_TUNER != 2
static void change(float *table, int nalgo, int nproto)
{
  const char *at = NULL;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  unsigned seed = (unsigned)(now.tv_nsec ^ getpid());
  const char *forbidden = said(NULL, "forbid");
  while ((at = said(at, "price=")) != NULL) {
    int a = 0, p = 0;
    char text[32] = "";
    if (sscanf(at, "%d,%d,%31[^ ]", &a, &p, text) == 3 && a < nalgo) table[a * nproto + p] = strtof(text, NULL);
  }
  for (int i = 0; i < nalgo * nproto; i++) {
    if (said(NULL, "random") && table[i] >= 0) table[i] = (float)(1 + rand_r(&seed) % 1000);
    if (!forbidden || (*forbidden == '=' && atoi(forbidden + 1) != i / nproto)) continue;
    table[i] = -1;
  }
}

static ncclResult_t ask(ncclFunc_t collective, size_t bytes, int pipe_ops, float **table, int nalgo, int nproto,
                        int reg_buff, int *nchannels)
{
  note("ask %d %zu bytes, %d ops, %d x %d, reg %d\n", (int)collective, bytes, pipe_ops, nalgo, nproto, reg_buff);
  change((float *)(void *)table, nalgo, nproto);
  set_channels(nchannels);
  return result_of("result=");
}
#endif

#if STUB_TUNER == 2
static ncclResult_t ask2(void *ctx, ncclFunc_t collective, size_t bytes, int collnet, int nvls, int pipe_ops,
                         int *algorithm, int *protocol, int *nchannels)
{
  const char *price = said(NULL, "price=");
  (void)ctx;
  note("ask %d %zu bytes, %d ops, collnet %d nvls %d\n", (int)collective, bytes, pipe_ops, collnet, nvls);
  if (price) (void)sscanf(price, "%d,%d", algorithm, protocol);
  set_channels(nchannels);
  return result_of("result=");
}
#elif STUB_TUNER == 3
static ncclResult_t ask3(void *ctx, ncclFunc_t collective, size_t bytes, int pipe_ops, float **table, int nalgo,
                         int nproto, int *nchannels)
{
  (void)ctx;
  return ask(collective, bytes, pipe_ops, table, nalgo, nproto, -1, nchannels);
}
#elif STUB_TUNER >= 4
static ncclResult_t ask4(void *ctx, ncclFunc_t collective, size_t bytes, int pipe_ops, float **table, int nalgo,
                         int nproto, int reg_buff, int *nchannels)
{
  (void)ctx;
  return ask(collective, bytes, pipe_ops, table, nalgo, nproto, reg_buff, nchannels);
}
#endif

#if STUB_TUNER >= 2 && STUB_TUNER <= 4
static ncclResult_t begin4(size_t nranks, size_t nnodes, ncclDebugLogger_t logger, void **ctx)
{
  (void)logger;
  return begin(ctx, nranks, nnodes);
}
#elif STUB_TUNER >= 5
static ncclResult_t begin5(void **ctx, uint64_t id, size_t nranks, size_t nnodes, ncclDebugLogger_t logger,
                           ncclNvlDomainInfo_v6_t *domains, ncclTunerConstants_v6_t *constants)
{
  (void)logger;
  note("id %d, %d domains of %d to %d, a step takes %d ns\n", id != 0, domains->nNvlDomains,
       domains->minRanksPerNvlDomain, domains->maxRanksPerNvlDomain,
       (int)(constants->hwLatencies[NCCL_HW_NET][NCCL_ALGO_RING][NCCL_PROTO_LL] * 1000));
  return begin(ctx, nranks, nnodes);
}
#endif

#if STUB_TUNER == 6
static ncclResult_t chunk(void *ctx, ncclFunc_t collective, size_t bytes, int algo, int proto, int nchannels,
                          size_t *size)
{
  const char *value = said(NULL, "chunk=");
  (void)ctx;
  note("chunk %d %zu bytes, %d %d %d: %zu\n", (int)collective, bytes, algo, proto, nchannels, *size);
  if (value) *size = strtoul(value, NULL, 10);
  return result_of("chunkresult=");
}
#endif

#define EXPORT __attribute__((visibility("default")))
#if STUB_TUNER == 2
EXPORT const ncclTuner_v2_t ncclTunerPlugin_v2 = {"Stub", begin4, ask2, end};
#elif STUB_TUNER == 3
EXPORT const ncclTuner_v3_t ncclTunerPlugin_v3 = {"Stub", begin4, ask3, end};
#elif STUB_TUNER == 4
EXPORT const ncclTuner_v4_t ncclTunerPlugin_v4 = {"Stub", begin4, ask4, end};
#elif STUB_TUNER == 5
EXPORT const ncclTuner_v5_t ncclTunerPlugin_v5 = {"Stub", begin5, ask4, end};
#elif STUB_TUNER == 6
EXPORT const ncclTuner_v6_t ncclTunerPlugin_v6 = {"Stub", begin5, ask4, end, chunk};
#ifdef STUB_TUNER_ALL
/* As who was compiled before the extension grew has it. */
EXPORT const tuttiTunerExtension_v1_t tuttiTunerExtension_v1 = {.size = offsetof(tuttiTunerExtension_v1_t, asksAgain),
                                                                .features = TUTTI_TUNER_ALL_ALGORITHMS};
#elif defined STUB_TUNER_AGAIN
static int asks_again(void *ctx)
{
  return ctx != NULL && !said(NULL, "once");
}

static ncclResult_t ask_epoch(void *ctx, const tuttiTunerEpoch_v1_t *epoch, float **table, int nalgo, int nproto,
                              int *nchannels, uint64_t *again)
{
  const char *value = said(NULL, "again="), *odd = epoch->epoch % 2 ? said(NULL, "odd=") : NULL;
  tuttiNetStats_t stats = {.size = sizeof stats};
  ncclResult_t counted = epoch->netStats ? epoch->netStats(epoch->core, &stats) : ncclInvalidUsage;
  int a, p;
  (void)ctx;
  note("epoch %d %zu bytes, variant %u, %llu after %llu calls, stats %d\n", (int)epoch->collType, epoch->nBytes,
       epoch->variant, (unsigned long long)epoch->epoch, (unsigned long long)epoch->calls, (int)counted);
  if (value) *again = strtoull(value, NULL, 10);
  ncclResult_t result =
      ask(epoch->collType, epoch->nBytes, epoch->numPipeOps, table, nalgo, nproto, epoch->regBuff, nchannels);
  if (odd && sscanf(odd, "%d,%d", &a, &p) == 2 && a < nalgo) ((float *)(void *)table)[a * nproto + p] = 0;
  return result;
}

EXPORT const tuttiTunerExtension_v1_t tuttiTunerExtension_v1 = {
    .size = sizeof(tuttiTunerExtension_v1_t), .asksAgain = asks_again, .getEpochInfo = ask_epoch};
#endif
#elif STUB_TUNER == 0
EXPORT const ncclTuner_v2_t ncclTunerPlugin_v9 = {"Stub", NULL, NULL, NULL};
#else
EXPORT const ncclTuner_v4_t ncclTunerPlugin_v4 = {"Stub", NULL, NULL, NULL};
#endif
