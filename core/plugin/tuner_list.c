/* See tuner_list.h: making the list, loading libraries, and starting a tuner for a communicator. */
#include "plugin/tuner_list.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "base/text.h"
#include "plugin/shim.h"

#define OWN_FILE "libtutti-tuner.so"

static struct {
  pthread_mutex_t lock;
  bool made;
  bool none;   /* NCCL_TUNER_PLUGIN says so */
  bool warned; /* that nothing named is there */
  int count;
  struct tt_tuner_library libraries[TT_TUNER_MAX_LIBRARIES];
} list = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Making the list ---- */

static bool is_none(const char *value)
{
  return value && tt_text_equal_nocase(value, strlen(value), "none");
}

static void pass_over(struct tt_tuner_library *library, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void pass_over(struct tt_tuner_library *library, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(library->reason, sizeof library->reason, format, args);
  va_end(args);
  library->passed = true;
}

static void add_own_files(struct tt_tuner_library *library, const char *directory)
{
  for (int i = 0; i < TT_PLUGIN_OWN_PLACES; i++)
    tt_plugin_own_file(directory, OWN_FILE, i, library->files[2 + i], sizeof library->files[2 + i]);
}

static void add(struct tt_tuner_library *library, int kind, const char *name, size_t bytes, const char *directory)
{
  memset(library, 0, sizeof *library);
  library->kind = kind;
  snprintf(library->asked, sizeof library->asked, "%.*s", (int)TT_MIN(bytes, sizeof library->asked), name);
  if (bytes >= sizeof library->asked) {
    pass_over(library, "its name is longer than %zu bytes", sizeof library->asked - 1);
    return;
  }
  if (kind == TT_TUNER_OWN) {
    add_own_files(library, directory);
    return;
  }
  snprintf(library->files[0], sizeof library->files[0], "%s", library->asked);
  if (!tt_plugin_suffix_name("libnccl-tuner", library->asked, library->files[1])) library->files[1][0] = '\0';
  if (strcmp(library->asked, "tutti") == 0 || strcmp(library->asked, OWN_FILE) == 0) add_own_files(library, directory);
}

int tt_tuner_list_parse(const char *value, bool own, bool secure, const char *own_directory,
                        struct tt_tuner_library *libraries)
{
  int count = 0;
  const char *cursor, *piece;
  size_t bytes;
  if (is_none(value)) return 0;
  if (secure && value) {
    TT_INFO(TT_INIT | TT_TUNING, "TUNER/Plugin: NCCL_TUNER_PLUGIN is ignored in a program with raised privileges");
    value = NULL;
  }
  cursor = value;
  while (value && tt_text_next(&cursor, ',', &piece, &bytes)) {
    if (bytes == 0) continue;
    if (count == TT_TUNER_MAX_NAMED) {
      TT_WARN("NCCL_TUNER_PLUGIN lists more than %d tuners; those from %s on are ignored", TT_TUNER_MAX_NAMED, piece);
      break;
    }
    add(&libraries[count++], TT_TUNER_NAMED, piece, bytes, own_directory);
  }
  if (count > 0) return count;
  add(&libraries[count++], TT_TUNER_DEFAULT, "libnccl-tuner.so", strlen("libnccl-tuner.so"), own_directory);
  if (own) add(&libraries[count++], TT_TUNER_OWN, OWN_FILE, strlen(OWN_FILE), own_directory);
  return count;
}

static void make_list(void)
{
  if (list.made) return;
  const char *value = tt_param_string(TT_PARAM_NCCL_TUNER_PLUGIN);
  list.none = is_none(value);
  bool own = tt_param_string(TT_PARAM_NCCL_TUNER_CONFIG_FILE) != NULL || tt_param_int(TT_PARAM_TUTTI_TUNER_ADAPT);
  list.count = tt_tuner_list_parse(value, own, tt_plugin_secure(), tt_host_library_dir(), list.libraries);
  list.made = true;
}

/* The entry of a net plugin's library, behind those of NCCL_TUNER_PLUGIN. Different communicators may use different
 * networks; more than there are entries for go without. */
static void add_net(const char *path)
{
  if (list.none || !path || !path[0]) return;
  for (int i = 0; i < list.count; i++)
    if (list.libraries[i].kind == TT_TUNER_OF_NET && strcmp(list.libraries[i].files[0], path) == 0) return;
  if (list.count == TT_TUNER_MAX_LIBRARIES) return;
  struct tt_tuner_library *library = &list.libraries[list.count++];
  memset(library, 0, sizeof *library);
  library->kind = TT_TUNER_OF_NET;
  snprintf(library->files[0], sizeof library->files[0], "%s", path);
  const char *slash = strrchr(path, '/');
  snprintf(library->asked, sizeof library->asked, "%.*s", (int)sizeof library->asked - 1, slash ? slash + 1 : path);
}

/* ---- Loading ---- */

/* Opens the first of the files that can be opened. If none can, the reason of the first that is there and broken is
 * kept: a library that is passed over is not opened again. */
static bool open_file(struct tt_tuner_library *library)
{
  char broken[TT_PLUGIN_REASON_BYTES] = "";
  for (int f = 0; f < TT_TUNER_FILES; f++) {
    char reason[TT_PLUGIN_REASON_BYTES];
    if (!library->files[f][0]) continue;
    enum tt_plugin_found found = tt_plugin_open(library->files[f], &library->handle, reason);
    if (found == TT_PLUGIN_OPEN) return true;
    if (found == TT_PLUGIN_BROKEN && !broken[0]) memcpy(broken, reason, sizeof broken);
  }
  if (broken[0]) {
    pass_over(library, "%s", broken);
    TT_INFO(TT_INIT | TT_TUNING, "TUNER/Plugin: %s: %s", library->asked, library->reason);
  } else if (library->kind == TT_TUNER_NAMED) {
    const char *second = library->files[1];
    pass_over(library, "no such file%s%.200s", second[0] ? ", and no " : "", second);
    TT_INFO(TT_INIT | TT_TUNING, "TUNER/Plugin: Could not find: %s%s%s%s", library->asked, second[0] ? " [" : "",
            second, second[0] ? "]" : "");
  } else {
    pass_over(library, "not installed");
  }
  return false;
}

/* Binds the newest version that both know. */
static bool bind_newest(struct tt_tuner_library *library)
{
  const void *newest = NULL;
  int version = 0, highest = 0;
  for (int v = 1; v < 32; v++) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", v);
    const void *found = dlsym(library->handle, symbol);
    if (!found) continue;
    highest = v;
    if (!tt_tuner_shim_of(v)) continue;
    newest = found;
    version = v;
  }
  if (!newest && library->kind == TT_TUNER_OF_NET) {
    pass_over(library, "the net plugin's library holds no tuner");
    return false;
  }
  if (!newest && highest > 0) {
    pass_over(library, "it exports the tuner ABI v%d only, and this library knows v%d to v%d", highest, TT_TUNER_OLDEST,
              TT_TUNER_NEWEST);
    return false;
  }
  if (!newest) {
    pass_over(library, "it exports no ncclTunerPlugin_v%d to v%d, so it is no tuner", TT_TUNER_OLDEST, TT_TUNER_NEWEST);
    TT_INFO(TT_INIT | TT_TUNING, "External tuner plugin %s is unsupported", library->asked);
    return false;
  }
  const char *missing = tt_tuner_bind(&library->plugin, tt_tuner_shim_of(version), newest,
                                      dlsym(library->handle, "tuttiTunerExtension_v1"));
  if (missing) {
    pass_over(library, "its ncclTunerPlugin_v%d has no %s", version, missing);
    return false;
  }
  tt_plugin_path(newest, library->path, sizeof library->path);
  return true;
}

