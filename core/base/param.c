/* The parameter table and its values. A value is found once, under a lock, and read without one afterwards. */
#include "base/param.h"

#include <pthread.h>
#include <pwd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/param_file.h"
#include "base/param_internal.h"
#include "base/param_source.h"
#include "base/text.h"

static const struct tt_param table[] = {
#define TT_PARAM(name, type, value, least, most, agreed, help)                                                         \
  {#name, TT_PARAM_##type, (value), (least), (most), (agreed), (help)},
#include "base/param_table.h"
#undef TT_PARAM
};

/* `known` is set last; the other members do not change while it is set. */
struct value {
  _Atomic bool known;
  const char *text; /* NULL: unset or empty */
  int64_t number;
  bool malformed;
  enum tt_param_origin origin;
  const char *file;
  _Atomic bool announced;
};

/* Texts are handed out for the process's life, so they are kept, one of each. */
struct kept_text {
  struct kept_text *next;
  char text[];
};

static struct value values[TT_PARAM_COUNT]; /* under `mutex` until known */
static struct tt_param_files files;         /* under `mutex` until read, then constant */
static bool files_read;
static struct kept_text *kept;
static const char *system_file = "/etc/nccl.conf";
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static const char *keep_text(const char *text)
{
  for (struct kept_text *at = kept; at; at = at->next)
    if (strcmp(at->text, text) == 0) return at->text;
  struct kept_text *fresh = malloc(sizeof(*fresh) + strlen(text) + 1);
  if (!fresh) return NULL;
  strcpy(fresh->text, text);
  fresh->next = kept;
  kept = fresh;
  return fresh->text;
}

/* The user's file: NCCL_CONF_FILE, else ~/.nccl.conf. A setuid program reads neither. */
static void read_user_file(void)
{
  const char *named = secure_getenv("NCCL_CONF_FILE");
  if (named && *named) {
    tt_param_files_read(&files, named, TT_PARAM_FROM_USER_FILE, true);
    return;
  }
  const char *home = secure_getenv("HOME");
  char buffer[4096], path[4200];
  struct passwd entry, *found = NULL;
  if ((!home || !*home) && getpwuid_r(getuid(), &entry, buffer, sizeof(buffer), &found) == 0 && found)
    home = found->pw_dir;
  if (!home || !*home || snprintf(path, sizeof(path), "%s/.nccl.conf", home) >= (int)sizeof(path)) return;
  tt_param_files_read(&files, path, TT_PARAM_FROM_USER_FILE, false);
}

static void read_files(void)
{
  if (files_read) return;
  files_read = true;
  read_user_file();
  tt_param_files_read(&files, system_file, TT_PARAM_FROM_SYSTEM_FILE, false);
  tt_param_files_export(&files);
}

/* Names that steer where a privileged program reads and writes are not taken from its caller. */
static bool names_file(enum tt_param_id id)
{
  switch (id) {
  case TT_PARAM_NCCL_DEBUG_FILE:
  case TT_PARAM_NCCL_CONF_FILE:
  case TT_PARAM_NCCL_TOPO_FILE:
  case TT_PARAM_NCCL_TOPO_DUMP_FILE:
  case TT_PARAM_NCCL_GRAPH_FILE:
  case TT_PARAM_NCCL_GRAPH_DUMP_FILE:
    return true;
  default:
    return false;
  }
}

/* Finds where `name` is set. An empty value counts as unset, and hides those of lower precedence. */
static const char *find_text(enum tt_param_id id, enum tt_param_origin *origin, const char **file)
{
  const char *name = table[id].name;
  *origin = TT_PARAM_FROM_DEFAULT;
  *file = NULL;
  const struct tt_param_setting *setting = tt_param_files_find(&files, name);
  const char *text = names_file(id) ? secure_getenv(name) : getenv(name);
  if (text && !(setting && setting->exported && strcmp(text, setting->value) == 0)) {
    if (!*text) return NULL;
    *origin = TT_PARAM_FROM_ENV;
    return text;
  }
  if (!setting || !*setting->value) return NULL;
  *origin = setting->origin;
  *file = setting->file;
  return setting->value;
}

static void find_value(enum tt_param_id id)
{
  struct value *value = &values[id];
  const struct tt_param *param = &table[id];
  read_files();
  const char *text = find_text(id, &value->origin, &value->file);
  value->file = value->file ? keep_text(value->file) : NULL;
  value->text = text ? keep_text(text) : NULL;
  value->number = param->default_int;
  value->malformed = false;
  if (value->text && param->type != TT_PARAM_STRING) {
    int64_t number;
    value->malformed = !tt_text_int(value->text, &number) || number < param->min || number > param->max;
    if (!value->malformed) value->number = number;
  }
  atomic_store_explicit(&value->known, true, memory_order_release);
}

static struct value *get_value(enum tt_param_id id)
{
  struct value *value = &values[id];
  if (atomic_load_explicit(&value->known, memory_order_acquire)) return value;
  pthread_mutex_lock(&mutex);
  if (!atomic_load(&value->known)) find_value(id);
  pthread_mutex_unlock(&mutex);
  return value;
}

const char *tt_param_source_string(enum tt_param_id id)
{
  return get_value(id)->text;
}

int64_t tt_param_source_int(enum tt_param_id id)
{
  return get_value(id)->number;
}

void tt_param_source_announce(enum tt_param_id id)
{
  struct value *value = get_value(id);
  if (!value->text || atomic_load_explicit(&value->announced, memory_order_relaxed)) return;
  if (atomic_exchange(&value->announced, true)) return;
  TT_INFO(TT_ENV, "%s set by %s to %s.", table[id].name, value->file ? value->file : "environment", value->text);
}

int64_t tt_param_int(enum tt_param_id id)
{
  tt_param_source_announce(id);
  return get_value(id)->number;
}

const char *tt_param_string(enum tt_param_id id)
{
  tt_param_source_announce(id);
  return get_value(id)->text;
}

enum tt_param_origin tt_param_origin(enum tt_param_id id, const char **file)
{
  struct value *value = get_value(id);
  if (file) *file = value->file;
  return value->origin;
}

const char *tt_param_text(enum tt_param_id id)
{
  return get_value(id)->text;
}

const struct tt_param *tt_param_describe(enum tt_param_id id)
{
  return &table[id];
}

bool tt_param_malformed(enum tt_param_id id)
{
  return get_value(id)->malformed;
}

const struct tt_param_files *tt_param_files(void)
{
  pthread_mutex_lock(&mutex);
  read_files();
  pthread_mutex_unlock(&mutex);
  return &files;
}

const char *tt_param_agreed(int i, char *text, size_t size)
{
  for (int id = 0; id < TT_PARAM_COUNT; id++) {
    if (!table[id].agreed || i-- > 0) continue;
    struct value *value = get_value((enum tt_param_id)id);
    if (table[id].type == TT_PARAM_STRING)
      snprintf(text, size, "%s=%s", table[id].name, value->text ? value->text : "");
    else
      snprintf(text, size, "%s=%lld", table[id].name, (long long)value->number);
    return text;
  }
  return NULL;
}

uint64_t tt_param_agreed_hash(void)
{
  uint64_t hash = tt_hash("", 0);
  for (int id = 0; id < TT_PARAM_COUNT; id++) {
    if (!table[id].agreed) continue;
    struct value *value = get_value((enum tt_param_id)id);
    const char *text = value->text ? value->text : "";
    hash = tt_hash_more(hash, table[id].name, strlen(table[id].name) + 1);
    if (table[id].type == TT_PARAM_STRING)
      hash = tt_hash_more(hash, text, strlen(text) + 1);
    else
      hash = tt_hash_more(hash, &value->number, sizeof(value->number));
  }
  return hash;
}

static void forget(enum tt_param_id id)
{
  atomic_store(&values[id].known, false);
  atomic_store(&values[id].announced, false);
}

void tt_param_source_forget_log(void)
{
  static const enum tt_param_id ids[] = {TT_PARAM_NCCL_DEBUG,
                                         TT_PARAM_NCCL_DEBUG_SUBSYS,
                                         TT_PARAM_NCCL_DEBUG_FILE,
                                         TT_PARAM_NCCL_DEBUG_TIMESTAMP_LEVELS,
                                         TT_PARAM_NCCL_DEBUG_TIMESTAMP_FORMAT,
                                         TT_PARAM_NCCL_WARN_ENABLE_DEBUG_INFO};
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < TT_COUNT(ids); i++) forget(ids[i]);
  pthread_mutex_unlock(&mutex);
}

void tt_param_source_system_file(const char *path)
{
  system_file = path ? path : "/etc/nccl.conf";
}

void tt_param_reset(void)
{
  pthread_mutex_lock(&mutex);
  for (int id = 0; id < TT_PARAM_COUNT; id++) forget((enum tt_param_id)id);
  tt_param_files_free(&files);
  files_read = false;
  pthread_mutex_unlock(&mutex);
  tt_param_forget_check();
}

void tt_param_unload(void)
{
  tt_param_reset();
  while (kept) {
    struct kept_text *gone = kept;
    kept = gone->next;
    free(gone);
  }
}
