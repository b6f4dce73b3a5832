/* Loading and unloading: names become files, failures become reasons, references balance. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "helper.h"
#include "plugin/library.h"
#include "plugin/net_list.h"

START_TEST(test_cycles)
{
  static const char *const names[] = {"stub6", "stub10", "stub11", "stub12"};
  const char *name = names[_i];
  char path[512];
  snprintf(path, sizeof(path), "%s/lib%s.so", STUBS, name);
  start(path);
  for (int i = 0; i < 100; i++) {
    struct tt_net *net = open_net(&plain), *other = tt_net_retain(net);
    ck_assert_str_eq(tt_net_name(net), name);
    close_net(other);
    ck_assert_int_eq(count_calls(name, "unloaded"), i);
    close_net(net);
    ck_assert_int_eq(count_calls(name, "init"), i + 1);
    ck_assert_int_eq(count_calls(name, "finalize"), _i >= 2 ? i + 1 : 0);
    ck_assert_int_eq(count_calls(name, "unloaded"), i + 1);
    ck_assert_ptr_null(dlopen(path, RTLD_NOW | RTLD_NOLOAD));
    ck_assert_str_eq(report_of(".so").name, name);
  }
  ck_assert_int_eq(tt_net_close(NULL), ncclSuccess);
}
END_TEST

/* Candidates that are not chosen are finalized and unloaded too. */
START_TEST(test_unchosen)
{
  start(STUB("stub12"));
  struct tt_net *net = open_net(&plain);
  ck_assert_str_eq(calls("IB"), "init 77 -1\ndevices 2\nfinalize 77\nunloaded\n");
  ck_assert_str_eq(calls("Socket"), "init 77 -1\ndevices 2\nfinalize 77\nunloaded\n");
  close_net(net);
  /* What is known is not tried again. */
  forget_calls();
  net = open_net(&plain);
  ck_assert_str_eq(calls("IB"), "");
  ck_assert_str_eq(calls("stub12"), "init 77 -1\ndevices 2\n");
  close_net(net);

  /* A set that is given up without a choice leaves nothing behind. */
  start(STUB("stub12"));
  struct tt_net_set *set;
  ck_assert_int_eq(tt_net_candidates(&plain, &set), ncclSuccess);
  ck_assert_int_eq(tt_net_set_count(set), 3);
  tt_net_set_free(set);
  ck_assert_str_eq(calls("stub12"), "init 77 -1\ndevices 2\nfinalize 77\nunloaded\n");
  tt_net_set_free(NULL);
}
END_TEST

START_TEST(test_finalize_error)
{
  start(STUB("stub12"));
  struct tt_net *net = open_net(&plain);
  behave("stub12", "FINALIZE_ERROR", "2");
  ck_assert_int_eq(tt_net_close(net), ncclSystemError);
  check_error("finalize");
  ck_assert_int_eq(count_calls("stub12", "unloaded"), 1);
}
END_TEST

/* A named plugin that cannot be loaded is an error that says why. */
static void cannot_load(const char *plugins, const char *why)
{
  struct tt_net_set *set;
  start(plugins);
  ck_assert_int_eq(tt_net_candidates(&plain, &set), ncclInvalidUsage);
  check_error("NCCL_NET_PLUGIN is ");
  check_error(plugins);
  check_error(why);
  ck_assert_int_eq(tt_net_set_count(set), 0);
  tt_net_set_free(set);
}

START_TEST(test_cannot_load)
{
  cannot_load("/no/such/plugin.so", "no such file");
  check_logged("NET/Plugin: Could not find: /no/such/plugin.so\n");
  cannot_load("nowhere", "no such file, and no libnccl-net-nowhere.so");
  check_logged("NET/Plugin: Could not find: nowhere [libnccl-net-nowhere.so]\n");
  cannot_load("libnowhere.so", "libnowhere.so (no such file)");
  cannot_load(STUBS "/libtext.so", "libtext.so is not a shared library");
  cannot_load("text", "libnccl-net-text.so is not a shared library");
  cannot_load(STUB("needy"), "it needs libgone.so, which was not found");
  cannot_load(STUB("empty"), "it exports no ncclNetPlugin_v6 to v12");
  check_logged("External network plugin " STUB("empty") " is unsupported");
  cannot_load(STUB("future"), "it exports the net plugin ABI v13 only, and this library knows v6 to v12");
  cannot_load(STUB("past"), "v5 only");
  cannot_load(STUB("broken"), "its ncclNetPlugin_v10 has no isend");
  cannot_load(STUB("nameless"), "its ncclNetPlugin_v12 has no name");
  cannot_load(STUB("empty") ",nowhere", "no such file");
  check_error("it exports no ncclNetPlugin_v6");
  cannot_load("STATIC", "no such file"); /* no abbreviation of STATIC_PLUGIN */
  cannot_load("s", "no such file");
  char text[320];
  memset(text, 'x', sizeof(text));
  text[300] = '\0';
  start(text);
  struct tt_net_set *set;
  ck_assert_int_eq(tt_net_candidates(&plain, &set), ncclInvalidUsage);
  check_error("longer than 255 bytes");
  tt_net_set_free(set);
}
END_TEST

