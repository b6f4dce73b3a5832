/* Which network a communicator uses: first what this rank has (tt_net_candidates), then what all ranks have
 * (tt_net_choose). The second step depends on the exchanged offers alone, so all ranks come to the same answer. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "plugin/net_list.h"
#include "plugin/net_offer.h"

struct tt_net_set {
  struct tt_net_request request; /* net_name is not kept */
  struct tt_net_offered offered;
  struct tt_net_library *library[TT_NET_MAX_CANDIDATES];
  struct tt_net *net[TT_NET_MAX_CANDIDATES]; /* NULL: known to work from an earlier communicator, not started yet */
  char wanted[64];                           /* the name that was asked for; "" if none */
  const char *wanted_by;
};

/* A text that is put together piece by piece; what does not fit is cut off. */
struct sentence {
  char text[1500];
  size_t bytes;
};

static void add(struct sentence *sentence, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct sentence *sentence, const char *format, ...)
{
  size_t space = sizeof(sentence->text) - sentence->bytes;
  va_list args;
  va_start(args, format);
  int bytes = vsnprintf(sentence->text + sentence->bytes, space, format, args);
  va_end(args);
  if (bytes > 0) sentence->bytes += TT_MIN((size_t)bytes, space - 1);
}

static const char *separator(const struct sentence *sentence)
{
  return sentence->bytes ? "; " : "";
}

static ncclResult_t fail(struct tt_net_set *set, const char *format, ...) __attribute__((format(printf, 2, 3)));
static ncclResult_t fail(struct tt_net_set *set, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(set->offered.reason, sizeof(set->offered.reason), format, args);
  va_end(args);
  set->offered.result = ncclInvalidUsage;
  return TT_FAIL(ncclInvalidUsage, "%s", set->offered.reason);
}

/* ---- What this rank has ---- */

/* Adds the library to the set if it can be used and is wanted. What an earlier communicator found out still holds, so
 * that only the first one loads and starts what it will not use. */
static void consider(struct tt_net_set *set, struct tt_net_library *library)
{
  struct tt_net_report *report = &library->report;
  if (report->state == TT_NET_PASSED) return;
  bool loaded = report->version == 0;
  if (loaded && !tt_net_library_load(library)) return;
  bool take = !set->wanted[0] || strcasecmp(report->name, set->wanted) == 0;
  for (int i = 0; i < set->offered.count && take; i++) {
    take = strcasecmp(set->offered.net[i].name, report->name) != 0;
    if (!take)
      TT_INFO(TT_NET, "NET/Plugin: %s hides another network %s at %s", set->library[i]->report.path, report->name,
              report->path);
  }
  int slot = set->offered.count;
  if (take && slot == TT_NET_MAX_CANDIDATES) {
    TT_INFO(TT_NET, "NET/Plugin: %s (%s) is left out: more than %d networks", report->name, report->path, slot);
    take = false;
  }
  if (take && (report->state == TT_NET_USABLE || tt_net_library_start(library, &set->request, &set->net[slot]))) {
    memcpy(set->offered.net[slot].name, report->name, sizeof(report->name));
    set->offered.net[slot].version = report->version;
    set->offered.net[slot].ndev = report->ndev;
    set->library[slot] = library;
    set->offered.count++;
  }
  if (loaded) tt_net_library_unload(library);
}

/* "Socket (v12, /usr/lib/...)" for what can be used, and reasons for the rest. */
static void describe_all(struct sentence *sentence, bool only_named, bool only_passed)
{
  struct tt_net_library *library;
  for (int i = 0; (library = tt_net_list_at(i)); i++) {
    const struct tt_net_report *report = &library->report;
    bool passed = report->state == TT_NET_PASSED;
    if ((only_named && !report->named) || (only_passed && !passed)) continue;
    if (passed)
      add(sentence, "%s%s (%s)", separator(sentence), report->name[0] ? report->name : report->asked, report->reason);
    else if (report->name[0])
      add(sentence, "%s%s (v%d, %s)", separator(sentence), report->name, report->version, report->path);
  }
}

