/* Topology and graph files: NCCL's XML as a tree in memory, read with expat and written as NCCL reads it.
 *
 * Elements are named by their index; element 0 is the root. Each knows its parent, its first child and its next
 * sibling, so that a walk needs no recursion. Elements and attributes that nobody knows are kept, and written again.
 * Everything that is refused is refused with ncclInvalidUsage and a sentence that names file, line, thing and remedy. A
 * tree belongs to one thread at a time. */
#ifndef TT_TOPOLOGY_XML_H
#define TT_TOPOLOGY_XML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "nccl.h"

enum {
  TT_XML_MOST_ELEMENTS = 65536, /* as many as NCCL allows a graph file */
  TT_XML_MOST_DEPTH = 64,       /* elements within elements */
  TT_XML_MOST_ATTRIBUTES = 256, /* of an element; NCCL keeps 16 */
  TT_XML_MOST_BYTES = 16 << 20  /* of a file */
};

struct tt_xml_attribute {
  const char *name, *value;
  int next; /* of the same element; -1: none */
};

struct tt_xml_element {
  const char *name;
  int line;                       /* of the file; 0 if added */
  int parent;                     /* -1: the root */
  int first, last, next;          /* first and last child, next sibling; -1: none */
  int attributes, last_attribute; /* -1: none */
};

struct tt_xml {
  const char *source; /* what messages call it: the file's path */
  struct tt_xml_element *elements;
  int count, room;
  struct tt_xml_attribute *attributes;
  int nattributes, attribute_room;
  struct tt_xml_text *texts; /* all strings */
};

/* Reads a file whose root must be `root`, in version 1; nothing but a regular one, since others may have no end. */
ncclResult_t tt_xml_read(const char *path, const char *root, struct tt_xml **xml);
/* The same from what is open, which may be a pipe, to its end; `source` is the name used in messages. */
ncclResult_t tt_xml_read_open(FILE *file, const char *source, const char *root, struct tt_xml **xml);
/* The same from memory. */
ncclResult_t tt_xml_parse(const char *text, size_t bytes, const char *source, const char *root, struct tt_xml **xml);
/* A tree without elements. */
ncclResult_t tt_xml_create(const char *source, struct tt_xml **xml);
void tt_xml_free(struct tt_xml *xml);

/* Appends an element to its parent's (`parent` -1: the root, which must be the first), inserts it in front of its
 * parent's child `before` (-1: appends), or sets an attribute. Names and values are copied. A parent's number is always
 * below those of its children. */
ncclResult_t tt_xml_add(struct tt_xml *xml, int parent, const char *name, int *element);
ncclResult_t tt_xml_insert(struct tt_xml *xml, int parent, int before, const char *name, int *element);
ncclResult_t tt_xml_set(struct tt_xml *xml, int element, const char *name, const char *value);

/* An attribute's value; NULL if the element has no such one. */
const char *tt_xml_get(const struct tt_xml *xml, int element, const char *name);
/* An attribute that must be there. */
ncclResult_t tt_xml_need(const struct tt_xml *xml, int element, const char *name, const char **value);
ncclResult_t tt_xml_need_int(const struct tt_xml *xml, int element, const char *name, int64_t least, int64_t most,
                             int *value);
/* An attribute that may be absent: then `otherwise`. */
ncclResult_t tt_xml_int(const struct tt_xml *xml, int element, const char *name, int64_t least, int64_t most,
                        int otherwise, int *value);
/* The first child of this name from sibling `from` on; -1: none. tt_xml_child(xml, xml->elements[e].first, "pci"). */
int tt_xml_child(const struct tt_xml *xml, int from, const char *name);
bool tt_xml_is(const struct tt_xml *xml, int element, const char *name);
/* "file:line: <pci busid="0000:01:00.0">", for messages; returns `text`. */
const char *tt_xml_where(const struct tt_xml *xml, int element, char *text, size_t size);

/* Writes the tree as NCCL reads it: no prolog, two blanks a level. */
ncclResult_t tt_xml_write(const struct tt_xml *xml, FILE *out);
ncclResult_t tt_xml_write_file(const struct tt_xml *xml, const char *path);

#endif
