/* Between the table of values and its check. */
#ifndef TT_BASE_PARAM_INTERNAL_H
#define TT_BASE_PARAM_INTERNAL_H

#include "base/param.h"
#include "base/param_file.h"

/* True if the value is no integer or out of range, so that the default is in force. */
bool tt_param_malformed(enum tt_param_id id);
/* The files, read if they were not yet; constant afterwards. */
const struct tt_param_files *tt_param_files(void);
/* Makes the next tt_param_check check again. */
void tt_param_forget_check(void);
/* Reports names set in the environment or in a file that Tutti does not obey. */
void tt_param_report_unknown(void);

#endif