static bool load(struct tt_tuner_library *library)
{
  if (library->passed) return false;
  if (!library->handle) {
    if (!open_file(library)) return false;
    if (!bind_newest(library)) {
      dlclose(library->handle);
      library->handle = NULL;
      return false;
    }
    TT_INFO(TT_INIT | TT_TUNING, "TUNER/Plugin: Using %s (v%d)", library->plugin.abi.v6.name,
            library->plugin.shim->version);
  }
  library->users++;
  return true;
}

static void unload(struct tt_tuner_library *library)
{
  if (--library->users > 0) return;
  TT_INFO(TT_INIT | TT_TUNING, "TUNER/Plugin: Closing tuner: '%s'", library->plugin.abi.v6.name);
  dlclose(library->handle);
  library->handle = NULL;
}

/* ---- Starting ---- */

static ncclResult_t checked(const struct tt_tuner *tuner, const char *member, ncclResult_t result)
{
  const struct tt_plugin_identity identity = {
      .kind = "tuner", .name = tt_tuner_name(tuner), .path = tt_tuner_path(tuner), .version = tt_tuner_version(tuner)};
  return tt_plugin_checked(&identity, member, result);
}

/* How many of the constants a tuner changed. */
static int count_changes(const ncclTunerConstants_v6_t *a, const ncclTunerConstants_v6_t *b)
{
  double before[sizeof *a / sizeof(double)], after[sizeof *b / sizeof(double)];
  int changed = 0;
  memcpy(before, a, sizeof before);
  memcpy(after, b, sizeof after);
  for (size_t i = 0; i < TT_COUNT(before); i++) changed += memcmp(&before[i], &after[i], sizeof(double)) != 0;
  return changed;
}

