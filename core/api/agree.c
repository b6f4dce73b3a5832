/* Comparing settings: first a fixed block of a rank, and only if the parameters' hashes differ their texts. */
#include "api/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "tutti.h"

#define TEXT_BYTES 4096 /* all agreed parameters of a rank, one a line */

struct settings {
  uint32_t version; /* Tutti's: ranks of different builds are not mixed */
  int32_t min_channels, max_channels;
  int32_t collnet;        /* collnetEnable */
  int32_t nvls, net_peer; /* nvlsCTAs, nChannelsPerNetPeer */
  int32_t zero;           /* CTAPolicy has NCCL_CTA_POLICY_ZERO */
  int32_t share;          /* would share its parent's memory */
  uint64_t params;        /* hash of the agreed parameters */
  char device[16];
};

static ncclResult_t differ(int rank, const char *what, const char *mine, const char *zero)
{
  return TT_FAIL(ncclInvalidUsage, "%s differs between ranks: rank %d has %s, rank 0 has %s; make them equal", what,
                 rank, mine, zero);
}

static ncclResult_t compare_numbers(int rank, const char *what, long mine, long zero)
{
  char a[24], b[24];
  if (mine == zero) return ncclSuccess;
  snprintf(a, sizeof a, "%ld", mine);
  snprintf(b, sizeof b, "%ld", zero);
  return differ(rank, what, a, b);
}

static void write_params(char text[TEXT_BYTES])
{
  char line[512];
  size_t used = 0;
  for (int i = 0; tt_param_agreed(i, line, sizeof line) != NULL; i++) {
    int wrote = snprintf(text + used, TEXT_BYTES - used, "%s\n", line);
    if (wrote < 0 || (size_t)wrote >= TEXT_BYTES - used) break;
    used += (size_t)wrote;
  }
}

/* The first line in which two ranks' texts differ. */
static ncclResult_t name_difference(int rank, const char *mine, const char *zero)
{
  while (*mine && *zero) {
    size_t a = strcspn(mine, "\n"), b = strcspn(zero, "\n");
    if (a != b || memcmp(mine, zero, a) != 0) {
      char name[64], left[256], right[256];
      size_t bytes = strcspn(mine, "=");
      snprintf(name, sizeof name, "%.*s", (int)TT_MIN(bytes, a), mine);
      snprintf(left, sizeof left, "%.*s", (int)(a - TT_MIN(bytes + 1, a)), mine + TT_MIN(bytes + 1, a));
      bytes = strcspn(zero, "=");
      snprintf(right, sizeof right, "%.*s", (int)(b - TT_MIN(bytes + 1, b)), zero + TT_MIN(bytes + 1, b));
      return differ(rank, name, left[0] ? left : "nothing", right[0] ? right : "nothing");
    }
    mine += a + 1;
    zero += b + 1;
  }
  return differ(rank, "a parameter", "another value", "its own");
}

static ncclResult_t compare_params(struct tt_bootstrap *bootstrap, int rank, int nranks, const struct settings *all)
{
  int other = 1;
  while (other < nranks && all[other].params == all[0].params) other++;
  if (other == nranks) return ncclSuccess;
  char *texts;
  TT_TRY(TT_CALLOC(&texts, (size_t)nranks * TEXT_BYTES));
  write_params(texts + (size_t)rank * TEXT_BYTES);
  ncclResult_t result = tt_bootstrap_all_gather(bootstrap, texts, TEXT_BYTES);
  for (int r = 0; r < nranks; r++) texts[(size_t)r * TEXT_BYTES + TEXT_BYTES - 1] = 0;
  if (result == ncclSuccess) result = name_difference(other, texts + (size_t)other * TEXT_BYTES, texts);
  free(texts);
  return result;
}

static ncclResult_t compare(struct tt_bootstrap *bootstrap, int rank, int nranks, struct settings *all)
{
  for (int r = 1; r < nranks; r++) {
    all[r].device[sizeof all[r].device - 1] = 0;
    TT_TRY(compare_numbers(r, "the version of Tutti", all[r].version, all[0].version));
    if (strcmp(all[r].device, all[0].device) != 0)
      return differ(r, "the device backend (TUTTI_DEVICE)", all[r].device, all[0].device);
    TT_TRY(compare_numbers(r, "config member minCTAs", all[r].min_channels, all[0].min_channels));
    TT_TRY(compare_numbers(r, "config member maxCTAs", all[r].max_channels, all[0].max_channels));
    TT_TRY(compare_numbers(r, "config member collnetEnable", all[r].collnet, all[0].collnet));
    TT_TRY(compare_numbers(r, "config member nvlsCTAs", all[r].nvls, all[0].nvls));
    TT_TRY(compare_numbers(r, "config member nChannelsPerNetPeer", all[r].net_peer, all[0].net_peer));
    TT_TRY(compare_numbers(r, "NCCL_CTA_POLICY_ZERO in config member CTAPolicy", all[r].zero, all[0].zero));
  }
  return compare_params(bootstrap, rank, nranks, all);
}

ncclResult_t tt_agree_settings(struct tt_bootstrap *bootstrap, int rank, int nranks, const char *device,
                               const ncclConfig_t *config, bool *share)
{
  struct settings *all;
  TT_TRY(TT_CALLOC(&all, (size_t)nranks));
  struct settings *mine = &all[rank];
  mine->version = TUTTI_MAJOR * 10000 + TUTTI_MINOR * 100 + TUTTI_PATCH;
  mine->min_channels = config->minCTAs;
  mine->max_channels = config->maxCTAs;
  mine->collnet = config->collnetEnable;
  mine->nvls = config->nvlsCTAs;
  mine->net_peer = config->nChannelsPerNetPeer;
  mine->zero = (config->CTAPolicy & NCCL_CTA_POLICY_ZERO) != 0;
  mine->share = *share;
  mine->params = tt_param_agreed_hash();
  snprintf(mine->device, sizeof mine->device, "%s", device);
  ncclResult_t result = tt_bootstrap_all_gather(bootstrap, all, sizeof *all);
  if (result == ncclSuccess) result = compare(bootstrap, rank, nranks, all);
  for (int r = 0; r < nranks; r++) *share = *share && all[r].share;
  free(all);
  return result;
}
