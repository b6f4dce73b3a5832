/* Writes pictures to files. See draw.h. */
#include "draw.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/check.h"
#include "picture.h"

typedef ncclResult_t writer(FILE *out, const struct topo_picture *picture);

/* A name beside `path`, so that the file can take its place at once. */
static ncclResult_t open_beside(const char *path, char **name, FILE **file)
{
  const size_t size = strlen(path) + sizeof(".XXXXXX");
  *file = NULL;
  TT_TRY(TT_CALLOC(name, size));
  snprintf(*name, size, "%s.XXXXXX", path);
  int fd = mkstemp(*name);
  const mode_t mask = umask(0);
  umask(mask);
  if (fd >= 0 && fchmod(fd, 0666 & ~mask) == 0) *file = fdopen(fd, "w");
  if (*file) return ncclSuccess;
  ncclResult_t result = TT_FAIL(ncclInvalidUsage, "cannot write %s: %s; name a file in a directory where you may write",
                                path, strerror(errno));
  if (fd >= 0) {
    close(fd);
    unlink(*name);
  }
  return result;
}

/* Other kinds of files, such as /dev/stdout, cannot be replaced; they are written to. */
static bool is_special(const char *path)
{
  struct stat found;
  return stat(path, &found) == 0 && !S_ISREG(found.st_mode);
}

static ncclResult_t write_file(const char *path, writer *write, const struct topo_picture *picture)
{
  char *name = NULL;
  FILE *file = NULL;
  ncclResult_t result = ncclSuccess;
  const bool special = is_special(path);
  if (special && !(file = fopen(path, "we")))
    return TT_FAIL(ncclInvalidUsage, "cannot write %s: %s; name another file", path, strerror(errno));
  if (!special) TT_TRY_GOTO(open_beside(path, &name, &file), result, out);
  result = write(file, picture);
  bool bad = fflush(file) != 0 || ferror(file);
  bad |= fclose(file) != 0;
  if (!bad && result == ncclSuccess && !special) bad = rename(name, path) != 0;
  if (bad && result == ncclSuccess)
    result = TT_FAIL(ncclSystemError, "%s could not be written: %s; nothing of it was kept", path, strerror(errno));
  if (result != ncclSuccess && !special) unlink(name);
out:
  free(name);
  return result;
}

/* The channel that was asked for must be there. */
static ncclResult_t check_channel(const struct topo_draw *what)
{
  if (what->graph < 0) return ncclSuccess;
  const char *name = tt_graph_name((enum tt_graph_kind)what->graph);
  const struct tt_graph *g = what->graphs ? what->graphs[what->graph] : NULL;
  if (!g || g->nchannels == 0)
    return TT_FAIL(ncclInvalidUsage, "this machine has no %s; leave --graph away, or name another", name);
  if (what->channel >= g->nchannels)
    return TT_FAIL(ncclInvalidUsage, "--channel %d: %s has channels 0 to %d; name one of these", what->channel, name,
                   g->nchannels - 1);
  return ncclSuccess;
}

ncclResult_t topo_draw(const struct tt_topology *t, const struct topo_draw *what)
{
  struct topo_layout *layout;
  TT_TRY(check_channel(what));
  TT_TRY(topo_layout_create(t, &layout));
  const struct topo_picture picture = {.t = t, .layout = layout, .what = what};
  ncclResult_t result = ncclSuccess;
  if (what->svg) result = write_file(what->svg, topo_write_svg, &picture);
  if (what->html && result == ncclSuccess) result = write_file(what->html, topo_write_html, &picture);
  topo_layout_free(layout);
  return result;
}
