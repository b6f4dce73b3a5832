/* Finding and loading backends. Each test is a process of its own, so each begins with nothing loaded. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/host.h"
#include "base/log.h"
#include "base/param.h"
#include "device/choose.h"

static const struct tt_device host = {.name = "host"};
static bool secure;

bool __wrap_tt_plugin_secure(void); /* what the linker calls in its place */
bool __wrap_tt_plugin_secure(void)
{
  return secure;
}

static void begin(const char *directory, const char *wanted)
{
  tt_host_set_library_dir(directory);
  if (wanted)
    setenv("TUTTI_DEVICE", wanted, 1);
  else
    unsetenv("TUTTI_DEVICE");
  tt_param_reset();
}

static const char *find(void)
{
  const struct tt_device *device;
  return tt_device_find(&host, &device) == ncclSuccess ? device->name : NULL;
}

static void expect_error(const char *wanted, const char *part, const char *part2)
{
  begin(WITHOUT, wanted);
  ck_assert_ptr_null(find());
  const char *text = tt_log_thread_error();
  ck_assert_msg(strstr(text, part) != NULL, "\"%s\" lacks \"%s\"", text, part);
  ck_assert_msg(strstr(text, part2) != NULL, "\"%s\" lacks \"%s\"", text, part2);
  ck_assert_msg(strstr(text, wanted) != NULL, "\"%s\" lacks \"%s\"", text, wanted);
}

START_TEST(auto_without_cuda)
{
  struct tt_device_report report;
  begin(WITHOUT, NULL);
  ck_assert_str_eq(find(), "host");
  ck_assert(!tt_device_load("cuda", &report));
  ck_assert(report.missing);
  ck_assert_str_eq(report.reason, "no such file");
  begin(WITHOUT, "Auto");
  ck_assert_str_eq(find(), "host");
}
END_TEST

START_TEST(auto_with_cuda)
{
  begin(WITH, "auto");
  ck_assert_str_eq(find(), "cuda");
  ck_assert_str_eq(find(), "cuda");
  ck_assert_str_eq(getenv("STUB_CALLS"), "1"); /* loaded once */
  begin(WITH, "HOST");
  ck_assert_str_eq(find(), "host");
}
END_TEST

START_TEST(auto_with_cuda_without_devices)
{
  struct tt_device_report report;
  setenv("STUB_DEVICES", _i == 0 ? "0" : "-1", 1);
  begin(WITH, "auto");
  ck_assert_str_eq(find(), "host");
  ck_assert(!tt_device_load("cuda", &report));
  ck_assert(!report.missing);
  ck_assert_ptr_nonnull(strstr(report.reason, _i == 0 ? "no devices" : "counting"));
  /* Who names it learns why not. */
  begin(WITH, "cuda");
  ck_assert_ptr_null(find());
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), _i == 0 ? "no devices" : "counting"));
}
END_TEST

/* One line says what was chosen and why not the other. */
START_TEST(choice_is_told_once)
{
  char file[] = "/tmp/tutti-test-device-XXXXXX", line[1024];
  int lines = 0, fd = mkstemp(file);
  ck_assert_int_ge(fd, 0);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_FILE", file, 1);
  begin(WITHOUT, "auto");
  tt_log_reset();
  for (int i = 0; i < 3; i++) ck_assert_str_eq(find(), "host");
  FILE *log = fdopen(fd, "r");
  while (fgets(line, sizeof(line), log)) {
    if (!strstr(line, "Using device")) continue;
    lines++;
    ck_assert_ptr_nonnull(strstr(line, "host"));
    ck_assert_ptr_nonnull(strstr(line, "cuda is passed over: no such file"));
  }
  fclose(log);
  unlink(file);
  ck_assert_int_eq(lines, 1);
}
END_TEST

START_TEST(by_name)
{
  begin(WITHOUT, "good");
  ck_assert_str_eq(find(), "good");
  ck_assert_str_eq(tt_log_thread_error(), "a stub speaks"); /* through the log that it was given */
}
END_TEST