/* In a list, what fails gives way to what works. */
START_TEST(test_list)
{
  start("nowhere, " STUB("empty") ",, suffix ,libstub7.so," STUB("multi"));
  struct tt_net *net = open_net(&plain);
  ck_assert_str_eq(tt_net_name(net), "suffixed");
  check_logged("NET/Plugin: Loaded net plugin suffixed (v11)\n");
  check_logged("NET/Plugin: using suffixed (ABI v11, 2 devices) from " STUB(
      "nccl-net-suffix") ": first of NCCL_NET_PLUGIN, usable on all 1 ranks\n");
  check_logged("Using network suffixed\n");
  check_logged("passed over: nowhere (no such file, and no libnccl-net-nowhere.so); " STUB("empty") " (it exports no");
  check_logged("libtutti-net-ofi.so (not installed)");
  close_net(net);

  static const char *const asked[] = {"nowhere",
                                      STUB("empty"),
                                      "suffix",
                                      "libstub7.so",
                                      STUB("multi"),
                                      "libtutti-net-ib.so",
                                      "libtutti-net-ofi.so",
                                      "libtutti-net-socket.so"};
  struct tt_net_report report;
  for (int i = 0; i < 8; i++) {
    ck_assert(tt_net_report(i, &report));
    ck_assert_str_eq(report.asked, asked[i]);
    ck_assert_int_eq(report.named, i < 5);
  }
  ck_assert(!tt_net_report(8, &report));
  ck_assert(!tt_net_report(-1, &report));

  report = report_of("libmulti.so");
  ck_assert_uint_eq(report.exports, 1u << 6 | 1u << 8 | 1u << 10 | 1u << 13);
  ck_assert_int_eq(report.version, 10);
  ck_assert_int_eq(report.ndev, 2);
  ck_assert_int_eq(report.state, TT_NET_USABLE);
  ck_assert_str_eq(report.reason, "");
  report = report_of("suffix");
  ck_assert_str_eq(report.path, STUB("nccl-net-suffix"));
  report = report_of("libtutti-net-ib.so");
  ck_assert_str_eq(report.path, OWN "/libtutti-net-ib.so");
}
END_TEST

START_TEST(test_survey)
{
  start(STUB("future") "," STUB("stub9") "," STUB("stub11"));
  behave("stub11", "NDEV", "0");
  ck_assert_int_eq(report_of("libstub9.so").state, TT_NET_UNTRIED);
  tt_net_survey();
  struct tt_net_report report = report_of("libstub9.so");
  ck_assert_int_eq(report.state, TT_NET_USABLE);
  ck_assert_int_eq(report.version, 9);
  ck_assert(report.can & TT_NET_CAN_VDEVICE);
  report = report_of("libfuture.so");
  ck_assert_int_eq(report.state, TT_NET_PASSED);
  ck_assert_uint_eq(report.exports, 1u << 13);
  report = report_of("libstub11.so");
  ck_assert_int_eq(report.state, TT_NET_PASSED);
  ck_assert_str_eq(report.reason, "no devices on this machine");
  ck_assert_ptr_null(dlopen(STUB("stub9"), RTLD_NOW | RTLD_NOLOAD));
  ck_assert_int_eq(tt_net_reset(), ncclSuccess);
}
END_TEST

START_TEST(test_own_only)
{
  static const char *const values[] = {NULL, "none", "NONE"};
  start(values[_i]);
  struct tt_net *net = open_net(&plain);
  ck_assert_str_eq(tt_net_name(net), "IB");
  check_logged(": first of the search order, usable on all 1 ranks");
  /* Unset, libnccl-net.so is tried, and nobody minds that it is not there. */
  struct tt_net_report report;
  ck_assert(tt_net_report(0, &report));
  ck_assert_str_eq(report.asked, _i ? "libtutti-net-ib.so" : "libnccl-net.so");
  ck_assert_ptr_null(strstr(logged(), "Could not find"));
  close_net(net);
}
END_TEST

START_TEST(test_static_plugin)
{
  static const char *const words[] = {"STATIC_PLUGIN", "static_plugin"};
  start(words[_i]);
  struct tt_net *net = open_net(&plain);
  ck_assert_str_eq(tt_net_name(net), "program");
  ck_assert_int_eq(tt_net_version(net), 9);
  close_net(net);
}
END_TEST

START_TEST(test_reset_refused)
{
  start(STUB("stub12"));
  struct tt_net *net = open_net(&plain);
  ck_assert_int_eq(tt_net_reset(), ncclInvalidUsage);
  check_error("stub12 is in use");
  close_net(net);
  ck_assert_int_eq(tt_net_reset(), ncclSuccess);
}
END_TEST

