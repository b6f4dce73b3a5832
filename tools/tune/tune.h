/* The commands of tutti-tune. Each writes to standard output; where it does not end well, `error` is a sentence. */
#ifndef TUNE_TUNE_H
#define TUNE_TUNE_H

#include "json.h"
#include "set.h"

/* Exit statuses. */
enum tune_status { TUNE_GOOD = 0, TUNE_WRONG_PROGRAM = 1, TUNE_USAGE = 2, TUNE_FAILED = 3 };

/* All pairs of collective and algorithm, or all algorithms of one collective. */
enum tune_status tune_list(const struct tune_options *options, char *error, size_t size);
/* The programs of one collective by one algorithm. */
enum tune_status tune_show(const struct tune_options *options, char *error, size_t size);
/* Predicted times. */
enum tune_status tune_predict(const struct tune_options *options, char *error, size_t size);

/* Choices, with and without a tuner. */
enum tune_status tune_decide(const struct tune_options *options, char *error, size_t size);

/* What an instruction is in a picture; in the order of the legend. */
enum tune_kind {
  TUNE_SEND,
  TUNE_RECEIVE,
  TUNE_FORWARD,
  TUNE_EXCHANGE,
  TUNE_ADD,
  TUNE_ADD_SEND,
  TUNE_COPY,
  TUNE_MULTICAST,
  TUNE_NOTE,
  TUNE_SEMAPHORE,
  TUNE_KINDS
};
struct tune_kind_look {
  char letter;
  const char *name, *colour;
};
extern const struct tune_kind_look tune_looks[TUNE_KINDS];
enum tune_kind tune_kind_of(const struct tt_program *program, uint32_t instruction);

/* Prints a simulation in which instructions take one each, as letters. */
bool tune_picture(const struct tune_set *set, const struct tt_simulation *simulation, const char *title, char *error,
                  size_t size);
/* Writes a simulation of `nsets` channels to a file, or to standard output ("-"). `unit` is that of its times. */
bool tune_svg(const struct tune_set *sets, int nsets, const struct tt_simulation *simulation, const char *path,
              const char *title, const char *unit, char *error, size_t size);

void tune_program_json(struct tool_json *json, const struct tt_program *program);
/* Prints what was built, and frees it. */
bool tune_print_json(struct tool_json *json, char *error, size_t size);

#endif
