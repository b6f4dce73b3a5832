/* From tree to text that NCCL's own reader takes: see xml.h. */
#include "topology/xml.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/check.h"
#include "base/timer.h"

/* NCCL resolves no entities, so they are used only where XML leaves no choice. */
static void write_value(const char *value, FILE *out)
{
  for (; *value; value++) {
    switch (*value) {
    case '&':
      fputs("&amp;", out);
      break;
    case '<':
      fputs("&lt;", out);
      break;
    case '"':
      fputs("&quot;", out);
      break;
    case '\t':
      fputs("&#9;", out);
      break;
    case '\n':
      fputs("&#10;", out);
      break;
    case '\r':
      fputs("&#13;", out);
      break;
    default:
      fputc(*value, out);
    }
  }
}

static void write_begin(const struct tt_xml *xml, int element, int depth, FILE *out)
{
  const struct tt_xml_element *e = &xml->elements[element];
  fprintf(out, "%*s<%s", 2 * depth, "", e->name);
  for (int a = e->attributes; a >= 0; a = xml->attributes[a].next) {
    fprintf(out, " %s=\"", xml->attributes[a].name);
    write_value(xml->attributes[a].value, out);
    fputc('"', out);
  }
  fputs(e->first >= 0 ? ">\n" : "/>\n", out);
}

ncclResult_t tt_xml_write(const struct tt_xml *xml, FILE *out)
{
  int depth = 0;
  for (int e = xml->count > 0 ? 0 : -1; e >= 0;) {
    write_begin(xml, e, depth, out);
    if (xml->elements[e].first >= 0) {
      e = xml->elements[e].first;
      depth++;
      continue;
    }
    while (e >= 0 && xml->elements[e].next < 0) { /* the last of its parent ends the parent too */
      e = xml->elements[e].parent;
      if (e >= 0) fprintf(out, "%*s</%s>\n", 2 * --depth, "", xml->elements[e].name);
    }
    if (e >= 0) e = xml->elements[e].next;
  }
  if (fflush(out) != 0 || ferror(out))
    return TT_FAIL(ncclSystemError, "the file could not be written: %s", strerror(errno));
  return ncclSuccess;
}

/* Into place only when it is whole: others may read the file at any time. What is no plain file, a link
 * like /dev/stdout among it, is written as it is. */
ncclResult_t tt_xml_write_file(const struct tt_xml *xml, const char *path)
{
  struct stat status;
  const bool plain = lstat(path, &status) != 0 || S_ISREG(status.st_mode);
  char *beside = NULL;
  if (plain && asprintf(&beside, "%s.%ld.%llx", path, (long)getpid(), (unsigned long long)tt_timer_ns()) < 0)
    return TT_FAIL(ncclSystemError, "out of memory for the name of %s", path);
  const char *name = beside ? beside : path;
  ncclResult_t result;
  FILE *file = fopen(name, "we");
  if (file) {
    result = tt_xml_write(xml, file);
    if (fclose(file) != 0 && result == ncclSuccess) result = ncclSystemError;
    if (result == ncclSuccess && beside && rename(beside, path) != 0) result = ncclSystemError;
    if (result != ncclSuccess) TT_FAIL(result, "%s could not be written: %s", path, strerror(errno));
    if (result != ncclSuccess && beside) unlink(beside);
  } else {
    result = TT_FAIL(ncclInvalidUsage, "cannot write %s: %s; name a file in a directory where you may write", path,
                     strerror(errno));
  }
  free(beside);
  return result;
}
