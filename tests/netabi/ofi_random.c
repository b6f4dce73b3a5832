/* net-ofi under random traffic, over NICs of several kinds. */
#include <stdlib.h>
#include <string.h>
#include "ofi_fixture.h"
#include "tests/common/traffic.h"

#ifdef __SANITIZE_THREAD__ /* which makes all of it ten times as slow */
enum { RECEIVES = 33 };
#else
enum { RECEIVES = 200 };
#endif

static const char *const kinds[] = {"wide,shuffle",
                                    "wide,nics=2,shuffle,busy=3,piece=20000,local,keys",
                                    "wide,nics=2,shuffle,late=1,busy=2",
                                    "nics=2,shuffle,busy=3,piece=9000,endpoint",
                                    "shuffle",
                                    "wide,shuffle,inject=0,busy=5"};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

START_TEST(comes_whole)
{
  const char *words = kinds[_i % KINDS];
  ncclNetVDeviceProps_v12_t two = {.ndevs = 2, .devs = {0, 1}};
  int device = 0;
  setenv("TUTTI_OFI_STRIPE", "4096", 1);
  start_tcp(words);
  if (strstr(words, "nics=2")) ck_assert_int_eq(net->makeVDevice(&device, &two), ncclSuccess);
  traffic_seed((unsigned)_i);
  random_traffic(device, RECEIVES, NULL);
  finish();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("random");
  tcase_add_loop_test(tcase, comes_whole, 0, 2 * KINDS);
  return run(argc, argv, tcase);
}
