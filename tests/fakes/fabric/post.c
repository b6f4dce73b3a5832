/* What is posted to an endpoint: checked, and often refused. */
#include "fake.h"

#include <string.h>

/* Contexts of operations that are to fail. */
#define BROKEN 64
static void *broken[BROKEN];

bool fake_breaks(struct fake_object *ep, void *context)
{
  int at = fake_settings()->break_at;
  if (!at || (int)++ep->posted != at) return false;
  pthread_mutex_lock(&fake_lock);
  for (int i = 0; i < BROKEN; i++)
    if (!broken[i]) {
      broken[i] = context;
      break;
    }
  pthread_mutex_unlock(&fake_lock);
  return true;
}

bool fake_is_broken(void *context)
{
  bool is = false;
  pthread_mutex_lock(&fake_lock);
  for (int i = 0; i < BROKEN && context && !is; i++)
    if (broken[i] == context) {
      broken[i] = NULL;
      is = true;
    }
  pthread_mutex_unlock(&fake_lock);
  return is;
}

/* Whether this is the packet, or the write, that is to be spoilt. */
static bool is_to_spoil(uint32_t kind)
{
  static int seen;
  const struct fake_settings *settings = fake_settings();
  if (!settings->spoil.nth || kind != settings->spoil.kind) return false;
  pthread_mutex_lock(&fake_lock);
  bool is = ++seen == settings->spoil.nth;
  pthread_mutex_unlock(&fake_lock);
  return is;
}

static void spoil(char *packet, size_t *bytes)
{
  uint32_t kind, value = fake_settings()->spoil.value;
  size_t offset = fake_settings()->spoil.offset;
  memcpy(&kind, packet, sizeof kind);
  if (!is_to_spoil(kind)) return;
  if (offset + sizeof value <= *bytes)
    memcpy(packet + offset, &value, sizeof value);
  else
    *bytes = value;
}

static bool is_busy(void)
{
  int busy = fake_settings()->busy;
  return busy && fake_random() % (unsigned)(busy + 1) != 0;
}

static void *real_desc(void *desc)
{
  return fake_settings()->local ? NULL : desc;
}

static ssize_t post_recv(struct fid_ep *ep, void *data, size_t bytes, void *desc, fi_addr_t from, void *context)
{
  const struct fi_ops_msg *ops = fake_known(ep)->real[0];
  if (is_busy()) return -FI_EAGAIN;
  fake_check_local(data, bytes, desc);
  return ops->recv(ep, data, bytes, real_desc(desc), from, context);
}

static ssize_t post_send(struct fid_ep *ep, const void *data, size_t bytes, void *desc, fi_addr_t to, void *context)
{
  struct fake_object *known = fake_known(ep);
  const struct fi_ops_msg *ops = known->real[0];
  if (is_busy()) return -FI_EAGAIN;
  fake_check_local(data, bytes, desc);
  if (fake_settings()->spoil.nth) spoil((char *)data, &bytes); /* it is the plugin's own */
  ssize_t error = ops->send(ep, data, bytes, real_desc(desc), to, context);
  if (error == 0) fake_breaks(known, context);
  return error;
}

static ssize_t post_inject(struct fid_ep *ep, const void *data, size_t bytes, fi_addr_t to)
{
  struct fake_object *known = fake_known(ep);
  const struct fi_ops_msg *ops = known->real[0];
  if (is_busy()) return -FI_EAGAIN;
  if (bytes > known->bytes) fake_abort("more is injected than the endpoint takes");
  if (fake_settings()->spoil.nth) spoil((char *)data, &bytes);
  return ops->inject(ep, data, bytes, to);
}

static ssize_t post_write(struct fid_ep *ep, const void *data, size_t bytes, void *desc, uint64_t immediate,
                          fi_addr_t to, uint64_t address, uint64_t key, void *context)
{
  struct fake_object *known = fake_known(ep);
  const struct fi_ops_rma *ops = known->real[1];
  if (is_busy()) return -FI_EAGAIN;
  if (fake_settings()->piece && bytes > fake_settings()->piece) fake_abort("a write is larger than a message may be");
  if (immediate >> 32 && !fake_settings()->wide) fake_abort("immediate data has more than 32 bits");
  fake_check_local(data, bytes, desc);
  if (is_to_spoil(0)) {
    uint64_t value = fake_settings()->spoil.value;
    immediate = fake_settings()->spoil.offset == 4 ? (uint32_t)immediate | value << 32 : value;
  }
  ssize_t error = ops->writedata(ep, data, bytes, real_desc(desc), immediate, to, address, key, context);
  if (error == 0) fake_breaks(known, context);
  return error;
}

static ssize_t post_read(struct fid_ep *ep, void *data, size_t bytes, void *desc, fi_addr_t from, uint64_t address,
                         uint64_t key, void *context)
{
  const struct fi_ops_rma *ops = fake_known(ep)->real[1];
  if (is_busy()) return -FI_EAGAIN;
  fake_check_local(data, bytes, desc);
  return ops->read(ep, data, bytes, real_desc(desc), from, address, key, context);
}

static int control_endpoint(struct fid *fid, int command, void *argument)
{
  static _Atomic int enabled;
  const struct fi_ops *ops = fake_known(fid)->real[2];
  if (command == FI_ENABLE && enabled++ < fake_settings()->taken) return -FI_EBUSY;
  return ops->control(fid, command, argument);
}

void fake_endpoint(struct fid_ep *ep, size_t inject)
{
  static struct fi_ops_msg messages;
  static struct fi_ops_rma accesses;
  static struct fi_ops life;
  struct fake_object *known = fake_object(ep);
  known->posted = 0;
  known->bytes = inject;
  known->real[0] = ep->msg;
  known->real[1] = ep->rma;
  known->real[2] = ep->fid.ops;
  pthread_mutex_lock(&fake_lock);
  messages = *ep->msg;
  messages.recv = post_recv;
  messages.send = post_send;
  messages.inject = post_inject;
  accesses = *ep->rma;
  accesses.writedata = post_write;
  accesses.read = post_read;
  life = *ep->fid.ops;
  life.control = control_endpoint;
  pthread_mutex_unlock(&fake_lock);
  ep->msg = &messages;
  ep->rma = &accesses;
  ep->fid.ops = &life;
}