/* A later library only has more, and one of the first version less. */
START_TEST(by_another_version)
{
  begin(WITHOUT, "first");
  ck_assert_str_eq(find(), "first");
  begin(WITHOUT, "later");
  ck_assert_str_eq(find(), "later");
}
END_TEST

START_TEST(by_path)
{
  begin("/nowhere", WITHOUT "/tutti/libtutti-device-good.so");
  ck_assert_str_eq(find(), "good");
}
END_TEST

START_TEST(raised_privileges)
{
  secure = true;
  begin(WITHOUT, WITHOUT "/tutti/libtutti-device-good.so");
  ck_assert_str_eq(find(), "host"); /* as if it was not set */
  begin(WITHOUT, "good");
  ck_assert_str_eq(find(), "good"); /* one of Tutti's own */
}
END_TEST

START_TEST(refusals)
{
  static const char *const cases[][2] = {
      {"absent", "no such file"},          {"symbolless", "it exports no tutti_device"},
      {"small", "a draft of the device"},  {"draft", "version 0 of the device interface, a draft"},
      {"refuses", "the driver is asleep"}, {"silent", "no reason"},
      {"handless", "no function launch"},  {"text", "not a shared library"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    char path[64];
    snprintf(path, sizeof(path), "/tutti/libtutti-device-%s.so", cases[i][0]);
    expect_error(cases[i][0], cases[i][1], path);
  }
  expect_error("two words", "neither the name", "two words");
  expect_error("/no/such/file.so", "no such file", "/no/such/file.so");
  expect_error("a-name-that-is-longer-than-any-library-has-a-right-to", "neither the name", "a-name");
}
END_TEST

START_TEST(places)
{
  char file[PATH_MAX];
  ck_assert(tt_device_file("/lib", "x", 0, file));
  ck_assert_str_eq(file, "/lib/tutti/libtutti-device-x.so");
  ck_assert(tt_device_file("/lib", "x", 1, file));
  ck_assert_str_eq(file, "/lib/libtutti-device-x.so");
  ck_assert(!tt_device_file("/lib", "x", 2, file));
  ck_assert(tt_device_file("/lib/tutti/compat", "x", 1, file)); /* the drop-in */
  ck_assert_str_eq(file, "/lib/tutti/compat/../libtutti-device-x.so");
  ck_assert(tt_device_file("/lib", "./x", 0, file));
  ck_assert_str_eq(file, "./x");
  ck_assert(!tt_device_file("/lib", "./x", 1, file));
  ck_assert(!tt_device_file("/lib", "", 0, file));
}
END_TEST

/* Nothing that the core would call may be missing; what it would not call may. */
START_TEST(whole_backends_only)
{
  struct tt_device whole, device;
  char why[256];
  memset(&whole, 0x7f, sizeof(whole)); /* every function is there; none is called */
  whole.size = sizeof(whole);
  whole.version = TT_DEVICE_VERSION;
  whole.name = "whole";
  whole.protocols = 7;
  whole.features = TT_DEVICE_STREAMS | TT_DEVICE_MEMORY | TT_DEVICE_DESCRIBED | TT_DEVICE_HOST_MEMORY | TT_DEVICE_JOIN |
                   TT_DEVICE_GRAPHS | TT_DEVICE_USER_MEMORY | TT_DEVICE_MULTICAST | TT_DEVICE_COPY | TT_DEVICE_REACH |
                   TT_DEVICE_DMABUF | TT_DEVICE_PARTS | TT_DEVICE_FLUSH | TT_DEVICE_CHECK;
  ck_assert_ptr_null(tt_device_refuse(&whole, why, sizeof(why)));
#define REFUSED(change, text)                                                                                          \
  do {                                                                                                                 \
    device = whole;                                                                                                    \
    change;                                                                                                            \
    ck_assert_ptr_nonnull(tt_device_refuse(&device, why, sizeof(why)));                                                \
    ck_assert_msg(strstr(why, text) != NULL, "\"%s\" lacks \"%s\"", why, text);                                        \
  } while (0)
#define NEEDED(member) REFUSED(device.member = NULL, #member)
  NEEDED(count);
  NEEDED(launch);
  NEEDED(open);
  NEEDED(close);
  NEEDED(current);
  NEEDED(properties);
  NEEDED(stop);
  NEEDED(drain);
  NEEDED(status);
  NEEDED(alloc);
  NEEDED(release);
  NEEDED(can_map);
  NEEDED(export_memory);
  NEEDED(import_memory);
  NEEDED(conn_open);
  NEEDED(conn_close);
  NEEDED(describe);
  NEEDED(peer_status);
  NEEDED(map_host);
  NEEDED(unmap_host);
  NEEDED(check_stream);
  NEEDED(follow);
  NEEDED(capturing);
  NEEDED(at_graph_end);
  NEEDED(user_alloc);
  NEEDED(user_free);
  NEEDED(find_buffer);
  NEEDED(export_buffer);
  NEEDED(team_check);
  NEEDED(team_create);
  NEEDED(team_import);
  NEEDED(team_add);
  NEEDED(team_bind);
  NEEDED(team_leave);
  NEEDED(copy);
  NEEDED(copied);
  NEEDED(reach_buffer);
  NEEDED(check_buffer);
  NEEDED(export_dmabuf);
  NEEDED(import_parts);
  NEEDED(flush);
  /* Features of which it has not all. */
  REFUSED(device.size = offsetof(struct tt_device, peer_status), "peer_status");
  REFUSED(device.size = offsetof(struct tt_device, export_buffer), "export_buffer");
  REFUSED(device.size = offsetof(struct tt_device, copied), "copied");
  REFUSED(device.size = offsetof(struct tt_device, export_dmabuf), "export_dmabuf");
  REFUSED(device.protocols = 0, "protocols");
  REFUSED(device.protocols = 8, "protocols");
  REFUSED(device.name = "", "name");
  REFUSED(device.default_buffer[TT_PROTO_LL128] = 0, "default buffer");
  REFUSED(device.size = offsetof(struct tt_device, describe) - 1, "bytes");
  REFUSED(device.version = 0, "version 0");
  REFUSED((device.features = 0, device.progress = NULL), "progress");
  REFUSED((device.features = 0, device.finish = NULL), "finish");
  device = whole;
  device.size = offsetof(struct tt_device, describe); /* one of version 1 */
  device.version = 1;
  device.features = TT_DEVICE_STREAMS | TT_DEVICE_MEMORY;
  ck_assert_ptr_null(tt_device_refuse(&device, why, sizeof(why)));
  device = whole;
  device.size += 64; /* a later one, which only has more */
  device.version++;
  device.features |= 1u << 31;
  device.progress = NULL;
  device.finish = NULL;
  ck_assert_ptr_null(tt_device_refuse(&device, why, sizeof(why)));
  device = (struct tt_device){.size = sizeof(device), .name = "host-like", .protocols = 1, .default_buffer = {1}};
  device.version = TT_DEVICE_VERSION;
  device.count = whole.count;
  device.launch = whole.launch;
  device.progress = whole.progress;
  device.finish = whole.finish;
  ck_assert_ptr_null(tt_device_refuse(&device, why, sizeof(why)));
}
END_TEST

START_TEST(too_many)
{
  struct tt_device_report report;
  char name[16];
  begin(WITHOUT, NULL);
  for (int i = 0; i < 40; i++) {
    snprintf(name, sizeof(name), "n%d", i);
    ck_assert(!tt_device_load(name, &report));
  }
  ck_assert_ptr_nonnull(strstr(report.reason, "too many"));
}
END_TEST

void add_choose(Suite *suite)
{
  TCase *tc = tcase_create("choose");
  tcase_add_test(tc, auto_without_cuda);
  tcase_add_test(tc, auto_with_cuda);
  tcase_add_loop_test(tc, auto_with_cuda_without_devices, 0, 2);
  tcase_add_test(tc, choice_is_told_once);
  tcase_add_test(tc, by_name);
  tcase_add_test(tc, by_another_version);
  tcase_add_test(tc, by_path);
  tcase_add_test(tc, raised_privileges);
  tcase_add_test(tc, refusals);
  tcase_add_test(tc, places);
  tcase_add_test(tc, whole_backends_only);
  tcase_add_test(tc, too_many);
  suite_add_tcase(suite, tc);
}
