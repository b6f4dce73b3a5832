/* Completions: in another order, and some of them errors. */
#include "fake.h"

#include <string.h>
#include <time.h>

#define HELD (sizeof(((struct fake_object *)0)->held) / sizeof(struct fi_cq_data_entry))

/* Takes one of those that are held. */
static struct fi_cq_data_entry take(struct fake_object *known, int at)
{
  struct fi_cq_data_entry entry = known->held[at];
  memmove(&known->held[at], &known->held[at + 1], (size_t)(known->held_count - at - 1) * sizeof entry);
  known->held_count--;
  return entry;
}

static uint64_t now_ms(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

static void fill(struct fid_cq *cq, struct fake_object *known)
{
  const struct fi_ops_cq *ops = known->real[0];
  size_t room = HELD - (size_t)known->held_count;
  bool first = known->held_count == 0;
  ssize_t got = room ? ops->read(cq, &known->held[known->held_count], room) : 0;
  bool reads = false; /* each lags, whatever is held from before */
  for (ssize_t i = 0; i < got; i++) reads |= (known->held[known->held_count++].flags & FI_READ) != 0;
  if (got > 0 && (first || reads)) known->since = now_ms();
}

static bool is_late(const struct fake_object *known)
{
  uint64_t held_ms = now_ms() - known->since, late = (uint64_t)fake_settings()->late;
  uint64_t lag = known->lags ? (uint64_t)fake_settings()->lag : 0;
  for (int i = 0; i < known->held_count; i++) {
    if (known->held[i].flags & (FI_RECV | FI_REMOTE_WRITE) && held_ms < late) return true;
    if (known->held[i].flags & FI_READ && held_ms < lag) return true;
  }
  return false;
}

static ssize_t read_queue(struct fid_cq *cq, void *out, size_t count)
{
  const struct fake_settings *settings = fake_settings();
  struct fake_object *known = fake_known(cq);
  const struct fi_ops_cq *ops = known->real[0];
  struct fi_cq_data_entry *entries = out;
  if (!settings->shuffle && !settings->break_at && !settings->late && !settings->lag) return ops->read(cq, out, count);
  if (known->broken) return -FI_EAVAIL;
  fill(cq, known);
  if (is_late(known)) return -FI_EAGAIN;
  size_t given = 0;
  while (given < count && known->held_count) {
    if (settings->shuffle && fake_random() % 4 == 0) break;
    int at = settings->shuffle ? (int)(fake_random() % (unsigned)known->held_count) : 0;
    struct fi_cq_data_entry entry = take(known, at);
    if ((entry.flags & (FI_SEND | FI_WRITE)) && fake_is_broken(entry.op_context)) {
      known->broken = entry.op_context;
      return given ? (ssize_t)given : -FI_EAVAIL;
    }
    entries[given++] = entry;
  }
  if (given) return (ssize_t)given;
  struct fi_cq_data_entry none;
  /* Errors of the real queue are seen where nothing is held. */
  if (known->held_count) return -FI_EAGAIN;
  ssize_t got = ops->read(cq, &none, 1);
  if (got != 1) return got;
  known->held[known->held_count++] = none;
  known->since = now_ms();
  return -FI_EAGAIN;
}

static ssize_t read_error(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags)
{
  struct fake_object *known = fake_known(cq);
  const struct fi_ops_cq *ops = known->real[0];
  if (!known->broken) return ops->readerr(cq, entry, flags);
  memset(entry, 0, sizeof *entry);
  entry->op_context = known->broken;
  entry->err = FI_EIO;
  entry->prov_errno = 12;
  known->broken = NULL;
  return 1;
}

static const char *words_of(struct fid_cq *cq, int error, const void *data, char *text, size_t size)
{
  (void)cq, (void)data;
  if (error == 12 && text && size) strncpy(text, "made-up status 12", size - 1);
  return error == 12 ? "made-up status 12" : "";
}

void fake_queue(struct fid_cq *cq)
{
  static struct fi_ops_cq replaced;
  static unsigned queues; /* one for each NIC of a comm, in order */
  struct fake_object *known = fake_object(cq);
  known->real[0] = cq->ops;
  known->held_count = 0;
  known->broken = NULL;
  bool breaks = fake_settings()->break_at != 0;
  pthread_mutex_lock(&fake_lock);
  known->lags = queues++ % 2 == 1;
  replaced = *cq->ops;
  replaced.read = read_queue;
  replaced.readerr = read_error;
  if (breaks) replaced.strerror = words_of;
  pthread_mutex_unlock(&fake_lock);
  cq->ops = &replaced;
}
