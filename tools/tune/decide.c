/* The command `decide`: what the core would choose for a collective without a tuner, what the tuner that
 * NCCL_TUNER_PLUGIN or NCCL_TUNER_CONFIG_FILE brings says to it, and what is used and why. The core's own code decides;
 * only the communicator is made up (communicator.h). */
#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "communicator.h"
#include "names.h"
#include "program/emit.h"
#include "tune.h"
#include "tuning/tuner.h"

struct decision {
  uint64_t bytes;
  struct tt_choice own, used; /* without the tuner, and with it */
  char said[256];
};

/* Plugins of this installation lie beside the library. */
static void find_own_plugins(void)
{
  Dl_info info;
  char path[PATH_MAX];
  if (!dladdr((void *)ncclGetVersion, &info) || !info.dli_fname || !realpath(info.dli_fname, path)) return;
  *strrchr(path, '/') = '\0';
  tt_host_set_library_dir(path);
}

/* *tuner is NULL where there is none; what was tried is then in `offer`. False: its init failed. */
static bool open_tuner(const struct tune_options *o, struct tt_tuner **tuner, struct tt_tuner_offer *offer)
{
  struct tt_tuner_request request = {.comm_id = 1,
                                     .nranks = (size_t)o->nranks,
                                     .nnodes = (size_t)o->nodes,
                                     .domains = {.nNvlDomains = o->nodes,
                                                 .minRanksPerNvlDomain = o->nranks / o->nodes,
                                                 .maxRanksPerNvlDomain = (o->nranks + o->nodes - 1) / o->nodes}};
  find_own_plugins();
  tt_tuner_fill_constants(o->gpus ? TT_TUNING_GPU : TT_TUNING_HOST, &request.constants);
  tt_tuner_open(&request, tuner, offer);
  return *tuner || offer->result == ncclSuccess;
}

/* Tuners have a say in five collectives only. */
static bool is_asked(const struct tune_options *o, const struct tt_tuner *tuner)
{
  return tuner && o->collective <= TT_FUNC_ALL_REDUCE;
}

/* What is done as sends and receives, of a block for each rank. */
static ncclResult_t decide_messages(const struct tune_options *o, const struct tt_tuning *tuning, uint64_t bytes,
                                    struct decision *decision)
{
  size_t block = (size_t)bytes / (size_t)o->nranks;
  TT_TRY(tt_tuning_choose(tuning, TT_FUNC_SEND_RECV, block, &decision->own));
  snprintf(decision->own.reason, sizeof decision->own.reason,
           "as sends and receives of %zu bytes: a program names fewer ranks", block);
  decision->used = decision->own;
  return ncclSuccess;
}

static ncclResult_t decide(const struct tune_options *o, const struct tt_tuning *tuning, struct tt_tuner *tuner,
                           uint64_t bytes, struct decision *decision)
{
  const struct tt_tuner_query query = {
      .collective = o->collective, .bytes = bytes, .without = o->mapped ? TT_WITH_MAPPED : 0};
  struct tt_tuner_answer answer;
  memset(decision, 0, sizeof *decision);
  decision->bytes = bytes;
  if (tt_tuning_as_messages(tuning, o->collective)) return decide_messages(o, tuning, bytes, decision);
  TT_TRY(tt_tuning_choose_without(tuning, o->collective, (size_t)bytes, query.without, &decision->own));
  tt_tuning_use_engines(tuning, o->collective, (size_t)bytes, &decision->own);
  decision->used = decision->own;
  if (!is_asked(o, tuner)) return ncclSuccess;
  tt_tuner_answer(tuning, tuner, &query, &answer);
  tt_tuner_describe(&answer, decision->said, sizeof decision->said);
  TT_TRY(tt_tuner_obey(tuning, &query, &answer, &decision->used));
  tt_tuning_use_engines(tuning, o->collective, (size_t)bytes, &decision->used);
  return ncclSuccess;
}

/* ---- Printing ---- */

static void choice_text(const struct tt_choice *choice, char *text, size_t size)
{
  snprintf(text, size, "%s %s %d", tt_algorithm_name(choice->algorithm), tt_protocol_name(choice->protocol),
           choice->nchannels);
}

