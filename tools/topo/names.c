/* Names from files. See names.h. */
#include "names.h"

#include "base/text.h"

const char *topo_net_name(const struct tt_topology *t, const struct tt_xml *xml, const struct tt_node *net)
{
  for (int e = 0; e < xml->count; e++) {
    const char *dev = tt_xml_is(xml, e, "net") ? tt_xml_get(xml, e, "dev") : NULL;
    int64_t number;
    if (!dev || !tt_text_int(dev, &number) || number != net->net.dev) continue;
    if (t->nhosts == 1 || xml->elements[e].line == net->line) return tt_xml_get(xml, e, "name");
  }
  return NULL;
}
