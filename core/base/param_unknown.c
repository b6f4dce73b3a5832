/* Names that are set but not obeyed: those that NCCL knows get a line at INFO, those that nobody knows a warning with
 * the nearest known name, for they are most likely misspelt. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/param_internal.h"
#include "base/text.h"

struct other {
  const char *name;
  const char *answer;
};

static const struct other others[] = {
#define TT_OTHER(name, answer) {#name, answer},
#include "base/param_other.h"
#undef TT_OTHER
};

/* Families of names that plugins made by others read themselves. */
static const struct other families[] = {
#define TT_OTHER(name, answer)
#define TT_OTHER_FAMILY(prefix, answer) {#prefix, answer},
#include "base/param_other.h"
#undef TT_OTHER_FAMILY
#undef TT_OTHER
};

static const char *const names[] = {
#define TT_PARAM(name, ...) #name,
#include "base/param_table.h"
#undef TT_PARAM
#define TT_OTHER(name, answer) #name,
#include "base/param_other.h"
#undef TT_OTHER
};

static void report(const char *name, const char *where)
{
  for (int id = 0; id < TT_PARAM_COUNT; id++)
    if (strcmp(name, tt_param_describe((enum tt_param_id)id)->name) == 0) return;
  for (size_t i = 0; i < TT_COUNT(others); i++) {
    if (strcmp(name, others[i].name) != 0) continue;
    if (others[i].answer)
      TT_INFO(TT_ENV, "%s, set by %s, has no effect here: %s", name, where, others[i].answer);
    else
      TT_INFO(TT_ENV, "%s, set by %s, has no effect here", name, where);
    return;
  }
  for (size_t i = 0; i < TT_COUNT(families); i++) {
    if (strncmp(name, families[i].name, strlen(families[i].name)) != 0) continue;
    TT_INFO(TT_ENV, "%s, set by %s, is not read by the core: %s", name, where, families[i].answer);
    return;
  }
  int near = tt_text_nearest(name, names, (int)TT_COUNT(names));
  if (near >= 0)
    TT_WARN("%s, set by %s, is unknown; did you mean %s?", name, where, names[near]);
  else
    TT_WARN("%s, set by %s, is unknown, unless a plugin reads it", name, where);
}

static bool ours(const char *name)
{
  return strncmp(name, "NCCL_", 5) == 0 || strncmp(name, "TUTTI_", 6) == 0;
}

static void report_environment(const struct tt_param_files *files)
{
  for (char **at = environ; at && *at; at++) {
    if (!ours(*at)) continue;
    const char *equals = strchr(*at, '=');
    char *name = equals ? strndup(*at, (size_t)(equals - *at)) : NULL;
    if (!name) continue;
    const struct tt_param_setting *setting = tt_param_files_find(files, name);
    if (!setting || !setting->exported) report(name, "environment");
    free(name);
  }
}

void tt_param_report_unknown(void)
{
  const struct tt_param_files *files = tt_param_files();
  report_environment(files);
  for (int i = 0; i < files->nsettings; i++) {
    const struct tt_param_setting *setting = &files->settings[i];
    if (tt_param_files_find(files, setting->name) != setting) continue; /* hidden by a file with precedence */
    if (ours(setting->name))
      report(setting->name, setting->file);
    else
      TT_INFO(TT_ENV, "%s:%d: %s is neither NCCL_* nor TUTTI_*; ignored", setting->file, setting->line, setting->name);
  }
}
