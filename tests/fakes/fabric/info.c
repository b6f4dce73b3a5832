/* What the library exports: infos that say more than the real ones. */
#include "fake.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRUCTS "FABRIC_1.3"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

_Noreturn void fake_abort(const char *what)
{
  fprintf(stderr, "fake libfabric: %s\n", what);
  abort();
}

static void read_word(struct fake_settings *settings, const char *word)
{
  int n;
  long long bytes;
  if (sscanf(word, "nics=%d", &n) == 1)
    settings->nics = n;
  else if (sscanf(word, "busy=%d", &n) == 1)
    settings->busy = n;
  else if (sscanf(word, "break=%d", &n) == 1)
    settings->break_at = n;
  else if (sscanf(word, "late=%d", &n) == 1)
    settings->late = n;
  else if (sscanf(word, "lag=%d", &n) == 1)
    settings->lag = n;
  else if (sscanf(word, "taken=%d", &n) == 1)
    settings->taken = n;
  else if (sscanf(word, "inject=%d", &n) == 1)
    settings->inject = n;
  else if (sscanf(word, "piece=%lld", &bytes) == 1)
    settings->piece = (size_t)bytes;
  else if (sscanf(word, "spoil=%" SCNi32 "/%d/%zu/%" SCNi32, (int32_t *)&settings->spoil.kind, &settings->spoil.nth,
                  &settings->spoil.offset, (int32_t *)&settings->spoil.value) == 4)
    ;
  else if (sscanf(word, "fail=%15s", settings->fail) == 1)
    ;
  else if (!strcmp(word, "hmem"))
    settings->hmem = true;
  else if (!strcmp(word, "local"))
    settings->local = true;
  else if (!strcmp(word, "keys"))
    settings->keys = true;
  else if (!strcmp(word, "endpoint"))
    settings->endpoint = true;
  else if (!strcmp(word, "shuffle"))
    settings->shuffle = true;
  else if (!strcmp(word, "wide"))
    settings->wide = true;
  else if (!strcmp(word, "uneven"))
    settings->wide = settings->uneven = true;
  else
    fake_abort("FAKE_FABRIC has a word that is not known");
}

const struct fake_settings *fake_settings(void)
{
  static struct fake_settings settings = {.inject = -1};
  static bool read;
  pthread_mutex_lock(&fake_lock);
  const char *text = getenv("FAKE_FABRIC");
  if (!read && text) {
    char *copy = strdup(text), *rest = copy, *word;
    while ((word = strsep(&rest, ","))) read_word(&settings, word);
    free(copy);
  }
  read = true;
  pthread_mutex_unlock(&fake_lock);
  return &settings;
}

unsigned fake_random(void)
{
  static __thread unsigned state = 12345;
  state = state * 1103515245u + 12345u; /* the generator of the C standard's example */
  return state >> 16;
}

static struct fake_object *objects;

static struct fake_object *find(void *object)
{
  struct fake_object *known = objects;
  while (known && known->object != object) known = known->next;
  return known;
}

struct fake_object *fake_known(void *object)
{
  pthread_mutex_lock(&fake_lock);
  struct fake_object *known = find(object);
  pthread_mutex_unlock(&fake_lock);
  return known;
}

struct fake_object *fake_object(void *object)
{
  pthread_mutex_lock(&fake_lock);
  struct fake_object *known = find(object);
  if (!known) {
    known = calloc(1, sizeof *known);
    if (!known) fake_abort("no memory");
    known->object = object;
    known->next = objects;
    objects = known;
  }
  pthread_mutex_unlock(&fake_lock);
  return known;
}

/* ---- The real library ---- */

static void *real(const char *name, const char *version)
{
  static void *library;
  if (!library) library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) fake_abort("there is no libfabric.so.1");
  void *symbol = version ? dlvsym(library, name, version) : NULL;
  return symbol ? symbol : dlsym(library, name);
}
#define REAL(name, version) ((__typeof__(&(name)))real(#name, version))

#define EXPORT __attribute__((visibility("default")))

EXPORT uint32_t fi_version(void)
{
  return REAL(fi_version, NULL)();
}

EXPORT const char *fi_strerror(int error)
{
  return REAL(fi_strerror, NULL)(error);
}

/* ---- Infos: a made-up NIC, and a number behind the domain's name ---- */

static struct fi_bus_attr bus = {.bus_type = FI_BUS_PCI, .attr.pci = {0xffff, 0xff, 0x1f, 7}};
static struct fid_nic made_up = {.bus_attr = &bus};

EXPORT void fi_freeinfo(struct fi_info *info)
{
  for (struct fi_info *i = info; i; i = i->next)
    if (i->nic == &made_up) i->nic = NULL;
  REAL(fi_freeinfo, STRUCTS)(info);
}

EXPORT struct fi_info *fi_dupinfo(const struct fi_info *info)
{
  if (!info || info->nic != &made_up) return REAL(fi_dupinfo, STRUCTS)(info);
  struct fi_info plain = *info;
  plain.nic = NULL;
  struct fi_info *copy = REAL(fi_dupinfo, STRUCTS)(&plain);
  if (copy) copy->nic = &made_up;
  return copy;
}

static void change(struct fi_info *info, const struct fi_info *hints)
{
  const struct fake_settings *settings = fake_settings();
  if (settings->nics || settings->hmem) info->nic = &made_up;
  if (settings->local) info->domain_attr->mr_mode |= FI_MR_LOCAL;
  if (settings->keys) info->domain_attr->mr_mode |= FI_MR_PROV_KEY;
  if (settings->endpoint) info->domain_attr->mr_mode |= FI_MR_ENDPOINT;
  if (settings->hmem && hints) info->caps |= hints->caps & FI_HMEM;
  if (settings->piece) info->ep_attr->max_msg_size = settings->piece;
  if (!settings->wide) info->domain_attr->cq_data_size = sizeof(uint32_t);
  if (settings->inject >= 0) info->tx_attr->inject_size = (size_t)settings->inject;
}

