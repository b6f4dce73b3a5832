/* The exported structs, v2 to v6, and the functions in which their signatures differ. All of them end in the table
 * tuner (table.h); Tutti's extension in the adaptive one too (adapt.h), where no rule is applied.
 *
 * The loader's logger is one for the process: the last that was given holds, so that a plugin that two loaders use
 * writes to one of their logs. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "adapt.h"
#include "base/check.h"
#include "base/param.h"
#include "table.h"
#include "tutti/tuner.h"

static _Atomic(ncclDebugLogger_t) logger;

/* Lines of this library and of its copy of base go where the loader wants them; it does the filtering. */
static void to_logger(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                      const char *text)
{
  ncclDebugLogger_t write = atomic_load(&logger);
  if (write) write((ncclDebugLogLevel)level, subsystems, level == TT_LOG_TRACE ? func : file, line, "%s", text);
}

__attribute__((destructor)) static void unload(void)
{
  tt_param_unload();
}

/* ---- What all versions come to ---- */

struct context {
  struct tt_table *table;
  struct tt_adapt *adapt; /* NULL: it does not adapt */
};

static ncclResult_t finish(void *ctx)
{
  struct context *context = ctx;
  if (!context) return ncclSuccess;
  if (context->adapt) tt_adapt_close(context->adapt);
  if (context->table) tt_table_close(context->table);
  free(context);
  return ncclSuccess;
}

static ncclResult_t start(void **ctx, const struct tt_table_place *place, ncclDebugLogger_t log)
{
  struct context *context;
  atomic_store(&logger, log);
  tt_log_redirect(to_logger);
  if (!ctx) return TT_FAIL(ncclInvalidArgument, "tuner: init has nowhere to put a context: its ctx is NULL");
  *ctx = NULL;
  TT_TRY(TT_CALLOC(&context, 1));
  ncclResult_t result = tt_table_open(place, &context->table);
  if (result == ncclSuccess && tt_param_int(TT_PARAM_TUTTI_TUNER_ADAPT)) {
    context->adapt = tt_adapt_open();
    if (!context->adapt) result = ncclSystemError; /* which was said */
  }
  if (result == ncclSuccess)
    *ctx = context;
  else
    finish(context);
  return result;
}

/* The rule that was applied, or NULL. */
static ncclResult_t apply(void *ctx, const struct tt_table_question *question, const struct tt_table_costs *costs,
                          int *nchannels, const struct tt_table_rule **rule)
{
  if (!ctx || !costs->cost || !nchannels)
    return TT_FAIL(ncclInvalidArgument, "tuner: getCollInfo without %s",
                   !ctx           ? "a context"
                   : !costs->cost ? "a cost table"
                                  : "nChannels");
  *rule = tt_table_apply(((struct context *)ctx)->table, question, costs);
  if (*rule && (*rule)->nchannels != TT_RULE_ANY) *nchannels = (*rule)->nchannels;
  return ncclSuccess;
}

static ncclResult_t answer(void *ctx, const struct tt_table_question *question, const struct tt_table_costs *costs,
                           int *nchannels)
{
  const struct tt_table_rule *rule;
  return apply(ctx, question, costs, nchannels, &rule);
}

/* ---- v5, v6 ---- */

static ncclResult_t init_v5(void **ctx, uint64_t comm_id, size_t nranks, size_t nnodes, ncclDebugLogger_t log,
                            ncclNvlDomainInfo_v5_t *domains, ncclTunerConstants_v5_t *constants)
{
  (void)comm_id, (void)domains, (void)constants;
  return start(ctx, &(struct tt_table_place){.nranks = nranks, .nnodes = nnodes, .tells_buffers = true}, log);
}

static ncclResult_t get_v4(void *ctx, ncclFunc_t collective, size_t bytes, int pipe_ops, float **costs, int rows,
                           int columns, int reg_buff, int *nchannels)
{
  return answer(ctx,
                &(struct tt_table_question){
                    .collective = (int)collective, .bytes = bytes, .pipe_ops = pipe_ops, .reg_buff = reg_buff},
                &(struct tt_table_costs){.cost = (float *)costs, .rows = rows, .columns = columns}, nchannels);
}

__attribute__((visibility("default")))
const ncclTuner_v6_t ncclTunerPlugin_v6 = {.name = "Tutti", .init = init_v5, .getCollInfo = get_v4, .finalize = finish};

__attribute__((visibility("default")))
const ncclTuner_v5_t ncclTunerPlugin_v5 = {.name = "Tutti", .init = init_v5, .getCollInfo = get_v4, .finalize = finish};

