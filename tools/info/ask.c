/* Asks a running process what its communicators are at; see core/report/listen.h for the other side. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/timer.h"
#include "base/uds.h"
#include "info.h"
#include "report/listen.h"

/* A process that is not stopped answers as soon as it is scheduled. */
#define ANSWER_MS 10000

static int refuse(int pid, const char *why)
{
  fprintf(stderr, "tutti-info: process %d: %s\n", pid, why);
  return 1;
}

/* A field of /proc/PID/status; false if there is none. */
static bool status_field(int pid, const char *field, char *value, size_t size)
{
  char path[64], line[512];
  bool found = false;
  snprintf(path, sizeof path, "/proc/%d/status", pid);
  FILE *file = fopen(path, "re");
  while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
    size_t length = strlen(field);
    if (strncmp(line, field, length) != 0 || line[length] != ':') continue;
    snprintf(value, size, "%s", line + length + 1 + strspn(line + length + 1, " \t"));
    value[strcspn(value, "\n")] = '\0';
    found = true;
  }
  if (file != NULL) fclose(file);
  return found;
}

/* Its number in its own pid namespace, which is in the socket's name. */
static int inner_pid(int pid)
{
  char value[256];
  if (!status_field(pid, "NSpid", value, sizeof value)) return pid;
  const char *last = strrchr(value, '\t');
  return atoi(last != NULL ? last + 1 : value);
}

/* Whether one of its mappings is the library: 1, 0, or -1 where that cannot be seen. */
static int has_library(int pid)
{
  char path[64], line[4096];
  int found = 0;
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  FILE *file = fopen(path, "re");
  if (file == NULL) return -1;
  while (!found && fgets(line, sizeof line, file) != NULL)
    found = strstr(line, "/libtutti.so") != NULL || strstr(line, "/tutti/compat/libnccl.so") != NULL;
  fclose(file);
  return found;
}

static bool is_stopped(int pid)
{
  char state[64];
  return status_field(pid, "State", state, sizeof state) && (state[0] == 'T' || state[0] == 't');
}

/* Connects to a socket that listens in the process itself: another may have taken a name like that. */
static int connect_to(int pid, const char *name)
{
  struct ucred peer;
  socklen_t bytes = sizeof peer;
  int fd;
  if (tt_uds_connect(name, &fd) != ncclSuccess || fd < 0) return -1;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid == pid) return fd;
  close(fd);
  return -1;
}

/* *seen: there is a socket of that name. */
static int find_socket(int pid, bool *seen)
{
  char path[64], line[512], begin[64];
  int fd = -1;
  *seen = false;
  snprintf(path, sizeof path, "/proc/%d/net/unix", pid);
  snprintf(begin, sizeof begin, "@" TT_REPORT_NAME "%d-", inner_pid(pid));
  FILE *file = fopen(path, "re");
  while (file != NULL && fd < 0 && fgets(line, sizeof line, file) != NULL) {
    char *name = strstr(line, begin);
    if (name == NULL) continue;
    *seen = true;
    name[strcspn(name, "\n")] = '\0';
    if (strlen(name + 1) < TT_UDS_NAME_BYTES) fd = connect_to(pid, name + 1);
  }
  if (file != NULL) fclose(file);
  return fd;
}

/* Copies the answer to stdout. False if the end did not come in time; *any: something came. */
static bool copy_answer(int fd, bool *any)
{
  char piece[65536];
  tt_deadline deadline = tt_deadline_in_ms(ANSWER_MS);
  *any = false;
  while (!tt_deadline_passed(deadline)) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    poll(&ready, 1, tt_deadline_poll_ms(deadline, 1000));
    ssize_t n = recv(fd, piece, sizeof piece, MSG_DONTWAIT);
    if (n == 0) return true;
    if (n < 0 && errno != EAGAIN && errno != EINTR) return *any;
    if (n > 0) fwrite(piece, 1, (size_t)n, stdout);
    *any |= n > 0;
  }
  return false;
}

static const char stopped[] =
    "it is stopped (SIGSTOP, or a debugger) and cannot answer; the other ranks' processes can "
    "say what they wait for";

static int why_silent(int pid, bool seen)
{
  switch (has_library(pid)) {
  case 0:
    return refuse(pid, "it has not loaded Tutti");
  case 1:
    return refuse(pid, seen ? "its report socket cannot be reached: it is in another network namespace (nsenter -t PID "
                              "-n), or just ended"
                            : "it has no communicator of several ranks now, or TUTTI_REPORT=0 was set");
  default:
    return refuse(pid, "it has no report socket, and whether it has loaded Tutti cannot be seen");
  }
}

int info_ask(int pid, bool as_json)
{
  char path[64], why[160];
  struct stat owner;
  bool seen, any;
  snprintf(path, sizeof path, "/proc/%d", pid);
  if (stat(path, &owner) != 0) return refuse(pid, "there is no such process");
  if (geteuid() != 0 && owner.st_uid != geteuid()) {
    snprintf(why, sizeof why, "it belongs to user %u; only that user and root may ask", (unsigned)owner.st_uid);
    return refuse(pid, why);
  }
  int fd = find_socket(pid, &seen);
  if (fd < 0) return why_silent(pid, seen);
  if (is_stopped(pid)) {
    close(fd);
    return refuse(pid, stopped);
  }
  const char *word = as_json ? TT_REPORT_JSON : TT_REPORT_TEXT;
  bool sent = send(fd, word, TT_REPORT_WORD_BYTES, MSG_NOSIGNAL) == TT_REPORT_WORD_BYTES;
  bool whole = sent && copy_answer(fd, &any);
  close(fd);
  if (sent && whole && any) return 0;
  if (is_stopped(pid)) return refuse(pid, stopped);
  return refuse(pid, sent && whole ? "its last communicator was destroyed just now" : "it did not answer in time");
}