static void print_head(const struct tune_options *o, const struct tt_tuner *tuner, const struct tt_tuner_offer *offer)
{
  printf("# %s on %d ranks of %d node%s, %s, without CollNet%s. ", tune_collective_word(o->collective), o->nranks,
         o->nodes, o->nodes == 1 ? "" : "s",
         !o->gpus    ? "host device"
         : o->mapped ? "GPUs, buffers mapped"
                     : "GPUs",
         o->gpus ? " and NVLS" : "");
  if (tuner)
    printf("Tuner: %s (v%d), %s\n", tt_tuner_name(tuner), tt_tuner_version(tuner), tt_tuner_path(tuner));
  else
    printf("No tuner: %s\n", offer->reason);
  printf("# Choices are algorithm, protocol, channels. Without a tuner, what it says, what is used, and why:\n"
         "#     bytes  %-22s  %-32s  %s\n",
         "without", "tuner", "used");
}

static void print_text(const struct decision *d, bool tuner)
{
  char own[64], used[64];
  choice_text(&d->own, own, sizeof own);
  choice_text(&d->used, used, sizeof used);
  printf("%11" PRIu64 "  %-22s  %-32s  %-22s  %s\n", d->bytes, own, tuner ? d->said : "-", used, d->used.reason);
}

static void choice_json(struct tool_json *json, const char *key, const struct tt_choice *choice)
{
  tool_json_open(json, key, '{');
  tool_json_string(json, "algorithm", tune_algorithm_word(choice->algorithm));
  tool_json_string(json, "protocol", tt_protocol_name(choice->protocol));
  tool_json_integer(json, "channels", choice->nchannels);
  tool_json_bool(json, "copy_engines", choice->engines);
  tool_json_real(json, "predicted_us", choice->microseconds);
  tool_json_string(json, "why", choice->reason);
  tool_json_close(json, '{');
}

static void print_json(struct tool_json *json, const struct decision *d, bool tuner)
{
  tool_json_open(json, NULL, '{');
  tool_json_integer(json, "bytes", (int64_t)d->bytes);
  choice_json(json, "without_tuner", &d->own);
  tool_json_string(json, "tuner_said", tuner ? d->said : NULL);
  choice_json(json, "used", &d->used);
  tool_json_close(json, '{');
}

static void json_head(struct tool_json *json, const struct tune_options *o, const struct tt_tuner *tuner)
{
  tool_json_open(json, NULL, '{');
  tool_json_string(json, "collective", tune_collective_word(o->collective));
  tool_json_integer(json, "nranks", o->nranks);
  tool_json_integer(json, "nodes", o->nodes);
  tool_json_string(json, "device", o->gpus ? "cuda" : "host");
  tool_json_string(json, "tuner", tuner ? tt_tuner_name(tuner) : NULL);
  tool_json_string(json, "tuner_path", tuner ? tt_tuner_path(tuner) : NULL);
  tool_json_open(json, "decisions", '[');
}

static ncclResult_t decide_all(const struct tune_options *o, const struct tt_tuning *tuning, struct tt_tuner *tuner,
                               struct tool_json *json)
{
  for (uint64_t bytes = o->bytes; bytes <= o->end; bytes *= (uint64_t)o->factor) {
    struct decision decision;
    TT_TRY(decide(o, tuning, tuner, bytes, &decision));
    if (o->json)
      print_json(json, &decision, is_asked(o, tuner));
    else
      print_text(&decision, is_asked(o, tuner));
    if (bytes == 0) break;
  }
  return ncclSuccess;
}

enum tune_status tune_decide(const struct tune_options *o, char *error, size_t size)
{
  struct tt_tuning_input input;
  struct tt_tuning *tuning = NULL;
  struct tt_tuner *tuner = NULL;
  struct tt_tuner_offer offer;
  struct tool_json json = {0};
  enum tune_status status = TUNE_FAILED;
  if (tt_param_check() != ncclSuccess || tune_communicator(o, &input) != ncclSuccess ||
      tt_tuning_create(&input, &tuning) != ncclSuccess || !open_tuner(o, &tuner, &offer))
    goto out;
  if (o->json)
    json_head(&json, o, tuner);
  else
    print_head(o, tuner, &offer);
  if (decide_all(o, tuning, tuner, &json) == ncclSuccess) status = TUNE_GOOD;
out:
  if (status != TUNE_GOOD) snprintf(error, size, "%s", tt_log_thread_error());
  tt_tuner_close(tuner);
  tt_tuning_destroy(tuning);
  if (status != TUNE_GOOD || !o->json) {
    free(json.text);
    return status;
  }
  tool_json_close(&json, '[');
  tool_json_close(&json, '{');
  return tune_print_json(&json, error, size) ? TUNE_GOOD : TUNE_FAILED;
}