/* Errors for what was asked for by name and is not to be had; a warning where Tutti goes on without it. */
static ncclResult_t check_named(struct tt_net_set *set)
{
  struct tt_net_library *library;
  struct sentence sentence = {.bytes = 0};
  bool named = false, loads = false, usable = false;
  for (int i = 0; (library = tt_net_list_at(i)); i++) {
    if (!library->report.named) continue;
    named = true;
    loads = loads || library->report.version != 0 || library->collnet_only;
    usable = usable || library->report.state != TT_NET_PASSED || library->collnet_only;
  }
  if (named && !loads) {
    describe_all(&sentence, true, true);
    return fail(set,
                "NCCL_NET_PLUGIN is \"%.100s\", and no plugin of it can be loaded: %s. Correct the variable, or "
                "unset it to use Tutti's own plugins",
                tt_param_string(TT_PARAM_NCCL_NET_PLUGIN), sentence.text);
  }
  if (set->wanted[0] && set->offered.count == 0) {
    describe_all(&sentence, false, false);
    return fail(set, "%s is \"%s\", and no network of that name can be used here. There is: %s", set->wanted_by,
                set->wanted, sentence.text);
  }
  if (named && !usable) {
    describe_all(&sentence, true, true);
    TT_WARN("no plugin of NCCL_NET_PLUGIN can be used on this machine: %s; going on with %s", sentence.text,
            set->offered.count ? set->offered.net[0].name : "no network");
  }
  return ncclSuccess;
}

ncclResult_t tt_net_candidates(const struct tt_net_request *request, struct tt_net_set **out)
{
  struct tt_net_set *set;
  *out = NULL;
  TT_TRY(TT_CALLOC(&set, 1));
  *out = set;
  set->request = *request;
  set->request.net_name = NULL;
  if (tt_param_int(TT_PARAM_NCCL_NET_DISABLE)) {
    TT_INFO(TT_INIT | TT_NET, "NET/Plugin: networks are disabled by NCCL_NET_DISABLE");
    return ncclSuccess;
  }
  const char *wanted = tt_param_string(TT_PARAM_NCCL_NET);
  set->wanted_by = wanted ? "NCCL_NET" : "the communicator's netName";
  if (!wanted) wanted = request->net_name;
  if (wanted) snprintf(set->wanted, sizeof(set->wanted), "%s", wanted);

  struct tt_net_library *library;
  tt_net_list_lock();
  for (int i = 0; (library = tt_net_list_at(i)); i++) consider(set, library);
  ncclResult_t result = check_named(set);
  tt_net_list_unlock();
  return result;
}

int tt_net_set_count(const struct tt_net_set *set)
{
  return set->offered.result == ncclSuccess ? set->offered.count : 0;
}

void tt_net_offer(const struct tt_net_set *set, uint8_t offer[TT_NET_OFFER_BYTES])
{
  tt_net_offer_write(&set->offered, offer);
}

void tt_net_set_free(struct tt_net_set *set)
{
  if (!set) return;
  for (int i = 0; i < set->offered.count; i++) tt_net_close(set->net[i]);
  free(set);
}

/* ---- What all ranks have ---- */

static int find(const struct tt_net_offered *offered, const char *name)
{
  for (int i = 0; i < offered->count; i++)
    if (strcasecmp(offered->net[i].name, name) == 0) return i;
  return -1;
}

static void describe_rank(struct sentence *sentence, int rank, const struct tt_net_offered *offered)
{
  add(sentence, "rank %d has ", rank);
  for (int i = 0; i < offered->count; i++)
    add(sentence, "%s%s (v%d)", i ? ", " : "", offered->net[i].name, offered->net[i].version);
  if (offered->count == 0) add(sentence, "none");
}

/* The first candidate of rank 0 that all ranks have, or -1; `passed` says of the others which rank lacks them. */
static int common_network(const struct tt_net_offered *offered, int nranks, struct sentence *passed)
{
  for (int c = 0; c < offered[0].count; c++) {
    int r = 1;
    for (; r < nranks; r++) {
      int other = find(&offered[r], offered[0].net[c].name);
      if (other < 0 || offered[r].net[other].version != offered[0].net[c].version) break;
    }
    if (r == nranks) return c;
    add(passed, "%s%s (v%d) is not usable on all ranks: ", separator(passed), offered[0].net[c].name,
        offered[0].net[c].version);
    describe_rank(passed, r, &offered[r]);
  }
  return -1;
}