static ncclResult_t start(struct tt_tuner_library *library, const struct tt_tuner_request *request,
                          struct tt_tuner **out)
{
  struct tt_tuner *tuner;
  struct tt_tuner_request copy = *request; /* plugins may write to what they are told */
  TT_TRY(TT_CALLOC(&tuner, 1));
  tuner->plugin = &library->plugin;
  tuner->library = library;
  pthread_mutex_init(&tuner->lock, NULL);
  tt_net_before();
  ncclResult_t result = checked(tuner, "init", library->plugin.shim->init(tuner, &copy));
  if (result != ncclSuccess) {
    pthread_mutex_destroy(&tuner->lock);
    free(tuner);
    return result;
  }
  const tuttiTunerExtension_v1_t *more = &library->plugin.extension;
  tuner->asks_again = more->asksAgain && more->getEpochInfo && more->asksAgain(tuner->ctx) != 0;
  tuner->net_stats = request->net_stats;
  tuner->core = request->core;
  int changed = count_changes(&request->constants, &copy.constants);
  if (changed > 0)
    TT_INFO(TT_INIT | TT_TUNING,
            "Tuner: %s changed %d constants of NCCL's cost model; Tutti's model has others and does not use them",
            tt_tuner_name(tuner), changed);
  *out = tuner;
  return ncclSuccess;
}

/* "libnccl-tuner.so: not installed; ..." of all that were passed over. */
static void list_passed(char *text, size_t size)
{
  size_t at = 0;
  text[0] = '\0';
  for (int i = 0; i < list.count && at < size - 1; i++) {
    const struct tt_tuner_library *library = &list.libraries[i];
    if (!library->passed) continue;
    at += (size_t)snprintf(text + at, size - at, "%s%s: %s", at ? "; " : "", library->asked, library->reason);
  }
}

static void report(const struct tt_tuner *tuner, const char *passed)
{
  static const char *const why[] = {[TT_TUNER_NAMED] = "NCCL_TUNER_PLUGIN names it",
                                    [TT_TUNER_DEFAULT] = "it is installed under the name that is looked for",
                                    [TT_TUNER_OF_NET] = "the net plugin's library holds it",
                                    [TT_TUNER_OWN] = "NCCL_TUNER_CONFIG_FILE or TUTTI_TUNER_ADAPT is set"};
  if (tuner)
    TT_INFO(TT_INIT | TT_TUNING, "Tuner: using %s (ABI v%d) from %s, since %s%s%s", tt_tuner_name(tuner),
            tt_tuner_version(tuner), tt_tuner_path(tuner), why[tuner->library->kind],
            passed[0] ? "; passed over: " : "", passed);
  else
    TT_INFO(TT_INIT | TT_TUNING, "Tuner: none%s%s%s", passed[0] ? " (" : "", passed, passed[0] ? ")" : "");
}

