/* See fabric.h. */
#include "fabric.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include "base/param.h"
#include "base/text.h"

#define SONAME "libfabric.so.1"

static struct {
  void *handle;
  struct tt_ofi_fabric table;
} library;

/* Structs of the headers grew at versions of the symbols: those that fit the headers are taken, if the library has
 * them. libfabric.map of the library's source lists them; 1.20 is the first release after FABRIC_1.3 to change. */
#if FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION < 20
#define STRUCTS "FABRIC_1.3"
#else
#define STRUCTS NULL
#endif

static void *find(const char *name, const char *version)
{
  void *symbol = version ? dlvsym(library.handle, name, version) : NULL;
  return symbol ? symbol : dlsym(library.handle, name);
}

static const char *library_name(void)
{
  const char *name = tt_param_string(TT_PARAM_TUTTI_OFI_LIBRARY);
  return name && !getauxval(AT_SECURE) ? name : SONAME;
}

#define RXM_BUFFER "FI_OFI_RXM_BUFFER_SIZE"
#define RXM_POSTED "FI_OFI_RXM_MSG_RX_SIZE"
#define RXM_EAGER "FI_OFI_RXM_EAGER_LIMIT"

static size_t bytes_of(const char *variable)
{
  const char *text = getenv(variable);
  int64_t bytes;
  return text && tt_text_int(text, &bytes) && bytes > 0 ? (size_t)bytes : 0;
}

/* Over sockets releases before 1.20 receive into the user's own buffers. */
size_t tt_ofi_rxm_eager(const char *provider)
{
  size_t buffer = bytes_of(RXM_BUFFER), eager = bytes_of(RXM_EAGER);
  bool direct = library.handle && FI_VERSION_LT(library.table.version(), FI_VERSION(1, 20)) &&
                strncmp(provider, "tcp;", strlen("tcp;")) == 0;
  return direct && eager > buffer ? eager : buffer;
}

static bool open_library(char *why, size_t size)
{
  const char *name = library_name();
  struct tt_ofi_fabric *table = &library.table;
  setenv(RXM_BUFFER, "2048", 0);
  setenv(RXM_POSTED, "64", 0);
  setenv(RXM_EAGER, "16384", 0);
  library.handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library.handle) {
    snprintf(why, size, "libfabric cannot be opened: %s", dlerror());
    return false;
  }
  *(void **)&table->getinfo = find("fi_getinfo", STRUCTS);
  *(void **)&table->freeinfo = find("fi_freeinfo", STRUCTS);
  *(void **)&table->dupinfo = find("fi_dupinfo", STRUCTS);
  *(void **)&table->fabric = find("fi_fabric", "FABRIC_1.1");
  *(void **)&table->strerror = find("fi_strerror", NULL);
  *(void **)&table->version = find("fi_version", NULL);
  bool whole =
      table->getinfo && table->freeinfo && table->dupinfo && table->fabric && table->strerror && table->version;
  if (!whole) {
    snprintf(why, size, "%s lacks functions of libfabric", name);
  } else if (FI_VERSION_LT(table->version(), TT_OFI_API)) {
    snprintf(why, size, "%s is libfabric %u.%u; at least %u.%u is needed", name, FI_MAJOR(table->version()),
             FI_MINOR(table->version()), FI_MAJOR(TT_OFI_API), FI_MINOR(TT_OFI_API));
    whole = false;
  }
  if (!whole) {
    dlclose(library.handle);
    library.handle = NULL;
  }
  return whole;
}

const struct tt_ofi_fabric *tt_ofi_fabric(char *why, size_t size)
{
  if (!library.handle && !open_library(why, size)) return NULL;
  return &library.table;
}

const char *tt_ofi_strerror(int error)
{
  if (error < 0) error = -error;
  return library.handle ? library.table.strerror(error) : strerror(error);
}
