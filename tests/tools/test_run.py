"""tutti-run. Arguments as support.py has them."""
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile

from support import BIN, Case, defaults, ignoring, main, run


class Run(Case):
    RUN = os.path.join(BIN, "tutti-run")

    def setUp(self):
        self.directory = tempfile.mkdtemp()

    def tearDown(self):
        shutil.rmtree(self.directory)

    def build(self, name, text, *flags):
        source, out = os.path.join(self.directory, name + ".c"), os.path.join(self.directory, name)
        with open(source, "w") as f:
            f.write(text)
        done = run("cc", "-o", out, source, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def reported(self, *command):
        """The command has its standard input until tutti-run says something, however long that takes."""
        process = subprocess.Popen([self.RUN, *command], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        with process:
            errors = process.stderr.readline()
            process.stdin.close()
            errors += process.stderr.read()
            out = process.stdout.read()
        return subprocess.CompletedProcess(command, process.returncode, out, errors)

    def other_nccl(self):
        os.mkdir(os.path.join(self.directory, "other"))
        return self.build("other/libnccl.so.2", "#define _GNU_SOURCE\n#include <pthread.h>\n#include <unistd.h>\n"
                          "static void *serve(void *x) { for (;;) pause(); return x; }\n"
                          "int ncclGetVersion(int *v) { *v = 1; return 0; }\n"
                          "int ncclCommInitAll(void) { pthread_t t; pthread_create(&t, 0, serve, 0);\n"
                          "  return pthread_setname_np(t, \"NCCL Service  0\"); }\n", "-shared", "-fPIC",
                          "-Wl,-soname,libnccl.so.2")

    def test_status_is_the_command_s(self):
        self.assertEqual(run(self.RUN, "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(run(self.RUN, "sh", "-c", "kill -9 $$").returncode, 137)
        self.assertEqual(run(self.RUN, "--", "echo", "a b").stdout, "a b\n")

    def test_the_drop_in_takes_the_place_of_the_other(self):
        other = self.other_nccl()
        program = self.build("linked", "#include <stdio.h>\nint ncclGetVersion(int *);\n"
                             "int main(void) { int v; ncclGetVersion(&v); printf(\"%d\\n\", v); }", other,
                             f"-Wl,-rpath,{os.path.dirname(other)}")
        self.assertEqual(run(program).stdout, "1\n")
        done = run(self.RUN, program)
        self.assertEqual((done.stdout, done.stderr), ("22809\n", ""))

    def test_another_nccl_that_has_communicators_is_reported(self):
        other = self.other_nccl()
        program = self.build("loads", "#include <dlfcn.h>\n#include <unistd.h>\n"
                             "int main(int c, char **v) { (void)c; void *l = dlopen(v[1], RTLD_NOW);\n"
                             "  if (!l) return 1; int (*init)(void) = (int (*)(void))dlsym(l, \"ncclCommInitAll\");\n"
                             "  char end; if (!init || init()) return 2; return read(0, &end, 1); }", "-ldl")
        for command in ([program, other], ["sh", "-c", f"{program} {other}; exit $?"]):
            done = self.reported(*command)
            self.assertEqual(done.returncode, 0)
            self.assertIn("calls another NCCL", done.stderr)
            self.assertIn(other, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_another_nccl_that_is_only_mapped(self):
        """As PyTorch does: it opens its own copy by its path, then a library that needs libnccl.so.2."""
        other = self.other_nccl()
        user = self.build("libuser.so", "int ncclGetVersion(int *); int user(int *v) { return ncclGetVersion(v); }",
                          "-shared", "-fPIC", other, f"-Wl,-rpath,{os.path.dirname(other)}", "-Wl,--disable-new-dtags")
        program = self.build("imports", "#include <dlfcn.h>\n#include <stdio.h>\n#include <unistd.h>\n"
                             "int main(int c, char **v) { (void)c; int n = 0; if (!dlopen(v[1], RTLD_NOW)) return 1;\n"
                             "  void *l = dlopen(v[2], RTLD_NOW); if (!l) return 2;\n"
                             "  int (*user)(int *) = (int (*)(int *))dlsym(l, \"user\"); if (!user || user(&n)) return 3;\n"
                             "  char end; printf(\"%d\\n\", n); fflush(stdout); return read(0, &end, 1); }", "-ldl")
        done = run("sh", "-c", 'sleep 1 | "$@"', "sh", self.RUN, program, other, user)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "22809\n", ""))
        done = self.reported("env", "-u", "LD_PRELOAD", program, other, user)
        self.assertEqual((done.returncode, done.stdout), (0, "1\n"))
        self.assertIn("has another NCCL mapped", done.stderr)
        self.assertIn(other, done.stderr)

    def test_a_removed_preload_is_reported(self):
        done = self.reported("env", "-u", "LD_PRELOAD", "cat")
        self.assertIn("without Tutti's drop-in", done.stderr)

    def test_refusals(self):
        static = self.build("static", "int main(void) { return 0; }", "-static")
        for command, status, said in ((["no-such-program"], 127, "no-such-program"), ([static], 126, "statically"),
                                      (["/etc/passwd"], 126, "not executable"), ([], 2, "no command"),
                                      (["-x"], 2, "-x")):
            done = run(self.RUN, *command)
            self.assertEqual(done.returncode, status, command)
            self.assertIn(said, done.stderr)

    def test_no_drop_in_beside_it(self):
        os.mkdir(os.path.join(self.directory, "bin"))
        alone = shutil.copy(self.RUN, os.path.join(self.directory, "bin"))
        done = run(alone, "echo", "x")
        self.assertEqual((done.returncode, done.stdout), (126, ""))
        self.assertIn(f"no drop-in library at {self.directory}/lib/tutti/compat/libnccl.so.2", done.stderr)
        os.makedirs(os.path.join(self.directory, "a b/bin"))
        os.makedirs(os.path.join(self.directory, "a b/lib/tutti/compat"))
        self.build("a b/lib/tutti/compat/libnccl.so.2", "int x;", "-shared", "-fPIC")
        done = run(shutil.copy(self.RUN, os.path.join(self.directory, "a b/bin")), "echo", "x")
        self.assertEqual((done.returncode, done.stdout), (126, ""))
        self.assertIn("blanks", done.stderr)

    def test_signals_are_the_command_s_as_they_were(self):
        """Who started it may ignore the end of children, without which none could be waited for."""
        show = ("grep", "^Sig[BI]", "/proc/self/status")
        for signals in (), (signal.SIGCHLD,), (signal.SIGCHLD, signal.SIGHUP):
            done = run(*ignoring(*signals), self.RUN, *show)
            self.assertEqual((done.returncode, done.stdout), (0, run(*ignoring(*signals), *show).stdout))
        self.assertEqual(run(*ignoring(signal.SIGCHLD), self.RUN, "sh", "-c", "exit 7").returncode, 7)

    def start(self, script, *words, **how):
        """A shell that says that it is ready, once it has what the script begins with. It ends by itself some day."""
        script += "; echo ready; n=600; while [ $((n -= 1)) -gt 0 ]; do sleep 0.1; done"
        process = subprocess.Popen([*words, self.RUN, "sh", "-c", script], text=True, stdout=subprocess.PIPE, **how)
        self.addCleanup(process.stdout.close)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def test_signals_are_passed_on(self):
        """Also those that a terminal sends, where somebody else did."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
                       signal.SIGALRM, signal.SIGCONT, signal.SIGRTMIN + 3):
            process = self.start(f"trap 'exit 5' {int(number)}", *defaults(number))
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=120), 5, number)

    def test_a_signal_that_ends_the_command(self):
        process = self.start(":")
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(timeout=120), 128 + signal.SIGUSR1)

    def test_a_terminal_s_signal_comes_once(self):
        """The command is in its foreground too."""
        terminal, side = pty.openpty()
        self.addCleanup(os.close, terminal)
        own = "import fcntl, os, sys, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\nos.execvp(sys.argv[1], sys.argv[1:])"
        process = self.start("trap 'n=$((n + 1000)); echo interrupted' INT; trap 'echo ended; exit 5' TERM",
                             *defaults(signal.SIGINT), sys.executable, "-c", own, stdin=side, start_new_session=True)
        os.close(side)
        os.write(terminal, b"\x03")
        self.assertEqual(process.stdout.readline(), "interrupted\n")
        process.terminate()
        self.assertEqual((process.stdout.read(), process.wait(timeout=120)), ("ended\n", 5))

    def test_the_command_ends_with_it(self):
        process = self.start("trap 'echo ended; exit' TERM")
        process.kill()
        self.assertEqual(process.stdout.read(), "ended\n")
        process.wait(timeout=120)


if __name__ == "__main__":
    main()
