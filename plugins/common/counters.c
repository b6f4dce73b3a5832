/* See counters.h. */
#include "plugins/common/counters.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"

struct device {
  struct device *next;
  int dev;
  char name[64];
  uint64_t counts;
  uint64_t closed[TT_COUNT_KINDS]; /* of comms that are closed */
  uint64_t now[TT_COUNT_KINDS];    /* with those that are open; a reader's */
};

static struct {
  pthread_mutex_t lock; /* of all that follows */
  struct tt_counted *open;
  struct device *devices;
} list = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct device *find_device(int dev)
{
  struct device *device = list.devices;
  while (device && device->dev != dev) device = device->next;
  return device;
}

static void add(uint64_t sums[TT_COUNT_KINDS], const struct tt_counted *counted)
{
  for (int k = 0; k < TT_COUNT_KINDS; k++) {
    uint64_t value = tt_count_get(counted, k);
    sums[k] = k == TT_COUNT_DEPTH_MOST ? TT_MAX(sums[k], value) : sums[k] + value;
  }
}

/* A device is made with its first comm. Without memory for it only its sums are missing. */
void tt_counted_open(struct tt_counted *counted)
{
  pthread_mutex_lock(&list.lock);
  struct device *device = find_device(counted->dev);
  if (!device && (device = calloc(1, sizeof *device)) != NULL) {
    device->dev = counted->dev;
    snprintf(device->name, sizeof device->name, "%s", counted->name);
    device->next = list.devices;
    list.devices = device;
  }
  if (device) device->counts |= counted->counts;
  counted->next = list.open;
  counted->link = &list.open;
  if (list.open) list.open->link = &counted->next;
  list.open = counted;
  pthread_mutex_unlock(&list.lock);
}

void tt_counted_close(struct tt_counted *counted)
{
  pthread_mutex_lock(&list.lock);
  if (counted->link) { /* which its neighbours' closing changes */
    struct device *device = find_device(counted->dev);
    if (counted->refresh) counted->refresh(counted);
    tt_count_set(counted, TT_COUNT_DEPTH, 0); /* what was under way is nobody's now */
    if (device) add(device->closed, counted);
    *counted->link = counted->next;
    if (counted->next) counted->next->link = counted->link;
    counted->link = NULL;
  }
  pthread_mutex_unlock(&list.lock);
}

void tt_counted_forget(void)
{
  pthread_mutex_lock(&list.lock);
  while (list.devices) {
    struct device *device = list.devices;
    list.devices = device->next;
    free(device);
  }
  pthread_mutex_unlock(&list.lock);
}

static void show(const struct tt_counters *who, const uint64_t values[TT_COUNT_KINDS], tt_counters_visit *visit,
                 void *context)
{
  struct tt_counters counters = *who;
  counters.size = sizeof counters;
  counters.bytes = values[TT_COUNT_BYTES];
  counters.operations = values[TT_COUNT_OPERATIONS];
  counters.retries = values[TT_COUNT_RETRIES];
  counters.refused = values[TT_COUNT_REFUSED];
  counters.clear_to_sends = values[TT_COUNT_CLEAR_TO_SENDS];
  counters.clear_to_send_waits = values[TT_COUNT_CLEAR_TO_SEND_WAITS];
  counters.queue_depth = values[TT_COUNT_DEPTH];
  counters.queue_depth_most = values[TT_COUNT_DEPTH_MOST];
  visit(context, &counters);
}

ncclResult_t tt_counted_read(tt_counters_visit *visit, void *context)
{
  pthread_mutex_lock(&list.lock);
  for (struct device *device = list.devices; device; device = device->next)
    for (int k = 0; k < TT_COUNT_KINDS; k++) device->now[k] = device->closed[k];
  for (struct tt_counted *counted = list.open; counted; counted = counted->next) {
    struct device *device = find_device(counted->dev);
    if (counted->refresh) counted->refresh(counted);
    if (device) add(device->now, counted);
  }
  for (struct device *device = list.devices; device; device = device->next)
    show(
        &(struct tt_counters){
            .counts = device->counts, .what = TT_COUNTERS_DEVICE, .dev = device->dev, .name = device->name, .peer = ""},
        device->now, visit, context);
  for (struct tt_counted *counted = list.open; counted; counted = counted->next) {
    if (!counted->comm) continue;
    uint64_t values[TT_COUNT_KINDS] = {0};
    add(values, counted);
    show(&(struct tt_counters){.counts = counted->counts,
                               .what = counted->sends ? TT_COUNTERS_SEND : TT_COUNTERS_RECV,
                               .dev = counted->dev,
                               .comm = counted->comm,
                               .name = counted->name,
                               .peer = counted->peer},
         values, visit, context);
  }
  pthread_mutex_unlock(&list.lock);
  return ncclSuccess;
}