/* In a program with raised privileges the environment must not name files. */
START_TEST(test_secure)
{
  static struct tt_net_library list[TT_NET_MAX_LIBRARIES];
  start(NULL);
  ck_assert(!tt_plugin_secure());
  ck_assert_int_eq(tt_net_list_parse("/tmp/evil.so,b", false, "/lib", list), 5);
  ck_assert_str_eq(list[0].files[0], "/tmp/evil.so");
  ck_assert_str_eq(list[1].files[1], "libnccl-net-b.so");
  ck_assert_str_eq(list[2].files[0], "/lib/tutti/libtutti-net-ib.so");
  ck_assert_str_eq(list[4].files[1], "/lib/libtutti-net-socket.so");
  ck_assert_int_eq(tt_net_list_parse("/tmp/evil.so,b", true, "/lib", list), 4);
  ck_assert_str_eq(list[0].files[0], "libnccl-net.so");
  check_logged("NCCL_NET_PLUGIN is ignored");
  ck_assert_int_eq(tt_net_list_parse("none", true, "/lib", list), 3);
  ck_assert_int_eq(tt_net_list_parse("none", false, "/lib/tutti/compat", list), 3);
  ck_assert_str_eq(list[2].files[1], "/lib/tutti/compat/../libtutti-net-socket.so"); /* around the drop-in */
  ck_assert_int_eq(tt_net_list_parse("1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", false, "/lib", list), 17);
  check_error("those from 15,16 on are ignored");
}
END_TEST

/* The same with a real program: this one, copied and made to run as another user. Needs root and a file system that
 * honours the set-user-id bit; elsewhere the kernel raises nothing and there is nothing to see. */
START_TEST(test_setuid_program)
{
  char copy[] = "./test_plugin.XXXXXX", command[512], first[300] = "";
  int fd = mkstemp(copy);
  ck_assert_int_ge(fd, 0);
  close(fd);
  snprintf(command, sizeof(command), "cp /proc/%d/exe %s", (int)getpid(), copy);
  ck_assert_int_eq(system(command), 0);
  start(STUB("stub12"));
  unsetenv("STUB_RECORD"); /* an address of this process */
  unsetenv("NCCL_DEBUG");  /* the other user cannot write this log */
  bool raised = chown(copy, 65534, 65534) == 0 && chmod(copy, 04755) == 0;
  snprintf(command, sizeof(command), "%s --first-plugin", copy);
  FILE *pipe = popen(command, "r");
  ck_assert_ptr_nonnull(pipe);
  ck_assert_ptr_nonnull(fgets(first, sizeof(first), pipe));
  int status = pclose(pipe);
  struct statvfs where;
  raised = raised && geteuid() == 0 && statvfs(copy, &where) == 0 && !(where.f_flag & ST_NOSUID);
  unlink(copy);
  ck_assert_int_eq(status, 0);
  ck_assert_str_eq(first, raised ? "libnccl-net.so\n" : STUB("stub12") "\n");
}
END_TEST

START_TEST(test_suffix_names)
{
  static const struct {
    const char *name, *file;
  } cases[] = {{"ofi", "libnccl-net-ofi.so"},
               {"libofi", "libnccl-net-libofi.so"},
               {"ofi.so", "libnccl-net-ofi.so.so"},
               {"libofi.so", NULL},
               {"./ofi", NULL},
               {"a/b", NULL},
               {"", NULL},
               {"Static_Plugin", NULL},
               {"static", "libnccl-net-static.so"}};
  char file[TT_PLUGIN_NAME_BYTES];
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    bool made = tt_plugin_suffix_name("libnccl-net", cases[i].name, file);
    ck_assert_msg(made == (cases[i].file != NULL), "%s", cases[i].name);
    if (made) ck_assert_str_eq(file, cases[i].file);
  }
}
END_TEST

void add_loader_tests(Suite *suite)
{
  TCase *tcase = tcase_create("loader");
  tcase_set_timeout(tcase, 60);
  tcase_add_loop_test(tcase, test_cycles, 0, 4);
  tcase_add_test(tcase, test_unchosen);
  tcase_add_test(tcase, test_finalize_error);
  tcase_add_test(tcase, test_cannot_load);
  tcase_add_test(tcase, test_list);
  tcase_add_test(tcase, test_survey);
  tcase_add_loop_test(tcase, test_own_only, 0, 3);
  tcase_add_loop_test(tcase, test_static_plugin, 0, 2);
  tcase_add_test(tcase, test_reset_refused);
  tcase_add_test(tcase, test_secure);
  tcase_add_test(tcase, test_setuid_program);
  tcase_add_test(tcase, test_suffix_names);
  suite_add_tcase(suite, tcase);
}
