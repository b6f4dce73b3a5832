/* What sysfs says, read so that nothing it may hold does harm: absent, unreadable, endless or odd. See
 * detect_internal.h. */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/text.h"
#include "topology/detect_internal.h"

bool tt_detect_read(const char *directory, const char *name, char *text, size_t size)
{
  char *path;
  text[0] = 0;
  if (asprintf(&path, "%s/%s", directory, name) < 0) return false;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  free(path);
  if (file < 0) return false;
  ssize_t bytes = read(file, text, size - 1);
  close(file);
  if (bytes < 0) bytes = 0;
  while (bytes > 0 && isspace((unsigned char)text[bytes - 1])) bytes--;
  text[bytes] = 0;
  for (char *c = text; c < text + bytes; c++)
    if (*c < ' ' || *c > '~') *c = '?';
  return bytes > 0;
}

bool tt_detect_read_int(const char *directory, const char *name, int least, int most, int *value)
{
  char text[64];
  int64_t number;
  if (!tt_detect_read(directory, name, text, sizeof(text)) || !tt_text_int(text, &number)) return false;
  if (number < least || number > most) return false;
  *value = (int)number;
  return true;
}

/* So many hexadecimal digits at most, and one at least; moves *text behind them. */
static bool hex(const char **text, int most, unsigned *value)
{
  int digits = 0;
  for (*value = 0; digits < most && isxdigit((unsigned char)**text); digits++, ++*text) {
    unsigned char c = (unsigned char)tolower((unsigned char)**text);
    *value = *value << 4 | (unsigned)(isdigit(c) ? c - '0' : c - 'a' + 10);
  }
  return digits > 0;
}

static bool mark(const char **text, char c)
{
  return *(*text)++ == c;
}

/* NVML writes domains with eight digits, sysfs with four where they are enough. */
bool tt_detect_bus(const char *text, char bus[TT_DETECT_BUS])
{
  unsigned domain, number, device, function;
  if (!hex(&text, 8, &domain) || !mark(&text, ':') || !hex(&text, 2, &number) || !mark(&text, ':') ||
      !hex(&text, 2, &device) || !mark(&text, '.') || !hex(&text, 1, &function) || *text)
    return false;
  snprintf(bus, TT_DETECT_BUS, "%04x:%02x:%02x.%x", domain, number, device, function);
  return true;
}

const char *tt_detect_last(const char *path)
{
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* realpath follows at most as many links as the kernel does, so loops end. */
char *tt_detect_directory(const struct tt_detection *d, const char *bus)
{
  char *path, *real = NULL;
  if (asprintf(&path, "%s/bus/pci/devices/%s", d->sysfs, bus) < 0) return NULL;
  real = realpath(path, NULL);
  free(path);
  int prefix = (int)(strrchr(bus, ':') - bus);
  if (!real && asprintf(&path, "%s/class/pci_bus/%.*s/../../%s", d->sysfs, prefix, bus, bus) >= 0) {
    real = realpath(path, NULL);
    free(path);
  }
  char found[TT_DETECT_BUS];
  if (real && (!tt_detect_bus(tt_detect_last(real), found) || strcmp(found, bus) != 0)) {
    free(real);
    real = NULL;
  }
  return real;
}

char *tt_detect_directory_of_path(const char *path)
{
  char *real = realpath(path, NULL), bus[TT_DETECT_BUS];
  while (real && !tt_detect_bus(tt_detect_last(real), bus)) {
    char *slash = strrchr(real, '/');
    if (slash && slash > real) {
      *slash = 0;
    } else {
      free(real);
      real = NULL;
    }
  }
  return real;
}

void tt_detect_count_nodes(struct tt_detection *d)
{
  char *path;
  d->nnodes = 0;
  d->lowest_node = -1;
  if (asprintf(&path, "%s/devices/system/node", d->sysfs) < 0) return;
  DIR *directory = opendir(path);
  free(path);
  if (!directory) return;
  for (struct dirent *entry; (entry = readdir(directory));) {
    int64_t node;
    if (strncmp(entry->d_name, "node", 4) != 0 || !isdigit((unsigned char)entry->d_name[4])) continue;
    if (!tt_text_int(entry->d_name + 4, &node) || node > 1 << 20) continue;
    if (d->nnodes++ == 0 || node < d->lowest_node) d->lowest_node = (int)node;
  }
  closedir(directory);
}

void tt_detect_miss(struct tt_detection *d, const char *format, ...)
{
  size_t used = strlen(d->missing);
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (strstr(d->missing, text)) return;
  if (used + strlen("; ") + strlen(text) + sizeof("; and more") > sizeof(d->missing)) {
    if (!strstr(d->missing, "; and more")) strcpy(d->missing + used, "; and more");
    return;
  }
  snprintf(d->missing + used, sizeof(d->missing) - used, "%s%s", used ? "; " : "", text);
}