/* Reads all offers. Fails on those that this library cannot read and on those that report a failure, on every rank. */
static ncclResult_t read_offers(const struct tt_net_set *set, const uint8_t *offers, int nranks, int rank,
                                struct tt_net_offered *offered)
{
  for (int r = 0; r < nranks; r++) {
    if (!tt_net_offer_read(offers + (size_t)r * TT_NET_OFFER_BYTES, &offered[r])) {
      return TT_FAIL(ncclInvalidUsage,
                     "rank %d describes its networks in a way that rank %d cannot read: all ranks must use the same "
                     "release of Tutti",
                     r, rank);
    }
  }
  if (set->offered.result != ncclSuccess) return set->offered.result; /* said in tt_net_candidates */
  for (int r = 0; r < nranks; r++) {
    if (offered[r].result == ncclSuccess) continue;
    return TT_FAIL(offered[r].result, "rank %d has no usable network: %s", r, offered[r].reason);
  }
  return ncclSuccess;
}

/* No network is common to all: an error if any rank has one, since these ranks could not reach the others. */
static ncclResult_t nothing_in_common(const struct tt_net_offered *offered, int nranks, struct sentence *passed)
{
  int with = 0;
  while (with < nranks && offered[with].count == 0) with++;
  if (with == nranks) {
    TT_INFO(TT_INIT | TT_NET, "NET/Plugin: no network on any of %d ranks", nranks);
    return ncclSuccess;
  }
  if (with > 0) {
    add(passed, "rank 0 has none, ");
    describe_rank(passed, with, &offered[with]);
  }
  return TT_FAIL(ncclInvalidUsage,
                 "no network is usable on all %d ranks: %s. Give all ranks the same plugins and environment, or choose "
                 "a network that all have with NCCL_NET",
                 nranks, passed->text);
}

static void explain(const struct tt_net_set *set, const struct tt_net *net, int nranks, struct sentence *passed)
{
  const struct tt_net_report *report = &net->library->report;
  tt_net_list_lock();
  TT_INFO(TT_INIT | TT_NET, "NET/Plugin: using %s (ABI v%d, %d device%s) from %s: %s%s%s, usable on all %d ranks",
          report->name, report->version, report->ndev, report->ndev == 1 ? "" : "s", report->path,
          set->wanted[0] ? "named by " : "", set->wanted[0] ? set->wanted_by : "",
          set->wanted[0]  ? ""
          : report->named ? "first of NCCL_NET_PLUGIN"
                          : "first of the search order",
          nranks);
  describe_all(passed, false, true);
  if (passed->bytes) TT_INFO(TT_INIT | TT_NET, "NET/Plugin: passed over: %s", passed->text);
  TT_INFO(TT_INIT | TT_NET, "Using network %s", report->name);
  tt_net_list_unlock();
}

/* Starts the chosen network, unless tt_net_candidates did. */
static ncclResult_t start_chosen(struct tt_net_set *set, int chosen, struct tt_net **net)
{
  struct tt_net_library *library = set->library[chosen];
  ncclResult_t result = ncclSuccess;
  *net = set->net[chosen];
  set->net[chosen] = NULL;
  if (*net) return ncclSuccess;
  tt_net_list_lock();
  if (!tt_net_library_start(library, &set->request, net))
    result = TT_FAIL(ncclSystemError, "network %s (%s), which worked before, cannot be used again: %s",
                     set->offered.net[chosen].name, library->report.path, library->report.reason);
  tt_net_list_unlock();
  return result;
}

ncclResult_t tt_net_choose(struct tt_net_set *set, const uint8_t *offers, int nranks, int rank, struct tt_net **net)
{
  struct tt_net_offered *offered;
  struct sentence passed = {.bytes = 0};
  *net = NULL;
  TT_TRY(TT_CALLOC(&offered, (size_t)nranks));
  ncclResult_t result;
  TT_TRY_GOTO(read_offers(set, offers, nranks, rank, offered), result, out);
  int common = common_network(offered, nranks, &passed);
  if (common < 0) {
    result = nothing_in_common(offered, nranks, &passed);
    goto out;
  }
  int chosen = find(&set->offered, offered[0].net[common].name);
  if (chosen < 0) {
    result = TT_FAIL(ncclInternalError, "the offer at place %d is not that of this rank", rank);
    goto out;
  }
  TT_TRY_GOTO(start_chosen(set, chosen, net), result, out);
  explain(set, *net, nranks, &passed);
out:
  free(offered);
  return result;
}
