/* Registrations: what they cover, and whether they may be used. */
#include "fake.h"

#include <string.h>

static int close_memory(struct fid *fid)
{
  struct fake_object *known = fake_known(fid);
  const struct fi_ops *ops = known->real[0];
  pthread_mutex_lock(&fake_lock);
  known->base = NULL;
  known->bytes = 0;
  pthread_mutex_unlock(&fake_lock);
  return ops->close(fid);
}

/* For providers that do not know it, binding to an endpoint is only remembered. */
static int bind_memory(struct fid *fid, struct fid *to, uint64_t flags)
{
  (void)flags;
  fake_known(fid)->ep = (struct fid_ep *)to;
  return 0;
}

static int control_memory(struct fid *fid, int command, void *argument)
{
  struct fake_object *known = fake_known(fid);
  const struct fi_ops *ops = known->real[0];
  if (command != FI_ENABLE) return ops->control(fid, command, argument);
  if (!known->ep) fake_abort("a registration is enabled without an endpoint");
  struct fid_mr *mr = (struct fid_mr *)fid;
  mr->key = (uint64_t)(uintptr_t)known->real[1];
  known->enabled = true;
  return 0;
}

static void follow(struct fid_mr *mr, struct fid *domain, const char *base, size_t bytes)
{
  static struct fi_ops replaced;
  struct fake_object *known = fake_object(mr);
  known->real[0] = mr->fid.ops;
  known->base = base;
  known->domain = domain;
  known->bytes = bytes;
  known->ep = NULL;
  known->enabled = !fake_settings()->endpoint;
  pthread_mutex_lock(&fake_lock);
  replaced = *mr->fid.ops;
  replaced.close = close_memory;
  replaced.bind = bind_memory;
  replaced.control = control_memory;
  pthread_mutex_unlock(&fake_lock);
  mr->fid.ops = &replaced;
  if (fake_settings()->endpoint) {
    known->real[1] = (const void *)(uintptr_t)mr->key;
    mr->key = FI_KEY_NOTAVAIL;
  }
  if (fake_settings()->local) mr->mem_desc = mr; /* what is posted with it is checked */
}

/* Keys that a provider chooses have nothing to do with what was asked. */
static uint64_t choose_key(uint64_t wanted)
{
  static uint64_t last = 0x1000000;
  if (!fake_settings()->keys) return wanted;
  pthread_mutex_lock(&fake_lock);
  uint64_t key = last += 7;
  pthread_mutex_unlock(&fake_lock);
  return key;
}

static int register_attr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr)
{
  const struct fi_ops_mr *ops = fake_known(fid)->real[1];
  struct fi_mr_attr plain = *attr;
  if (!strcmp(fake_settings()->fail, "mr")) return -FI_ENOMEM;
  if (attr->iface != FI_HMEM_SYSTEM && !fake_settings()->hmem) return -FI_ENOSYS;
  plain.iface = FI_HMEM_SYSTEM;
  plain.requested_key = choose_key(attr->requested_key);
  int error = ops->regattr(fid, &plain, flags, mr);
  if (error == 0) follow(*mr, fid, attr->mr_iov[0].iov_base, attr->mr_iov[0].iov_len);
  return error;
}

static int register_plain(struct fid *fid, const void *data, size_t bytes, uint64_t access, uint64_t offset,
                          uint64_t key, uint64_t flags, struct fid_mr **mr, void *context)
{
  const struct fi_ops_mr *ops = fake_known(fid)->real[1];
  int error = ops->reg(fid, data, bytes, access, offset, choose_key(key), flags, mr, context);
  if (error == 0) follow(*mr, fid, data, bytes);
  return error;
}

void fake_memory(struct fid_domain *domain)
{
  static struct fi_ops_mr replaced;
  fake_object(domain)->real[1] = domain->mr;
  pthread_mutex_lock(&fake_lock);
  replaced = *domain->mr;
  replaced.reg = register_plain;
  replaced.regattr = register_attr;
  pthread_mutex_unlock(&fake_lock);
  domain->mr = &replaced;
}

void fake_check_local(const void *data, size_t bytes, void *desc)
{
  const char *at = data;
  if (!fake_settings()->local) return;
  struct fake_object *known = desc ? fake_known(desc) : NULL;
  if (!known || !known->base) fake_abort("memory is posted that is not registered");
  if (!known->enabled) fake_abort("memory is posted whose registration is not enabled");
  if (at < known->base || at + bytes > known->base + known->bytes)
    fake_abort("memory is posted that its registration does not cover");
}
