/* What the plugin tests share: the record of the stubs' calls, the environment, and opening one network. */
#ifndef TT_TEST_PLUGIN_HELPER_H
#define TT_TEST_PLUGIN_HELPER_H

#include <check.h>
#include <stdbool.h>
#include "plugin/net.h"
#include "plugin/net_offer.h"

#define STUB(file) STUBS "/lib" file ".so"

/* A fresh start: no record, no plugin list, no parameters read, NCCL_NET_PLUGIN = plugins (NULL: unset), log to a file.
 * check runs each test in a process of its own. */
void start(const char *plugins);
/* Sets STUB_<name>_<what>. */
void behave(const char *name, const char *what, const char *value);

/* The recorded calls of plugin `name`, one a line, without its name; "" if none. */
const char *calls(const char *name);
int count_calls(const char *name, const char *beginning);
void forget_calls(void);

/* Everything that was logged so far. */
const char *logged(void);
void check_logged(const char *part);
void check_error(const char *part); /* part of the thread's last error */

/* One rank alone: candidates, offer, choose. */
extern const struct tt_net_request plain;
struct tt_net *open_net(const struct tt_net_request *request);
struct tt_net *open_named(const char *name);
void close_net(struct tt_net *net);
/* Report of the list's entry whose asked text ends with `asked`. */
struct tt_net_report report_of(const char *asked);

void add_abi_tests(Suite *suite);
void add_shim_tests(Suite *suite);
void add_loader_tests(Suite *suite);
void add_whole_tests(Suite *suite);
void add_select_tests(Suite *suite);
void add_thread_tests(Suite *suite);

#endif
