/* What tests of detection have in common. */
#ifndef TEST_DETECTING_H
#define TEST_DETECTING_H

#include "sysfs.h"
#include "topology/detect.h"

extern const struct tt_detect_cpu detecting_skylake;

struct tt_xml *detect(const struct tt_detect_request *request, struct tt_detect_outcome *outcome);
/* A tree as text, the caller's to free; the tree is freed. */
char *text_of(struct tt_xml *xml);
char *detected(const struct tt_detect_request *request);
/* That of one GPU on a bus of a sysfs. */
char *one_gpu(struct sysfs *s, const char *bus, int numa);
/* A text has a part, or lacks it. */
void has(const char *text, const char *part);
void lacks(const char *text, const char *part);
/* Frees a text that can be built: nothing that the model needs is missing. */
void builds(char *text);

#endif
