/* Reports for the process itself. */
#include "report/report.h"

#include <stdlib.h>
#include <string.h>
#include "api/check.h"
#include "base/check.h"
#include "tutti.h"

__attribute__((visibility("default"))) ncclResult_t tuttiCommReport(ncclComm_t comm, tuttiReportFormat_t format,
                                                                    char *buffer, size_t *bytes)
{
  char *text;
  size_t needed;
  TT_TRY(tt_api_check_pointer("tuttiCommReport", "bytes", bytes));
  if (*bytes > 0) TT_TRY(tt_api_check_pointer("tuttiCommReport", "buffer", buffer));
  if (format != tuttiReportText && format != tuttiReportJson)
    return TT_FAIL(ncclInvalidArgument,
                   "tuttiCommReport: format is %d; allowed are tuttiReportText and tuttiReportJson", (int)format);
  TT_TRY(tt_report_write(comm, format == tuttiReportJson, &text, &needed));
  size_t room = *bytes;
  *bytes = ++needed;
  if (room > 0) {
    size_t fits = TT_MIN(room, needed) - 1;
    memcpy(buffer, text, fits);
    buffer[fits] = '\0';
  }
  free(text);
  return ncclSuccess;
}

__attribute__((visibility("default"))) ncclResult_t tuttiCommNetStats(ncclComm_t comm, tuttiNetStats_t *stats)
{
  TT_TRY(tt_api_check_pointer("tuttiCommNetStats", "stats", stats));
  if (stats->size < offsetof(tuttiNetStats_t, busyNs)) /* the first release has no more */
    return TT_FAIL(ncclInvalidArgument, "tuttiCommNetStats: stats->size is %zu; set it to sizeof(tuttiNetStats_t), %zu",
                   stats->size, sizeof *stats);
  return tt_report_net_stats(comm, stats);
}
