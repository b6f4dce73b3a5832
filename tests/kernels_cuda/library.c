/* The library as it is built: it loads where there is no driver, and says in a sentence why it cannot be used.
 *   test_kernels_cuda_library LIBRARY PART     the sentence has PART in it; or there are GPUs, and PART is "any" */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tutti/device.h"

static int lines;

static void count_lines(int level, const char *text)
{
  (void)level, (void)text;
  lines++;
}

/* Nothing may be printed while the library looks around. */
static const struct tt_device *ask(tt_device_entry *entry, char *why, size_t size, long *printed)
{
  char name[] = "/tmp/tutti-test-XXXXXX";
  int file = mkstemp(name), out = dup(1), err = dup(2);
  struct stat written;
  fflush(stdout);
  dup2(file, 1);
  dup2(file, 2);
  const struct tt_device *device = entry(count_lines, why, size);
  fflush(stdout);
  dup2(out, 1);
  dup2(err, 2);
  *printed = fstat(file, &written) == 0 ? (long)written.st_size : -1;
  close(file);
  unlink(name);
  return device;
}

static int fail(const char *why)
{
  printf("FAIL: %s\n", why);
  return 1;
}

int main(int argc, char **argv)
{
  char why[400] = "";
  long printed;
  if (argc != 3) return fail("usage: LIBRARY PART");
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return fail(dlerror());
  tt_device_entry *entry = (tt_device_entry *)dlsym(library, TT_DEVICE_SYMBOL);
  if (entry == NULL) return fail("no entry point");
  const struct tt_device *device = ask(entry, why, sizeof(why), &printed);
  if (printed != 0 || lines != 0) return fail("it printed something");
  if (device != NULL) {
    int devices = 0;
    printf("it can be used: %s\n", device->name);
    if (strcmp(argv[2], "any") != 0) return fail("but it should not");
    if (device->size != sizeof(*device) || device->version != TT_DEVICE_VERSION || strcmp(device->name, "cuda") != 0)
      return fail("the table is wrong");
    return device->count(&devices) == ncclSuccess && devices > 0 ? 0 : fail("there are no devices");
  }
  printf("it says: %s\n", why);
  if (why[0] == '\0' || strchr(why, '\n') != NULL) return fail("that is no sentence");
  if (strcmp(argv[2], "any") == 0 ? strstr(why, "CUDA") == NULL : strstr(why, argv[2]) == NULL)
    return fail("it should say something else");
  if (strlen(why) < 20) return fail("that is too short");
  char small[16];
  memset(small, 'x', sizeof(small));
  if (entry(count_lines, small, 8) != NULL || memchr(small, '\0', 8) == NULL || small[8] != 'x')
    return fail("it does not keep to the room for the reason");
  return 0;
}