static void number(struct fi_info *info, int n)
{
  char *name = NULL;
  if (asprintf(&name, "%s.%d", info->domain_attr->name, n) < 0) fake_abort("no memory");
  free(info->domain_attr->name);
  info->domain_attr->name = name;
}

/* The info as the real library made it. */
static struct fi_info *plain_copy(const struct fi_info *info)
{
  struct fi_info *copy = fi_dupinfo(info);
  if (!copy) fake_abort("no memory");
  char *dot = fake_settings()->nics ? strrchr(copy->domain_attr->name, '.') : NULL;
  if (dot) *dot = 0;
  if (copy->nic == &made_up) copy->nic = NULL;
  copy->caps &= ~FI_HMEM;
  copy->domain_attr->mr_mode &= ~(FI_MR_LOCAL | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_HMEM);
  if (fake_settings()->piece) copy->ep_attr->max_msg_size = 0;
  return copy;
}

EXPORT int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **out)
{
  const struct fake_settings *settings = fake_settings();
  if (!strcmp(settings->fail, "getinfo")) return -FI_ENODATA;
  struct fi_info *asked = fi_dupinfo(hints);
  if (settings->hmem && asked) asked->caps &= ~FI_HMEM;
  int error = REAL(fi_getinfo, STRUCTS)(version, node, service, flags, asked, out);
  fi_freeinfo(asked);
  if (error) return error;
  /* Copies go behind, so that the first one of each NIC comes first. */
  struct fi_info **end = out, *last = NULL;
  for (; *end; end = &(*end)->next) last = *end;
  for (int n = 1; n < settings->nics; n++)
    for (struct fi_info *info = *out;; info = info->next) {
      *end = fi_dupinfo(info);
      change(*end, hints);
      number(*end, n);
      if (settings->uneven) (*end)->domain_attr->cq_data_size = sizeof(uint32_t);
      end = &(*end)->next;
      if (info == last) break;
    }
  for (struct fi_info *info = *out; info; info = info->next) {
    change(info, hints);
    if (settings->nics && !strchr(info->domain_attr->name, '.')) number(info, 0);
    if (info == last) break;
  }
  return 0;
}

/* ---- Fabric, domain, endpoint ---- */

static int open_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
  const struct fi_ops_domain *ops = fake_known(domain)->real[0];
  if (!strcmp(fake_settings()->fail, "endpoint")) return -FI_EMFILE;
  struct fi_info *plain = plain_copy(info);
  int error = ops->endpoint(domain, plain, ep, context);
  fi_freeinfo(plain);
  if (error == 0) fake_endpoint(*ep, info->tx_attr->inject_size);
  return error;
}

static int open_queue(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
  const struct fi_ops_domain *ops = fake_known(domain)->real[0];
  if (!strcmp(fake_settings()->fail, "cq")) return -FI_ENOMEM;
  int error = ops->cq_open(domain, attr, cq, context);
  if (error == 0) fake_queue(*cq);
  return error;
}

static int open_addresses(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context)
{
  const struct fi_ops_domain *ops = fake_known(domain)->real[0];
  if (!strcmp(fake_settings()->fail, "av")) return -FI_ENOMEM;
  return ops->av_open(domain, attr, av, context);
}

/* libfabric would refuse, which nobody looks at. */
static int close_domain(struct fid *fid)
{
  const struct fi_ops *ops = fake_known(fid)->real[2];
  pthread_mutex_lock(&fake_lock);
  bool left = false;
  for (struct fake_object *object = objects; object; object = object->next)
    left = left || (object->base && object->domain == fid);
  pthread_mutex_unlock(&fake_lock);
  if (left) fake_abort("a domain is closed that has registrations");
  return ops->close(fid);
}

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
  static struct fi_ops_domain replaced;
  static struct fi_ops closing;
  const struct fi_ops_fabric *ops = fake_known(fabric)->real[0];
  if (!strcmp(fake_settings()->fail, "domain")) return -FI_ENODEV;
  struct fi_info *plain = plain_copy(info);
  int error = ops->domain(fabric, plain, domain, context);
  fi_freeinfo(plain);
  if (error) return error;
  fake_object(*domain)->real[0] = (*domain)->ops;
  fake_object(*domain)->real[2] = (*domain)->fid.ops;
  pthread_mutex_lock(&fake_lock);
  closing = *(*domain)->fid.ops;
  closing.close = close_domain;
  replaced = *(*domain)->ops;
  replaced.endpoint = open_endpoint;
  replaced.cq_open = open_queue;
  replaced.av_open = open_addresses;
  pthread_mutex_unlock(&fake_lock);
  (*domain)->ops = &replaced;
  (*domain)->fid.ops = &closing;
  fake_memory(*domain);
  return 0;
}

EXPORT int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
  static struct fi_ops_fabric replaced;
  if (!strcmp(fake_settings()->fail, "fabric")) return -FI_ENODEV;
  int error = REAL(fi_fabric, "FABRIC_1.1")(attr, fabric, context);
  if (error) return error;
  fake_object(*fabric)->real[0] = (*fabric)->ops;
  pthread_mutex_lock(&fake_lock);
  replaced = *(*fabric)->ops;
  replaced.domain = open_domain;
  pthread_mutex_unlock(&fake_lock);
  (*fabric)->ops = &replaced;
  return 0;
}
