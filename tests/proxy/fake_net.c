/* The scripted network. One lock; any thread. */
#include "fake_net.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_MESSAGES 100000

struct comm {
  bool send;
  int posted;
};

struct region {
  struct comm *comm;
  char *data;
  size_t bytes;
};

/* Of a device, and received but not flushed. */
struct place {
  char *data, *message;
  size_t bytes;
};

struct request {
  bool used, done, flush;
  struct comm *comm;
  int number;
  char *data;
  size_t bytes;
};

static struct {
  pthread_mutex_t lock;
  struct fake_mood mood;
  struct fake_count count;
  struct comm comms[2];
  struct region *regions[64];
  struct request requests[64];
  struct place device[4], late[64];
  char *messages[MAX_MESSAGES]; /* by number; NULL: not sent yet */
  size_t sizes[MAX_MESSAGES];
  int calls[FAKE_TEST + 1];
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct tt_net *fake_net(void)
{
  return (struct tt_net *)(void *)&fake;
}

struct tt_net *tt_net_retain(struct tt_net *net)
{
  return net;
}

ncclResult_t tt_net_close(struct tt_net *net)
{
  (void)net;
  return ncclSuccess;
}

int tt_net_version(const struct tt_net *net)
{
  (void)net;
  return 12;
}

const char *tt_net_name(const struct tt_net *net)
{
  (void)net;
  return "Fake";
}

void fake_set_mood(const struct fake_mood *mood)
{
  pthread_mutex_lock(&fake.lock);
  fake.mood = *mood;
  memset(fake.calls, 0, sizeof(fake.calls));
  pthread_mutex_unlock(&fake.lock);
}

void fake_open(const struct fake_mood *mood, void **send_comm, void **recv_comm)
{
  for (int i = 0; i < MAX_MESSAGES; i++) free(fake.messages[i]);
  memset(fake.messages, 0, sizeof(fake.messages));
  memset(fake.requests, 0, sizeof(fake.requests));
  memset(fake.device, 0, sizeof(fake.device));
  for (int i = 0; i < 64; i++) free(fake.late[i].message);
  memset(fake.late, 0, sizeof(fake.late));
  memset(&fake.count, 0, sizeof(fake.count));
  fake.comms[0] = (struct comm){.send = true};
  fake.comms[1] = (struct comm){.send = false};
  fake_set_mood(mood);
  *send_comm = &fake.comms[0];
  *recv_comm = &fake.comms[1];
}

void *fake_send_comm(void)
{
  return &fake.comms[0];
}

struct fake_count fake_counts(void)
{
  pthread_mutex_lock(&fake.lock);
  struct fake_count count = fake.count;
  pthread_mutex_unlock(&fake.lock);
  return count;
}

static bool chance(int percent)
{
  return (int)(rand_r(&fake.mood.seed) % 100u) < percent;
}

static bool fails(enum fake_call call)
{
  return fake.mood.failing == call && fake.calls[call]++ >= fake.mood.fail_after;
}

static void fault(const char *what)
{
  fprintf(stderr, "fake net: %s\n", what);
  fake.count.faults++;
}

void fake_device_memory(void *memory, size_t bytes)
{
  int i = 0;
  while (fake.device[i].data) i++;
  fake.device[i] = (struct place){.data = memory, .bytes = bytes};
}

static bool is_device(const char *data)
{
  for (int i = 0; i < 4; i++)
    if (fake.device[i].data && data >= fake.device[i].data && data < fake.device[i].data + fake.device[i].bytes)
      return true;
  return false;
}

ncclResult_t tt_net_reg_mr(struct tt_net *net, void *comm, void *data, size_t bytes, int type, void **mhandle)
{
  (void)net;
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&fake.lock);
  *mhandle = NULL;
  int i = 0;
  while (i < 64 && fake.regions[i]) i++;
  if (type != (is_device(data) ? NCCL_PTR_CUDA : NCCL_PTR_HOST) || i == 64) fault("bad or too many registrations");
  fake.count.of_device += is_device(data);
  if (fails(FAKE_REG) || i == 64) {
    result = ncclSystemError;
  } else {
    struct region *region = malloc(sizeof(*region));
    *region = (struct region){comm, data, bytes};
    *mhandle = fake.regions[i] = region;
    fake.count.registered++;
    fake.count.ever_registered++;
  }
  pthread_mutex_unlock(&fake.lock);
  return result;
}

