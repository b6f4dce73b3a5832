/* Rules of the table tuner, and the parser of the text that they are written in: comma separated values in the format
 * of NCCL's example tuner, one rule a line. docs/tuner-plugins.md has the format. The parser knows of no file and logs
 * nothing; whatever is wrong comes back as a sentence with its place. */
#ifndef TT_TUNER_RULES_H
#define TT_TUNER_RULES_H

#include <stddef.h>
#include <stdint.h>
#include "nccl.h"

/* "Any", in the members that say so. */
#define TT_RULE_ANY (-1)

struct tt_table_rule {
  unsigned line;                          /* of the file, from 1 */
  int collective;                         /* ncclFunc_t */
  uint64_t min_bytes, max_bytes;          /* both ends are included; UINT64_MAX is no limit */
  int algorithm, protocol;                /* rows and columns of the cost table */
  int nchannels;                          /* TT_RULE_ANY: what the core would use */
  int nnodes, nranks, pipe_ops, reg_buff; /* to be equal, or TT_RULE_ANY */
};

struct tt_table_rules {
  struct tt_table_rule *rule;
  int count;
};

/* Where and what the first mistake is. `text` names the value, what is wrong with it and the remedy. */
struct tt_table_mistake {
  unsigned line, column; /* of the value, in bytes, from 1 */
  char text[512];
};

/* Reads all rules. ncclInvalidUsage for a mistake, ncclSystemError for lack of memory; *mistake is then filled and
 * there are no rules. `text` need not end with a zero. */
ncclResult_t tt_table_parse(const char *text, size_t bytes, struct tt_table_rules *rules,
                            struct tt_table_mistake *mistake);
void tt_table_free(struct tt_table_rules *rules);

#define TT_RULE_TEXT 160
/* A rule as a line of such a file, all ten columns. Returns text, of TT_RULE_TEXT bytes. */
const char *tt_table_rule_text(const struct tt_table_rule *rule, char *text);

/* "allreduce", "tree" and so on; "?" for numbers that have no name. */
const char *tt_table_collective(int collective);
const char *tt_table_algorithm(int algorithm);
const char *tt_table_protocol(int protocol);

#endif
