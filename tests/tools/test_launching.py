"""tutti-perf under launchers of processes, and by hand on several ranks. Arguments as support.py has them."""
import re
import shutil
import signal
import subprocess

from support import Case, environment, FAULTY, free_port, main, PERF, run


class Launching(Case):
    def environment_of(self, launcher, rank, size, port):
        if launcher == "torchrun":
            return environment(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size,
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_RUN_ID="none")
        if launcher == "srun":
            return environment(SLURM_PROCID=rank, SLURM_NTASKS=size, SLURM_LOCALID=rank, SLURM_STEP_ID=0,
                               SLURM_JOB_ID=port, SLURM_STEP_NUM_NODES=1)
        if launcher == "pmi":
            return environment(PMI_RANK=rank, PMI_SIZE=size, MPI_LOCALRANKID=rank, MPI_LOCALNRANKS=size)
        return environment()

    def start(self, launcher, size=3, program=PERF, more=(), **faults):
        port = free_port()
        processes = []
        for rank in range(size):
            command = [program, "all_reduce", "-b", "8", "-e", "4K", "-f", "8", "--iters", "3", *more]
            if launcher == "hand":
                command += ["--rank", str(rank), "--nranks", str(size), "--root-addr", f"127.0.0.1:{port}"]
            env = self.environment_of(launcher, rank, size, port - 17 if launcher == "torchrun" else port)
            env.update(faults)
            processes.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE,
                                              stderr=subprocess.PIPE))
        out = []
        for process in processes:
            text, errors = process.communicate(timeout=120)
            out.append(subprocess.CompletedProcess([], process.returncode, text, errors))
        return out

    def test_environments(self):
        for launcher in ("torchrun", "srun", "pmi", "hand"):
            with self.subTest(launcher):
                first, *others = self.start(launcher)
                self.good(first, 4)
                for other in others:
                    self.assertEqual((other.returncode, other.stdout, other.stderr), (0, "", ""))

    def test_threads_too(self):
        first, *_ = self.start("hand", more=("-t", "2"))
        self.good(first, 4)
        self.assertEqual(len(re.findall(r"^#  Rank ", first.stdout, re.M)), 6)

    def mpirun(self, name, *flags):
        program = shutil.which(name)
        if not program:
            self.skipTest(f"there is no {name}")
        self.good(run(program, *flags, "-np", 4, PERF, "all_reduce", "-b", 8, "-e", "4K", "-f", 8, "--iters", 3), 4)

    def test_open_mpi(self):
        version = run("mpirun", "--version").stdout if shutil.which("mpirun") else ""
        if "Open MPI" not in version:
            self.skipTest("mpirun is not Open MPI's")
        self.mpirun("mpirun", "--allow-run-as-root", "--oversubscribe")

    def test_mpich(self):
        self.mpirun("mpirun.mpich")

    def test_mpich_through_a_shell(self):
        program = shutil.which("mpirun.mpich")
        if not program:
            self.skipTest("there is no mpirun.mpich")
        done = run(program, "-np", 3, "sh", "-c", f"{PERF} all_reduce -b 8 -e 8 --iters 2; exit $?")
        self.good(done, 1)

    def test_count_given_twice(self):
        done = run(PERF, "all_reduce", "-n", 2, env=self.environment_of("pmi", 0, 2, 0))
        self.assertEqual(done.returncode, 2)
        self.assertIn("leave out -n", done.stderr)

    def test_no_such_port(self):
        """The system would take it for another one, where nobody else is."""
        for flags, env in ((["--root-addr", "127.0.0.1:99999"], {}), ([], {"TUTTI_PERF_ROOT": "127.0.0.1:99999"})):
            done = run(PERF, "all_reduce", "--rank", 0, "--nranks", 2, *flags, env=environment(**env))
            self.assertIn(done.returncode, (2, 3), done.stdout)
            self.assertIn("127.0.0.1:99999: is not HOST:PORT, with a port from 1 to 65535", done.stderr)

    def test_who_never_comes(self):
        done = run(PERF, "all_reduce", "--rank", 0, "--nranks", 3, "--root-addr", f"127.0.0.1:{free_port()}",
                   "--join-timeout", 1)
        self.assertEqual(done.returncode, 3)
        self.assertIn("1, 2", done.stderr)

    def test_a_process_that_dies_ends_the_others(self):
        done = self.start("hand", program=FAULTY, TEST_FAULT="kill", TEST_FAULT_RANK="1", TEST_FAULT_CALL="3")
        self.assertEqual(done[1].returncode, -signal.SIGKILL)
        for rank in (0, 2):
            self.assertEqual(done[rank].returncode, 3, done[rank].stderr)


if __name__ == "__main__":
    main()