/* As the other, with a descriptor that must be of this very memory. */
ncclResult_t tt_net_reg_mr_dmabuf(struct tt_net *net, void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                  int fd, void **mhandle)
{
  struct fake_dmabuf shown = {0};
  pthread_mutex_lock(&fake.lock);
  bool good = pread(fd, &shown, sizeof(shown), 0) == sizeof(shown) && shown.memory == data && shown.bytes == bytes;
  if (!good || offset != 0 || !is_device(data)) fault("the dma-buf is of other memory");
  bool failing = fails(FAKE_DMABUF);
  fake.count.dmabufs += !failing;
  pthread_mutex_unlock(&fake.lock);
  if (failing) return ncclSystemError;
  return tt_net_reg_mr(net, comm, data, bytes, type, mhandle);
}

ncclResult_t tt_net_dereg_mr(struct tt_net *net, void *comm, void *mhandle)
{
  (void)net;
  pthread_mutex_lock(&fake.lock);
  int i = 0;
  while (i < 64 && fake.regions[i] != mhandle) i++;
  if (i == 64 || fake.regions[i]->comm != comm) {
    fault("deregistered what was not registered");
  } else {
    free(fake.regions[i]);
    fake.regions[i] = NULL;
    fake.count.registered--;
  }
  pthread_mutex_unlock(&fake.lock);
  return ncclSuccess;
}

/* Called with the lock held. */
static ncclResult_t post(struct comm *comm, char *data, size_t bytes, void *mhandle, enum fake_call call,
                         void **request)
{
  int i = 0;
  while (i < 64 && fake.regions[i] != mhandle) i++;
  if (i == 64 || fake.regions[i]->comm != comm || data < fake.regions[i]->data ||
      data + bytes > fake.regions[i]->data + fake.regions[i]->bytes)
    fault("memory is not registered");
  *request = NULL;
  if (fails(call)) return ncclRemoteError;
  if (chance(fake.mood.null_percent)) return ncclSuccess;
  for (i = 0; fake.requests[i].used;) i++;
  fake.requests[i] =
      (struct request){.used = true, .comm = comm, .number = comm->posted++, .data = data, .bytes = bytes};
  fake.count.in_flight++;
  *request = &fake.requests[i];
  return ncclSuccess;
}

ncclResult_t tt_net_isend(struct tt_net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
                          void *phandle, void **request)
{
  (void)net;
  (void)phandle;
  pthread_mutex_lock(&fake.lock);
  ncclResult_t result = post(comm, data, bytes, mhandle, FAKE_ISEND, request);
  fake.count.sends += *request != NULL;
  fake.count.tag = tag;
  pthread_mutex_unlock(&fake.lock);
  return result;
}

ncclResult_t tt_net_irecv(struct tt_net *net, void *comm, int n, void **data, size_t *bytes, int *tags, void **mhandles,
                          void **phandles, void **request)
{
  (void)net;
  (void)tags;
  (void)phandles;
  pthread_mutex_lock(&fake.lock);
  if (n != 1 || *request != NULL) fault("irecv's arguments");
  ncclResult_t result = post(comm, data[0], bytes[0], mhandles[0], FAKE_IRECV, request);
  fake.count.recvs += *request != NULL;
  pthread_mutex_unlock(&fake.lock);
  return result;
}

/* A message for a device's memory, which it has not seen yet. */
static void keep_late(const struct request *request, const char *message, size_t bytes)
{
  int i = 0;
  while (fake.late[i].data) i++;
  fake.late[i] = (struct place){.data = request->data, .message = malloc(bytes), .bytes = bytes};
  memcpy(fake.late[i].message, message, bytes);
}

static struct place *find_late(const char *data)
{
  for (int i = 0; i < 64; i++)
    if (fake.late[i].data == data) return &fake.late[i];
  return NULL;
}

static void show_late(struct place *late)
{
  memcpy(late->data, late->message, late->bytes);
  free(late->message);
  *late = (struct place){0};
}

