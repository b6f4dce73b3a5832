/* The text in which ranks tell each other what they see, and the file that users ask for. See fuse.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/fuse.h"

enum {
  MOST_ELEMENTS = 8192
}; /* that a rank uses; a machine of 2048 nodes is far below, and joining takes its square */

ncclResult_t tt_topology_pack(const struct tt_xml *xml, char **text, size_t *bytes)
{
  *text = NULL;
  FILE *out = open_memstream(text, bytes);
  if (!out) return TT_FAIL(ncclSystemError, "no memory to write down a topology");
  ncclResult_t result = tt_xml_write(xml, out);
  if (fclose(out) != 0 && result == ncclSuccess)
    result = TT_FAIL(ncclSystemError, "no memory to write down a topology");
  if (result != ncclSuccess) {
    free(*text);
    *text = NULL;
  }
  return result;
}

ncclResult_t tt_topology_unpack(const char *text, size_t bytes, const char *source, struct tt_xml **xml)
{
  TT_TRY(tt_xml_parse(text, bytes, source, "system", xml));
  int count = (*xml)->count;
  if (count <= MOST_ELEMENTS) return ncclSuccess;
  tt_xml_free(*xml);
  *xml = NULL;
  return TT_FAIL(ncclInvalidUsage, "%s sees a machine of %d elements; with more than %d it cannot be searched", source,
                 count, MOST_ELEMENTS);
}

void tt_topology_dump(const struct tt_xml *xml, const char *path)
{
  if (tt_xml_write_file(xml, path) == ncclSuccess)
    TT_INFO(TT_GRAPH | TT_INIT, "topology: written to NCCL_TOPO_DUMP_FILE %s", path);
  else
    TT_WARN("NCCL_TOPO_DUMP_FILE %s is not written, or not wholly; the communicator goes on without", path);
}
