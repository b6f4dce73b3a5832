/* See library.h. The dynamic linker tells why it failed only as text, so its text is read here and nowhere else. */
#include <dlfcn.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>
#include "plugin/library.h"
#include "plugin/whole.h"

static enum tt_plugin_found explain(const char *file, const char *error, char reason[TT_PLUGIN_REASON_BYTES])
{
  /* "NAME: cannot open shared object file: No such file or directory", where NAME may be that of a dependency. */
  const char *colon = strstr(error, ": cannot open shared object file: No such file");
  int bytes = colon ? (int)(colon - error) : 0;
  if (colon && (size_t)bytes == strlen(file) && memcmp(error, file, (size_t)bytes) == 0) {
    snprintf(reason, TT_PLUGIN_REASON_BYTES, "no such file%s", strchr(file, '/') ? "" : " in the library search path");
    return TT_PLUGIN_MISSING;
  }
  if (colon) {
    snprintf(reason, TT_PLUGIN_REASON_BYTES,
             "it needs %.*s, which was not found; install that or add its directory to LD_LIBRARY_PATH", bytes, error);
  } else if (strstr(error, "invalid ELF header") || strstr(error, "file too short")) {
    snprintf(reason, TT_PLUGIN_REASON_BYTES, "%s is not a shared library", file);
  } else {
    snprintf(reason, TT_PLUGIN_REASON_BYTES, "%s", error);
  }
  return TT_PLUGIN_BROKEN;
}

enum tt_plugin_found tt_plugin_open(const char *file, void **handle, char reason[TT_PLUGIN_REASON_BYTES])
{
  bool program = strcasecmp(file, "STATIC_PLUGIN") == 0;
  reason[0] = '\0';
  /* A bare name is looked for by the dynamic linker alone. */
  if (strchr(file, '/') && !tt_plugin_whole(file, reason)) return TT_PLUGIN_BROKEN;
  *handle = dlopen(program ? NULL : file, RTLD_NOW | RTLD_LOCAL);
  if (*handle) return TT_PLUGIN_OPEN;
  /* dlerror translates into the thread's language. */
  locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  locale_t before = uselocale(plain);
  const char *error = dlerror();
  enum tt_plugin_found found = explain(file, error ? error : "dlopen failed without a reason", reason);
  uselocale(before);
  freelocale(plain);
  return found;
}

bool tt_plugin_suffix_name(const char *prefix, const char *name, char file[TT_PLUGIN_NAME_BYTES])
{
  size_t length = strlen(name);
  bool library = strncmp(name, "lib", 3) == 0 && length >= 3 && strcmp(name + length - 3, ".so") == 0;
  if (length == 0 || strchr(name, '/') || library || strcasecmp(name, "STATIC_PLUGIN") == 0) return false;
  return snprintf(file, TT_PLUGIN_NAME_BYTES, "%s-%s.so", prefix, name) < TT_PLUGIN_NAME_BYTES;
}

bool tt_plugin_own_file(const char *library_dir, const char *name, int i, char *file, size_t size)
{
  size_t length = strlen(library_dir);
  bool compat = length >= 7 && strcmp(library_dir + length - 7, "/compat") == 0;
  const char *folder = i == 0 ? "/tutti" : compat ? "/.." : "";
  int bytes = snprintf(file, size, "%s%s/%s", library_dir, folder, name);
  if (bytes >= 0 && (size_t)bytes < size) return true;
  file[0] = '\0';
  return false;
}

void tt_plugin_path(const void *symbol, char *path, size_t size)
{
  Dl_info info;
  char full[PATH_MAX];
  const char *name = dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : "";
  snprintf(path, size, "%s", realpath(name, full) ? full : name);
}

bool tt_plugin_secure(void)
{
  return getauxval(AT_SECURE) != 0;
}