static int asks_again(void *ctx)
{
  return ((struct context *)ctx)->adapt != NULL;
}

static ncclResult_t get_epoch(void *ctx, const tuttiTunerEpoch_v1_t *epoch, float **costs, int rows, int columns,
                              int *nchannels, uint64_t *again)
{
  const struct tt_table_costs table = {.cost = (float *)costs, .rows = rows, .columns = columns};
  const struct tt_table_question question = {.collective = (int)epoch->collType,
                                             .bytes = epoch->nBytes,
                                             .pipe_ops = epoch->numPipeOps,
                                             .reg_buff = epoch->regBuff};
  const struct tt_table_rule *rule;
  TT_TRY(apply(ctx, &question, &table, nchannels, &rule));
  *again = rule ? 0 : tt_adapt_answer(((struct context *)ctx)->adapt, epoch, &table);
  return ncclSuccess;
}

__attribute__((visibility("default")))
const tuttiTunerExtension_v1_t tuttiTunerExtension_v1 = {.size = sizeof(tuttiTunerExtension_v1_t),
                                                         .features = TUTTI_TUNER_ALL_ALGORITHMS,
                                                         .asksAgain = asks_again,
                                                         .getEpochInfo = get_epoch};

/* ---- v4 ---- */

static ncclResult_t init_v4(size_t nranks, size_t nnodes, ncclDebugLogger_t log, void **ctx)
{
  return start(ctx, &(struct tt_table_place){.nranks = nranks, .nnodes = nnodes, .tells_buffers = true}, log);
}

__attribute__((visibility("default")))
const ncclTuner_v4_t ncclTunerPlugin_v4 = {.name = "Tutti", .init = init_v4, .getCollInfo = get_v4, .destroy = finish};

/* ---- v3: nothing about buffers ---- */

static ncclResult_t init_v3(size_t nranks, size_t nnodes, ncclDebugLogger_t log, void **ctx)
{
  return start(ctx, &(struct tt_table_place){.nranks = nranks, .nnodes = nnodes, .tells_buffers = false}, log);
}

static ncclResult_t get_v3(void *ctx, ncclFunc_t collective, size_t bytes, int pipe_ops, float **costs, int rows,
                           int columns, int *nchannels)
{
  return get_v4(ctx, collective, bytes, pipe_ops, costs, rows, columns, TT_RULE_ANY, nchannels);
}

__attribute__((visibility("default")))
const ncclTuner_v3_t ncclTunerPlugin_v3 = {.name = "Tutti", .init = init_v3, .getCollInfo = get_v3, .destroy = finish};

/* ---- v2: no table, but what is known of it makes one ---- */

static ncclResult_t get_v2(void *ctx, ncclFunc_t collective, size_t bytes, int collnet, int nvls, int pipe_ops,
                           int *algorithm, int *protocol, int *nchannels)
{
  float costs[NCCL_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS];
  const struct tt_table_question question = {
      .collective = (int)collective, .bytes = bytes, .pipe_ops = pipe_ops, .reg_buff = TT_RULE_ANY};
  if (!ctx || !algorithm || !protocol || !nchannels)
    return TT_FAIL(ncclInvalidArgument, "tuner: getCollInfo without %s", ctx ? "a place for an answer" : "a context");
  for (int a = 0; a < NCCL_NUM_ALGORITHMS; a++) {
    bool needs_collnet = a == NCCL_ALGO_COLLNET_DIRECT || a == NCCL_ALGO_COLLNET_CHAIN;
    bool needs_nvls = a == NCCL_ALGO_NVLS || a == NCCL_ALGO_NVLS_TREE;
    bool possible = (!needs_collnet || collnet) && (!needs_nvls || nvls);
    for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++) costs[a][p] = possible ? 1.0f : (float)NCCL_ALGO_PROTO_IGNORE;
  }
  const struct tt_table_rule *rule =
      tt_table_apply(((struct context *)ctx)->table, &question,
                     &(struct tt_table_costs){&costs[0][0], NCCL_NUM_ALGORITHMS, NCCL_NUM_PROTOCOLS});
  if (!rule) return ncclSuccess;
  *algorithm = rule->algorithm;
  *protocol = rule->protocol;
  if (rule->nchannels != TT_RULE_ANY) *nchannels = rule->nchannels;
  return ncclSuccess;
}

__attribute__((visibility("default")))
const ncclTuner_v2_t ncclTunerPlugin_v2 = {.name = "Tutti", .init = init_v3, .getCollInfo = get_v2, .destroy = finish};
