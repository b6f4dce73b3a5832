/* The grammar of NCCL_ALGO and NCCL_PROTO:
 *
 *     value = [list] { ";" function ":" list }      only the first entry may lack a function
 *     list  = ["^"] name { "," name }               ^ takes all but these
 *
 * Case does not matter, blanks around names neither. A list without a function is for all; a later entry replaces an
 * earlier one. Pure: tests and tools call it with any text. */
#ifndef TT_TUNING_ENV_H
#define TT_TUNING_ENV_H

#include <stdbool.h>
#include <stdint.h>
#include "tutti/program.h"

/* Names by number; NULL where a number has no name of its own for users. */
struct tt_env_names {
  const char *const *names;
  int count;
};
extern const struct tt_env_names tt_env_algorithms, tt_env_protocols;

struct tt_env_list {
  const char *variable, *value;   /* value NULL: unset; the text must live as long as this */
  bool set[TT_NUM_FUNCS];         /* the value says something about this collective */
  bool inverted[TT_NUM_FUNCS];    /* by what it excludes */
  uint32_t allowed[TT_NUM_FUNCS]; /* bits by number; all ones where nothing is said */
};

/* ncclInvalidUsage naming the variable, its value, the wrong piece and the allowed names. value NULL or empty: unset.
 */
ncclResult_t tt_env_parse(const char *variable, const char *value, const struct tt_env_names *names,
                          struct tt_env_list *list);

#endif
