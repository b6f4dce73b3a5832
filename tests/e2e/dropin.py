"""The drop-in: a program linked against NVIDIA's own libnccl.so runs on Tutti under tutti-run, and where another NCCL
wins all the same, tutti-run says so."""
import os
import subprocess

import lib
from lib import BIN, SANITIZE, SOURCE, Case

RUN = os.path.join(BIN, "tutti-run")
CUDA = "/usr/local/cuda/lib64/libnccl.so"


class Built(Case):
    @classmethod
    def setUpClass(cls):
        # A sanitizer's runtime must be loaded before a preloaded library that needs it.
        lib.need(not SANITIZE, "a library with sanitizers cannot be preloaded")
        lib.need(subprocess.run(["cc", "--version"], stdout=subprocess.DEVNULL).returncode == 0, "there is no cc")

    def build(self, name, source, *flags):
        out = os.path.join(self.work, name)
        done = self.run_it("cc", "-o", out, source, *flags)
        self.assertEqual(done.status, 0, done.err)
        return out

    def write(self, name, text):
        path = os.path.join(self.work, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def example(self, process):
        self.assertEqual(process.status, 0, process.all)
        self.assertEqual(process.out, "out[999] = 4002 on every rank\n")
        self.assertEqual(process.err, "")


class DropIn(Built):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        lib.need(os.path.exists(CUDA), f"there is no {CUDA}")

    def setUp(self):
        super().setUp()
        self.flags = ("-I", f"{SOURCE}/core/include", "-DTUTTI_NO_CUDA_HEADERS", f"-L{os.path.dirname(CUDA)}", "-lnccl",
                      "-Wl,--disable-new-dtags")

    def test_linked_with_nvidia_s_library(self):
        program = self.build("plain", f"{SOURCE}/examples/all_reduce.c", *self.flags)
        alone = self.run_it(program)
        self.assertNotEqual(alone.status, 0, "the program runs without the drop-in, so this test proves nothing")
        self.example(self.run_it(RUN, program))

    def test_with_the_path_of_nvidia_s_library_inside(self):
        """LD_PRELOAD wins over DT_RPATH."""
        program = self.build("rpath", f"{SOURCE}/examples/all_reduce.c", *self.flags,
                             f"-Wl,-rpath,{os.path.dirname(CUDA)}")
        self.assertNotEqual(self.run_it(program).status, 0)
        self.example(self.run_it(RUN, program))

    def test_the_log_says_whose_library_it_is(self):
        program = self.build("plain", f"{SOURCE}/examples/all_reduce.c", *self.flags)
        process = self.run_it(RUN, program, NCCL_DEBUG="VERSION")
        self.assertRegex(process.all, r"NCCL version \S+ \(Tutti \S+\)")


class Others(Built):
    """What needs no library of NVIDIA's."""

    def other(self):
        os.mkdir(os.path.join(self.work, "other"))
        source = self.write("other.c", "#define _GNU_SOURCE\n#include <pthread.h>\n#include <unistd.h>\n"
                            "static void *serve(void *x) { for (;;) pause(); return x; }\n"
                            "int ncclGetVersion(int *v) { pthread_t t; *v = 1; pthread_create(&t, 0, serve, 0);\n"
                            "  return pthread_setname_np(t, \"NCCL Service  0\"); }\n")
        return self.build("other/libnccl.so.2", source, "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2")

    def test_a_library_opened_by_path_and_used_is_reported(self):
        other = self.other()
        source = self.write("opens.c", "#include <dlfcn.h>\n#include <stdio.h>\n#include <unistd.h>\n"
                            "int main(int c, char **v) { (void)c; void *l = dlopen(v[1], RTLD_NOW);\n"
                            "  int (*get)(int *) = l ? (int (*)(int *))dlsym(l, \"ncclGetVersion\") : 0, version;\n"
                            "  if (!get || get(&version)) return 1;\n"
                            "  printf(\"%d\\n\", version); fflush(stdout); sleep(2); return 0; }\n")
        process = self.run_it(RUN, self.build("opens", source, "-ldl"), other)
        self.assertEqual((process.status, process.out), (0, "1\n"), process.all)
        self.assertIn("calls another NCCL", process.err)
        self.assertIn(other, process.err)

    def test_status_and_signals_pass_through(self):
        self.assertEqual(self.run_it(RUN, "sh", "-c", "exit 9").status, 9)
        self.assertEqual(self.run_it(RUN, "sh", "-c", "kill -TERM $$").status, 143)


if __name__ == "__main__":
    lib.main()
