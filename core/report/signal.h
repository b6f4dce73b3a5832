/* A signal on which the process writes its report to the log (TUTTI_REPORT_SIGNAL). A handler of the application is
 * never replaced. */
#ifndef TT_REPORT_SIGNAL_H
#define TT_REPORT_SIGNAL_H

/* A descriptor that becomes readable at the signal; -1 if none is wanted, or another handler has it, which is logged.
 */
int tt_report_signal_open(void);
/* Reads it, and writes the report to the log. */
void tt_report_signalled(int fd);
/* The handler stays, and does nothing from then on: taking it away would make a late signal end the process. */
void tt_report_signal_close(int fd); /* -1 is allowed */

#endif