void fake_device_flush(void)
{
  pthread_mutex_lock(&fake.lock);
  fake.count.flushes++;
  for (int i = 0; i < 64; i++)
    if (fake.late[i].data) show_late(&fake.late[i]);
  pthread_mutex_unlock(&fake.lock);
}

ncclResult_t tt_net_iflush(struct tt_net *net, void *comm, int n, void **data, int *bytes, void **mhandles,
                           void **request)
{
  (void)net;
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&fake.lock);
  *request = NULL;
  struct place *late = find_late(data[0]);
  int i = 0;
  while (i < 64 && fake.regions[i] != mhandles[0]) i++;
  if (n != 1 || i == 64 || !late || (size_t)bytes[0] != late->bytes || !is_device(data[0]))
    fault("flushed what was not received");
  fake.count.flushes++;
  if (fails(FAKE_FLUSH)) {
    result = ncclRemoteError;
  } else if (chance(50)) { /* nothing to wait for */
    show_late(late);
  } else {
    for (i = 0; fake.requests[i].used;) i++;
    fake.requests[i] = (struct request){.used = true, .flush = true, .comm = comm, .data = data[0]};
    fake.count.in_flight++;
    *request = &fake.requests[i];
  }
  pthread_mutex_unlock(&fake.lock);
  return result;
}

/* A send leaves when it completes, not when it is posted: a slot that is reused too early shows. */
static void try_complete(struct request *request)
{
  if (request->done || chance(fake.mood.slow_percent)) return;
  int number = request->number;
  if (request->flush) {
    show_late(find_late(request->data));
  } else if (request->comm->send) {
    fake.sizes[number] = request->bytes;
    fake.messages[number] = malloc(request->bytes);
    memcpy(fake.messages[number], request->data, request->bytes);
  } else {
    if (!fake.messages[number]) return;
    if (fake.sizes[number] > request->bytes)
      fault("the message is longer than the buffer");
    else if (fake.mood.late && is_device(request->data))
      keep_late(request, fake.messages[number], fake.sizes[number]);
    else
      memcpy(request->data, fake.messages[number], fake.sizes[number]);
    request->bytes = (size_t)((long)fake.sizes[number] + fake.mood.change_size);
  }
  request->done = true;
}

ncclResult_t tt_net_test(struct tt_net *net, void *opaque, int *done, int *bytes)
{
  (void)net;
  struct request *request = opaque;
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&fake.lock);
  *done = 0;
  if (!request->used) fault("tested a request that is complete");
  if (fails(request->flush ? FAKE_TEST_FLUSH : FAKE_TEST)) result = ncclRemoteError;
  /* The network does what it likes whenever it is called. */
  if (!fake.mood.in_order && result == ncclSuccess)
    for (int i = 63; i >= 0; i--)
      if (fake.requests[i].used && chance(30)) try_complete(&fake.requests[i]);
  if (result == ncclSuccess) try_complete(request);
  if (result == ncclSuccess && request->done) {
    *done = 1;
    if (bytes) *bytes = (int)request->bytes;
    if (!bytes != request->flush) fault("the size of a flush, or none of a message, was asked for");
    request->used = false;
    fake.count.in_flight--;
  }
  pthread_mutex_unlock(&fake.lock);
  return result;
}

static ncclResult_t close_comm(void *comm)
{
  pthread_mutex_lock(&fake.lock);
  for (int i = 0; i < 64; i++) {
    if (fake.regions[i] && fake.regions[i]->comm == comm) fault("closed with memory registered");
    if (!fake.requests[i].used || fake.requests[i].comm != comm) continue;
    fake.requests[i].used = false;
    fake.count.in_flight--;
    fake.count.closed_in_flight++;
  }
  fake.count.closed++;
  pthread_mutex_unlock(&fake.lock);
  return ncclSuccess;
}

ncclResult_t tt_net_close_send(struct tt_net *net, void *comm)
{
  (void)net;
  if (!((struct comm *)comm)->send) fault("closed a receiving comm as a sending one");
  return close_comm(comm);
}

ncclResult_t tt_net_close_recv(struct tt_net *net, void *comm)
{
  (void)net;
  if (((struct comm *)comm)->send) fault("closed a sending comm as a receiving one");
  return close_comm(comm);
}
