#!/usr/bin/env python3
"""Runs a command as root in a virtual machine with two RDMA devices of software (rdma_rxe): rxe0 on veth0 (10.77.0.1) and
rxe1 on veth1 (10.77.0.2), two ends of one cable.

    machine.py [--timeout SECONDS] [--cpus N] [--memory MIB] [--console] COMMAND [ARGUMENT...]

The machine is emulated (QEMU without KVM, which few build machines have) and runs Debian's kernel. It sees all files of
this machine, read only under a layer of its own memory, in which what it writes is lost, and has the same working folder
and environment. What COMMAND writes comes out here, and its exit status is this program's: 124 if the time was over, 125 if
the machine ended without one, whose console is shown then, 77 with a line SKIP if there can be no machine here.

Facts about rxe of Linux 6.1 that tests meet: RoCE v2 over IPv4 is GID index 1; it works in the first network namespace
alone; it has no dma-bufs; messages are at most 8 MiB; its packets of 4096 bytes need an MTU of 4200. A queue pair whose
timeout is below 18 sends again without need when the machine is slow. When its interface goes down while it sends, its
requester may send for ever ("Failed sending ACK", then "soft lockup" in rxe_requester): then the machine ends by itself."""
import argparse
import ctypes
import os
import pathlib
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

import kernel

HERE = pathlib.Path(__file__).resolve().parent
QEMU = "qemu-system-x86_64"
# A kernel that hangs ends the machine.
APPEND = ("console=ttyS0 loglevel=5 panic=-1 mitigations=off nokaslr random.trust_cpu=on audit=0 tsc=reliable "
          "softlockup_panic=1 watchdog_thresh=20")


def skip(why):
    print(f"SKIP: {why}", flush=True)
    return 77


def share(tag, path, more=""):
    path = str(path).replace(",", ",,")
    return ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{more}",
            "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def write_job(job, later, command, environment):
    (job / "guest").write_text((HERE / "guest.sh").read_text())
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()
                      if name.isidentifier())
    (job / "command").write_text(f"{exports}export RDMA_VM=1\ncd {shlex.quote(os.getcwd())} || exit 125\n"
                                 f"exec {shlex.join(command)}\n")
    (job / "modules").write_text(later)
    (job / "console").touch()


def end_with_parent():
    """Whatever ends this program ends the emulator."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def boot(folder, job, arguments):
    """Returns the emulator's exit status; 124: out of time. Standard output of the guest's command is this one's."""
    out = os.dup(sys.stdout.fileno())  # as a file: what reads standard input too ends with it
    command = [QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-machine", "q35", "-smp", str(arguments.cpus),
               "-m", str(arguments.memory), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
               "-kernel", str(folder / "vmlinux"), "-initrd", str(folder / "initrd"), "-append", APPEND,
               "-chardev", f"file,id=console,path={job}/console", "-serial", "chardev:console",
               "-device", "virtio-serial-pci",
               "-add-fd", f"fd={out},set=1", "-chardev", "file,id=out,append=on,path=/dev/fdset/1",
               "-device", "virtserialport,chardev=out,nr=1",
               *share("host", "/", ",readonly=on"), *share("job", job)]
    with open(job / "emulator", "w") as log:
        emulator = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(out,),
                                    preexec_fn=end_with_parent)
        try:
            return emulator.wait(arguments.timeout)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            emulator.kill()
            emulator.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--cpus", type=int, default=2, help="with one, two sides that poll wait for each other's turn")
    parser.add_argument("--memory", type=int, default=2048)
    parser.add_argument("--console", action="store_true", help="show the kernel's console on standard error")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not arguments.command:
        parser.error("no COMMAND")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if platform.machine() != "x86_64":
        return skip(f"the virtual machine is an x86-64 one, and this is {platform.machine()}")
    for program, package in ((QEMU, "qemu-system-x86"), ("rdma", "iproute2")):
        if not shutil.which(program):
            return skip(f"{program} is not installed (package {package})")
    cache = os.environ.get("TUTTI_TEST_CACHE") or os.path.expanduser("~/.cache/tutti-rdma-vm")
    try:
        folder = kernel.get(cache)
    except (kernel.Unavailable, OSError) as error:
        return skip(f"there is no kernel for the virtual machine: {error}")
    with tempfile.TemporaryDirectory(prefix="rdma-vm-") as temporary:
        job = pathlib.Path(temporary)
        write_job(job, (folder / "later").read_text(), arguments.command, os.environ)
        ended = boot(folder, job, arguments)
        status = job / "status"
        if arguments.console or not status.exists():
            for name in ("emulator", "console"):
                sys.stderr.write((job / name).read_text(errors="replace").replace("\r", ""))
        if status.exists():
            return int(status.read_text())
    print(f"machine.py: {f'no end within {arguments.timeout:g} s' if ended == 124 else 'the machine ended early'}",
          file=sys.stderr)
    return 124 if ended == 124 else 125


if __name__ == "__main__":
    sys.exit(main())
