/* From text to tree: expat's events, and what a topology file must not have. See xml.h. NCCL's own reader refuses some
 * files that are sound XML (a prolog, tabs, attributes on lines of their own, more than 16 of them); these are read. */
#include "topology/xml.h"

#include <ctype.h>
#include <errno.h>
#include <expat.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/regular.h"

struct reading {
  XML_Parser parser;
  struct tt_xml *xml;
  const char *root;
  int open, depth; /* the innermost element that is open, and how many are */
  ncclResult_t result;
};

static int line_of(const struct reading *r)
{
  return (int)XML_GetCurrentLineNumber(r->parser);
}

static void stop(struct reading *r, ncclResult_t result)
{
  r->result = result;
  XML_StopParser(r->parser, XML_FALSE);
}

static ncclResult_t check_root(const struct reading *r, int element)
{
  const struct tt_xml *xml = r->xml;
  if (!tt_xml_is(xml, element, r->root))
    return TT_FAIL(ncclInvalidUsage, "%s:%d: the outermost element is <%.64s>; it must be <%s version=\"1\">",
                   xml->source, xml->elements[element].line, xml->elements[element].name, r->root);
  const char *version;
  TT_TRY(tt_xml_need(xml, element, "version", &version));
  if (strcmp(version, "1") != 0)
    return TT_FAIL(ncclInvalidUsage, "%s:%d: <%s> is of version \"%.64s\"; only version 1 is known", xml->source,
                   xml->elements[element].line, r->root, version);
  return ncclSuccess;
}

static ncclResult_t begin(struct reading *r, const char *name, const char **attributes)
{
  int element, nattributes = 0;
  while (attributes[2 * nattributes]) nattributes++;
  if (nattributes > TT_XML_MOST_ATTRIBUTES)
    return TT_FAIL(ncclInvalidUsage, "%s:%d: <%.64s> has %d attributes; leave out all but %d", r->xml->source,
                   line_of(r), name, nattributes, TT_XML_MOST_ATTRIBUTES);
  if (r->depth == TT_XML_MOST_DEPTH)
    return TT_FAIL(ncclInvalidUsage, "%s:%d: <%.64s> lies within more than %d others; no such file is that deep",
                   r->xml->source, line_of(r), name, TT_XML_MOST_DEPTH);
  TT_TRY(tt_xml_add(r->xml, r->open, name, &element));
  r->xml->elements[element].line = line_of(r);
  for (; attributes[0]; attributes += 2) TT_TRY(tt_xml_set(r->xml, element, attributes[0], attributes[1]));
  if (r->depth == 0) TT_TRY(check_root(r, element));
  r->open = element;
  r->depth++;
  return ncclSuccess;
}

static void on_begin(void *data, const char *name, const char **attributes)
{
  struct reading *r = data;
  ncclResult_t result = r->result == ncclSuccess ? begin(r, name, attributes) : r->result;
  if (result != ncclSuccess) stop(r, result);
}

static void on_end(void *data, const char *name)
{
  (void)name;
  struct reading *r = data;
  if (r->result != ncclSuccess) return; /* stopped at an element that was not opened */
  r->open = r->xml->elements[r->open].parent;
  r->depth--;
}

static void on_text(void *data, const char *text, int length)
{
  struct reading *r = data;
  int skip = 0;
  while (skip < length && isspace((unsigned char)text[skip])) skip++;
  if (skip == length || r->result != ncclSuccess) return;
  stop(r, TT_FAIL(ncclInvalidUsage, "%s:%d: the text \"%.*s\" stands between elements; remove it", r->xml->source,
                  line_of(r), TT_MIN(length - skip, 32), text + skip));
}

/* Entities are of no use here, and a way to make a small file huge. */
static void on_doctype(void *data, const char *name, const char *system, const char *public, int internal)
{
  (void)name, (void)system, (void)public, (void)internal;
  struct reading *r = data;
  stop(r, TT_FAIL(ncclInvalidUsage, "%s:%d: the file has a DOCTYPE; remove it", r->xml->source, line_of(r)));
}