/* Names that came to nothing deserve more than a line at INFO: somebody counts on them. Once a process. */
static void warn_named(const char *passed)
{
  const char *value = tt_param_string(TT_PARAM_NCCL_TUNER_PLUGIN);
  if (list.warned || !value || list.none || tt_plugin_secure()) return;
  list.warned = true;
  TT_WARN("NCCL_TUNER_PLUGIN is \"%s\", and no tuner is used: %s", value, passed);
}

void tt_tuner_open(const struct tt_tuner_request *request, struct tt_tuner **out, struct tt_tuner_offer *offer)
{
  char passed[1024];
  *out = NULL;
  memset(offer, 0, sizeof *offer);
  pthread_mutex_lock(&list.lock);
  make_list();
  add_net(request->net_path);
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < list.count && !*out && result == ncclSuccess; i++) {
    struct tt_tuner_library *library = &list.libraries[i];
    if (library->kind == TT_TUNER_OF_NET && (!request->net_path || strcmp(library->files[0], request->net_path) != 0))
      continue;
    if (!load(library)) continue;
    snprintf(offer->name, sizeof offer->name, "%s", library->plugin.abi.v6.name);
    if (!offer->name[0]) snprintf(offer->name, sizeof offer->name, "unnamed");
    offer->version = library->plugin.shim->version;
    offer->features = library->plugin.features;
    result = start(library, request, out);
    if (result != ncclSuccess) unload(library);
    if (*out && (*out)->asks_again) offer->features |= TT_TUNER_ASKS_AGAIN;
  }
  list_passed(passed, sizeof passed);
  offer->result = result;
  if (result == ncclSuccess) report(*out, passed);
  if (result == ncclSuccess && !*out) {
    snprintf(offer->reason, sizeof offer->reason, "%.*s", (int)sizeof offer->reason - 1,
             list.none ? "NCCL_TUNER_PLUGIN is none" : passed);
    warn_named(passed);
  }
  pthread_mutex_unlock(&list.lock);
}

void tt_tuner_close(struct tt_tuner *tuner)
{
  if (!tuner) return;
  pthread_mutex_lock(&list.lock);
  tt_net_before();
  checked(tuner, "finalize", tuner->plugin->shim->finalize(tuner));
  pthread_mutex_destroy(&tuner->lock);
  unload(tuner->library);
  pthread_mutex_unlock(&list.lock);
  free(tuner);
}

bool tt_tuner_report(int i, const char *net_path, struct tt_tuner_report *report)
{
  static const char *const askers[] = {[TT_TUNER_NAMED] = "NCCL_TUNER_PLUGIN",
                                       [TT_TUNER_DEFAULT] = "default search",
                                       [TT_TUNER_OF_NET] = "the net plugin",
                                       [TT_TUNER_OWN] = "NCCL_TUNER_CONFIG_FILE or TUTTI_TUNER_ADAPT"};
  pthread_mutex_lock(&list.lock);
  make_list();
  add_net(net_path);
  const bool there = i < list.count;
  if (there) {
    struct tt_tuner_library *library = &list.libraries[i];
    *report = (struct tt_tuner_report){.asked_by = askers[library->kind], .usable = load(library)};
    snprintf(report->asked, sizeof report->asked, "%s", library->asked);
    if (report->usable) {
      snprintf(report->path, sizeof report->path, "%s", library->path);
      snprintf(report->name, sizeof report->name, "%s", library->plugin.abi.v6.name);
      report->version = library->plugin.shim->version;
      unload(library);
    } else {
      snprintf(report->reason, sizeof report->reason, "%s", library->reason);
    }
  }
  pthread_mutex_unlock(&list.lock);
  return there;
}

ncclResult_t tt_tuner_reset(void)
{
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&list.lock);
  for (int i = 0; i < list.count && result == ncclSuccess; i++)
    if (list.libraries[i].users > 0)
      result = TT_FAIL(ncclInvalidUsage, "the list of tuners cannot be forgotten while %s is in use",
                       list.libraries[i].asked);
  if (result == ncclSuccess) {
    list.made = list.warned = false;
    list.count = 0;
  }
  pthread_mutex_unlock(&list.lock);
  return result;
}
