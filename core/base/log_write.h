/* Writing a line so that the application never notices a broken log. */
#ifndef TT_BASE_LOG_WRITE_H
#define TT_BASE_LOG_WRITE_H

#include <stddef.h>

/* One write() where the file takes the whole line at once. A closed pipe, a full disk or a file size limit loses the
 * line, without a signal. Any thread. */
void tt_log_write(int fd, const char *line, size_t bytes);

#endif