/* What expat says, and what was open then: a missing end is found far below the element that lacks it. */
static ncclResult_t malformed(const struct reading *r)
{
  char within[128] = "";
  if (r->open >= 0)
    snprintf(within, sizeof(within), " within <%.64s> of line %d", r->xml->elements[r->open].name,
             r->xml->elements[r->open].line);
  return TT_FAIL(ncclInvalidUsage, "%s:%d:%d: %s%s; put the file right", r->xml->source, line_of(r),
                 (int)XML_GetCurrentColumnNumber(r->parser) + 1, XML_ErrorString(XML_GetErrorCode(r->parser)), within);
}

/* NCCL skips comments whatever is in them, XML forbids some: so comments become blanks, lines stay. Not within tags. */
static void blank_comments(char *text, size_t bytes)
{
  bool in_tag = false;
  char quote = 0;
  for (size_t i = 0; i < bytes; i++) {
    if (!in_tag && bytes - i >= 4 && memcmp(text + i, "<!--", 4) == 0) {
      const char *end = memmem(text + i + 4, bytes - i - 4, "-->", 3);
      if (!end) return; /* expat says where it begins */
      for (size_t stop = (size_t)(end - text) + 3; i < stop; i++)
        if (text[i] != '\n') text[i] = ' ';
      i--;
    } else if (in_tag && (text[i] == '"' || text[i] == '\'')) {
      quote = quote == text[i] ? 0 : quote ? quote : text[i];
    } else if (!quote) {
      if (text[i] == '<') in_tag = true;
      if (text[i] == '>') in_tag = false;
    }
  }
}

ncclResult_t tt_xml_parse(const char *text, size_t bytes, const char *source, const char *root, struct tt_xml **xml)
{
  struct reading r = {.root = root, .open = -1};
  *xml = NULL;
  if (bytes > TT_XML_MOST_BYTES)
    return TT_FAIL(ncclInvalidUsage, "%s is longer than %d bytes; no such file is that long", source,
                   TT_XML_MOST_BYTES);
  TT_TRY(tt_xml_create(source, &r.xml));
  char *copy = malloc(bytes + 1);
  r.parser = XML_ParserCreate(NULL);
  if (!r.parser || !copy) {
    r.result = TT_FAIL(ncclSystemError, "no memory to read %s", source);
    goto out;
  }
  XML_SetUserData(r.parser, &r);
  XML_SetElementHandler(r.parser, on_begin, on_end);
  XML_SetCharacterDataHandler(r.parser, on_text);
  XML_SetStartDoctypeDeclHandler(r.parser, on_doctype);
  if (bytes > 0) memcpy(copy, text, bytes);
  blank_comments(copy, bytes);
  if (XML_Parse(r.parser, copy, (int)bytes, XML_TRUE) != XML_STATUS_OK && r.result == ncclSuccess)
    r.result = malformed(&r);
out:
  free(copy);
  if (r.parser) XML_ParserFree(r.parser);
  if (r.result == ncclSuccess)
    *xml = r.xml;
  else
    tt_xml_free(r.xml);
  return r.result;
}

ncclResult_t tt_xml_read_open(FILE *file, const char *source, const char *root, struct tt_xml **xml)
{
  ncclResult_t result;
  char *text = NULL;
  *xml = NULL;
  size_t bytes = 0, room = (size_t)64 << 10;
  for (;;) {
    char *larger = realloc(text, room);
    if (!larger) {
      result = TT_FAIL(ncclSystemError, "no memory to read %s", source);
      goto out;
    }
    text = larger;
    bytes += fread(text + bytes, 1, room - bytes, file);
    if (bytes < room || bytes > TT_XML_MOST_BYTES) break;
    room *= 2;
  }
  if (ferror(file)) {
    result = TT_FAIL(ncclInvalidUsage, "cannot read %s: %s; name another file", source, strerror(errno));
    goto out;
  }
  result = tt_xml_parse(text, bytes, source, root, xml);
out:
  free(text);
  return result;
}

ncclResult_t tt_xml_read(const char *path, const char *root, struct tt_xml **xml)
{
  struct stat status;
  const char *why;
  *xml = NULL;
  int fd = tt_regular_open(path, &status, &why);
  if (fd < 0) return TT_FAIL(ncclInvalidUsage, "cannot open %s: %s; name a file", path, why);
  FILE *file = fdopen(fd, "r");
  if (!file) {
    close(fd);
    return TT_FAIL(ncclSystemError, "no memory to read %s", path);
  }
  ncclResult_t result = tt_xml_read_open(file, path, root, xml);
  fclose(file);
  return result;
}
