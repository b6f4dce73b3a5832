/* What the thread sanitizer does in this project's programs, unless TSAN_OPTIONS says otherwise. By default a process
 * that ends with threads sleeps for a second, in which these may show a race; tests end thousands of processes. */
const char *__tsan_default_options(void);

__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
  return "atexit_sleep_ms=20";
}
