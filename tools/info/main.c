/* tutti-info: what this machine's Tutti is, what it would load, and how it is configured. */
#include <dlfcn.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/host.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "info.h"
#include "tutti.h"

enum { LIBRARY = 1, DEVICES = 2, PLUGINS = 4, PARAMS = 8, ALL = 15 };

static void help(FILE *out)
{
  fputs("usage: tutti-info [flags]\n"
        "       tutti-info --pid N [--json]\n"
        "Shows the library, its devices, the plugins that it would load or pass over and why, and its parameters.\n\n"
        "  -L, --library   only the library\n"
        "  -D, --devices   only devices\n"
        "  -P, --plugins   only net plugins and tuners\n"
        "  -E, --params    only parameters (environment and configuration files); these flags may be combined\n"
        "  -v, --verbose   with type, range, default and meaning of each parameter\n"
        "  -p, --pid N     what the communicators of process N are at: pending operations, ranks waited for, memory\n"
        "  -J, --json      as JSON\n"
        "  -h, --help      this text\n\n"
        "Exit status: 0; 1 when a parameter is malformed or process N gives no report; 2 for a wrong command line;\n"
        "3 when the output cannot be written.\n",
        out);
}

/* The library that this program runs with: its plugins are found beside it. */
static const char *find_library(char *path)
{
  Dl_info info;
  if (!dladdr((void *)ncclGetVersion, &info) || !info.dli_fname || !realpath(info.dli_fname, path)) return NULL;
  char directory[PATH_MAX];
  strcpy(directory, path);
  char *slash = strrchr(directory, '/');
  if (slash) *slash = 0;
  tt_host_set_library_dir(directory);
  return path;
}

static void show(struct info_out *out, int what, bool verbose, const char *path)
{
  struct tool_json *json = out->json;
  static const struct {
    const char *name;
    int flag;
  } sections[] = {{"library", LIBRARY},
                  {"devices", DEVICES},
                  {"net_plugins", PLUGINS},
                  {"tuner_plugins", PLUGINS},
                  {"params", PARAMS}};
  for (int i = 0; i < 5; i++) {
    if (!(what & sections[i].flag)) continue;
    if (json) tool_json_open(json, sections[i].name, '[');
    if (i == 0) info_library(out, path);
    if (i == 1) info_devices(out);
    if (i == 2) info_plugins(out);
    if (i == 3) info_tuners(out);
    if (i == 4) info_params(out, verbose);
    if (json) tool_json_close(json, '[');
  }
}

/* `status`, if all output could be written. */
static int finish(int status)
{
  if (fflush(stdout) == 0 && !ferror(stdout)) return status;
  fputs("tutti-info: the output could not be written\n", stderr);
  return 3;
}

int main(int argc, char **argv)
{
  static const struct option options[] = {
      {"library", 0, NULL, 'L'}, {"devices", 0, NULL, 'D'}, {"plugins", 0, NULL, 'P'},
      {"params", 0, NULL, 'E'},  {"verbose", 0, NULL, 'v'}, {"pid", 1, NULL, 'p'},
      {"json", 0, NULL, 'J'},    {"help", 0, NULL, 'h'},    {NULL, 0, NULL, 0}};
  int what = 0, c;
  int64_t pid = 0;
  bool verbose = false, as_json = false;
  while ((c = getopt_long(argc, argv, "LDPEvp:Jh", options, NULL)) != -1) {
    switch (c) {
    case 'L':
      what |= LIBRARY;
      break;
    case 'D':
      what |= DEVICES;
      break;
    case 'P':
      what |= PLUGINS;
      break;
    case 'E':
      what |= PARAMS;
      break;
    case 'v':
      verbose = true;
      break;
    case 'p':
      if (!tt_text_int(optarg, &pid) || pid < 1 || pid > INT_MAX) {
        fprintf(stderr, "tutti-info: --pid %s: not a process id\n", optarg);
        return 2;
      }
      break;
    case 'J':
      as_json = true;
      break;
    case 'h':
      help(stdout);
      return finish(0);
    default:
      return 2; /* getopt has said what is wrong */
    }
  }
  if (optind < argc) {
    fprintf(stderr, "tutti-info: %s: takes flags only; see --help\n", argv[optind]);
    return 2;
  }
  if (pid > 0 && (what != 0 || verbose)) {
    fputs("tutti-info: --pid goes with --json only\n", stderr);
    return 2;
  }
  if (pid > 0) return finish(info_ask((int)pid, as_json));
  char path[PATH_MAX];
  const char *library = find_library(path);
  struct tool_json json = {0};
  struct info_out out = {as_json ? &json : NULL};
  /* Malformed and unknown parameters are reported on stderr; the rest is shown all the same. */
  if (!what) what = ALL;
  ncclResult_t checked = what & PARAMS ? info_check() : tt_param_check();
  char problem[1024] = "";
  if (checked != ncclSuccess) tt_log_last_error(problem, sizeof(problem));
  if (as_json) {
    tool_json_open(&json, NULL, '{');
    tool_json_string(&json, "problem", problem[0] ? problem : NULL);
  }
  show(&out, what, verbose, library);
  if (as_json) {
    tool_json_close(&json, '{');
    if (json.failed) {
      fputs("tutti-info: out of memory\n", stderr);
      return 1;
    }
    puts(json.text);
    free(json.text);
  }
  if (problem[0]) fprintf(stderr, "tutti-info: %s\n", problem);
  return finish(checked == ncclSuccess ? 0 : 1);
}
