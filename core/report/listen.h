/* Who asks from outside: tutti-info --pid by an abstract Unix socket, and a signal.
 *
 * While the process has communicators of several ranks, one thread of it waits for either. The socket's name is
 * "tutti-report-PID-" and a random part; it has no place in a file system, so nothing is left after kill -9, and it is
 * found by its name among those of /proc/PID/net/unix. Only the same user and root are answered. A client says TEXT or
 * JSON in four bytes, and gets the report and the end of the stream. */
#ifndef TT_REPORT_LISTEN_H
#define TT_REPORT_LISTEN_H

#define TT_REPORT_NAME "tutti-report-" /* then the process id, as the process itself knows it, and "-" */
#define TT_REPORT_WORD_BYTES 4
#define TT_REPORT_TEXT "TEXT"
#define TT_REPORT_JSON "JSON"

/* Counted: as many stops end the thread. A failure is logged, and then nobody is answered. Any thread. */
void tt_listen_start(void);
void tt_listen_stop(void);

#endif
