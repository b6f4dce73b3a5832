"""Ranks started by others: mpirun of Open MPI and MPICH, and processes with the environment of torchrun and of srun."""
import shutil
import subprocess

import lib
from lib import PERF, Case

COMMAND = (PERF, "all_reduce", "-b", 8, "-e", "64K", "-f", 8, "--iters", 2)


def openmpi():
    for name in ("mpirun.openmpi", "mpirun"):
        path = shutil.which(name)
        if path and "Open MPI" in subprocess.run([path, "--version"], text=True, stdout=subprocess.PIPE).stdout:
            return path
    return None


def mpich():
    for name in ("mpirun.mpich", "mpiexec.hydra", "mpirun"):
        path = shutil.which(name)
        if path and "HYDRA" in subprocess.run([path, "--version"], text=True, stdout=subprocess.PIPE).stdout:
            return path
    return None


class Ranks(Case):
    def four(self, process):
        self.assertIn("Rank  3 ", self.good(process, 5))

    def under(self, *command):
        self.four(self.run_it(*command, "-np", 4, *COMMAND))
        # A failing rank ends the job, and its status is not 0.
        process = self.run_it(*command, "-np", 4, *COMMAND, NCCL_ALGO="none")
        self.assertNotEqual(process.status, 0)
        self.assertIn('NCCL_ALGO is "none"', process.all)
        self.nothing_left()


class OpenMPI(Ranks):
    @classmethod
    def setUpClass(cls):
        lib.need(openmpi(), "Open MPI's mpirun is not installed")

    def test_four_ranks(self):
        self.under(openmpi(), "--allow-run-as-root", "--oversubscribe")


class MPICH(Ranks):
    @classmethod
    def setUpClass(cls):
        lib.need(mpich(), "MPICH's mpirun (hydra) is not installed")

    def test_four_ranks(self):
        self.under(mpich())


class Environments(Ranks):
    """Four processes that a shell starts, as those launchers would on one machine."""

    SHELL = """jobs= status=0
for rank in 0 1 2 3; do %s "$@" & jobs="$jobs $!"; done
for job in $jobs; do wait $job || status=$?; done
exit $status"""

    def shell(self, variables):
        self.four(self.run_it("sh", "-c", self.SHELL % variables, "sh", *COMMAND))

    def test_torchrun(self):
        self.shell("RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 "
                   f"MASTER_PORT={lib.free_port() - 17} TORCHELASTIC_RUN_ID=none")

    def test_rank_variables_alone(self):
        self.shell(f"RANK=$rank WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT={lib.free_port() - 17}")

    def test_srun(self):
        self.shell(f"SLURM_JOB_ID={lib.free_port()} SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_STEP_NUM_TASKS=4 "
                   "SLURM_NTASKS=4 SLURM_LOCALID=$rank SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=node1")

    def test_srun_on_two_nodes(self):
        """Ranks meet at the first name of the list, here this machine's."""
        self.shell(f"SLURM_JOB_ID={lib.free_port()} SLURM_STEP_ID=3 SLURM_PROCID=$rank SLURM_STEP_NUM_TASKS=4 "
                   "SLURM_LOCALID=$((rank % 2)) SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=localhost,other")


if __name__ == "__main__":
    lib.main()
