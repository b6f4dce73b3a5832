/* See program.h. */
#include "program.h"

#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { MOST_INTERPRETERS = 4 }; /* scripts whose interpreter is a script; the kernel has the same bound */

static int check_file(const char *path, char *error, size_t size)
{
  struct stat info;
  int cause = stat(path, &info) ? errno : S_ISDIR(info.st_mode) ? EISDIR : access(path, X_OK) ? errno : 0;
  if (cause == 0) return 0;
  if (cause == EACCES && !access(path, F_OK))
    snprintf(error, size, "%s: is not executable; chmod +x it, or name its interpreter", path);
  else
    snprintf(error, size, "%s: %s", path, strerror(cause));
  return cause == ENOENT || cause == ENOTDIR ? RUN_NOT_FOUND : RUN_CANNOT;
}

int run_program_find(const char *command, const char *search, char *path, size_t size, char *error, size_t error_size)
{
  if (strchr(command, '/')) {
    snprintf(path, size, "%s", command);
    return check_file(path, error, error_size);
  }
  char denied[PATH_MAX] = "";
  for (const char *at = search ? search : "/bin:/usr/bin"; *at;) {
    size_t n = strcspn(at, ":");
    struct stat info;
    snprintf(path, size, "%.*s/%s", n ? (int)n : 1, n ? at : ".", command);
    if (!stat(path, &info) && S_ISREG(info.st_mode)) {
      if (!access(path, X_OK)) return 0;
      snprintf(denied, sizeof(denied), "%s", path);
    }
    at += n + (at[n] == ':');
  }
  if (denied[0]) return check_file(denied, error, error_size);
  snprintf(error, error_size, "%s: no such program in PATH", command);
  return RUN_NOT_FOUND;
}

/* Looks for PT_INTERP: without one, no dynamic linker runs. */
static bool elf_is_dynamic(FILE *file, const Elf64_Ehdr *header)
{
  for (int i = 0; i < header->e_phnum; i++) {
    Elf64_Phdr segment;
    if (fseek(file, (long)(header->e_phoff + (Elf64_Off)i * header->e_phentsize), SEEK_SET) ||
        fread(&segment, sizeof(segment), 1, file) != 1)
      return false;
    if (segment.p_type == PT_INTERP) return true;
  }
  return false;
}

static bool elf_preloads(FILE *file, const char *path, const Elf64_Ehdr *header, char *error, size_t size)
{
  static const Elf64_Half own =
#if defined(__x86_64__)
      EM_X86_64;
#elif defined(__aarch64__)
      EM_AARCH64;
#else
      EM_NONE;
#endif
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || (own != EM_NONE && header->e_machine != own)) {
    snprintf(error, size, "%s: is for another architecture than Tutti's library", path);
    return false;
  }
  if (elf_is_dynamic(file, header)) return true;
  snprintf(error, size,
           "%s: is statically linked, so nothing can be preloaded into it; link it with -lnccl and run it "
           "with the drop-in's directory in LD_LIBRARY_PATH, or relink it with libtutti",
           path);
  return false;
}

static bool is_privileged(const char *path, char *error, size_t size)
{
  struct stat info;
  bool bits = !stat(path, &info) && ((info.st_mode & S_ISUID && info.st_uid != geteuid()) ||
                                     (info.st_mode & S_ISGID && info.st_gid != getegid()));
  bool capable = getxattr(path, "security.capability", NULL, 0) > 0;
  if (!bits && !capable) return false;
  snprintf(error, size, "%s: %s, and the dynamic linker ignores LD_PRELOAD in such programs", path,
           bits ? "is setuid or setgid" : "has file capabilities");
  return true;
}

static bool preloads(const char *path, int depth, char *error, size_t size)
{
  char head[512];
  Elf64_Ehdr header;
  FILE *file = fopen(path, "re");
  if (!file) return true; /* executable but unreadable: nothing can be said before it runs */
  size_t n = fread(head, 1, sizeof(head) - 1, file);
  head[n] = 0;
  bool result = true;
  if (n >= 2 && !memcmp(head, "#!", 2)) {
    char *interpreter = head + 2 + strspn(head + 2, " \t");
    interpreter[strcspn(interpreter, " \t\n")] = 0;
    if (*interpreter && depth < MOST_INTERPRETERS)
      result = !check_file(interpreter, error, size) && preloads(interpreter, depth + 1, error, size);
  } else if (n >= SELFMAG && !memcmp(head, ELFMAG, SELFMAG)) {
    if (n >= sizeof(header)) {
      memcpy(&header, head, sizeof(header));
      result = !is_privileged(path, error, size) && elf_preloads(file, path, &header, error, size);
    }
  }
  fclose(file);
  return result;
}

bool run_program_preloads(const char *path, char *error, size_t size)
{
  return preloads(path, 0, error, size);
}
