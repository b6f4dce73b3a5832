"""Debian's kernel for the virtual machine: the package is downloaded once, and never installed. A folder of the cache
gets `vmlinux`, not compressed, since an emulated processor takes seconds to unpack it, and `initrd`, whose one program
mounts this machine's root."""
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile

# What the first program needs to reach the host's files, and what comes then. Modules that these need are found.
BOOT = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console")
LATER = ("veth", "crc32_generic", "rdma_rxe", "ib_uverbs", "sch_netem")

INIT = r"""#!/bin/busybox sh
# Makes the host's files the root: read only, under a layer in memory.
b=/bin/busybox
stop() { echo "init: $*" >/dev/console; $b poweroff -f; }
for where in devtmpfs:/dev proc:/proc sysfs:/sys; do $b mount -t "${where%:*}" none "${where#*:}"; done
for module in BOOT; do $b insmod "/modules/$module.ko" || stop "cannot load $module"; done
options=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $options,ro,cache=loose host /lower || stop 'cannot mount the files of the host'
$b mount -t tmpfs none /upper
$b mkdir /upper/files /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work none /root || stop 'no overlay'
for where in dev proc sys; do $b mount --move /$where /root/$where; done
$b mount -t tmpfs none /root/run
$b mkdir -p /root/run/lock /root/run/modules /root/run/job /root/dev/shm /root/dev/pts
$b mount -t tmpfs -o mode=1777 none /root/dev/shm
$b mount -t devpts -o ptmxmode=666 none /root/dev/pts
$b ln -s /proc/self/fd /root/dev/fd
$b cp /modules/*.ko /bin/busybox /root/run/modules/
$b mount -t 9p -o $options,cache=none job /root/run/job || stop 'cannot mount the job'
exec $b switch_root /root /bin/sh /run/job/guest
"""


class Unavailable(Exception):
    """Why there is no kernel here."""


def archive_entry(name, mode, data=b""):
    """Of a cpio archive of the kind `newc`, which the kernel reads."""
    name = name.encode() + b"\0"
    head = b"070701" + b"".join(b"%08X" % n for n in (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0))
    pad = lambda b: b + bytes(-len(b) % 4)
    return pad(head + name) + pad(data)


def read_module(path):
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def load_order(folder, names):
    """The modules with all that they need, in an order in which they can be loaded, as (name, bytes)."""
    files = {p.name.partition(".")[0].replace("-", "_"): p for p in folder.rglob("*.ko*")}
    found = {}

    def add(name):
        if name in found:
            return
        if name not in files:
            return  # part of the kernel itself
        data = read_module(files[name])
        needed = re.search(rb"\0depends=([^\0]*)", data)
        for other in needed[1].decode().split(",") if needed and needed[1] else ():
            add(other.replace("-", "_"))
        found[name] = data

    for name in names:
        add(name)
    return found


def unpack_kernel(image):
    """The kernel in a bzImage, whose header (Documentation/x86/boot.rst) says where its compressed part lies; the image
    itself where it is compressed by anything but xz."""
    setup_sectors, = struct.unpack_from("<B", image, 0x1F1)
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    if image[start:start + 6] != b"\xfd7zXZ\0":
        return image
    return lzma.LZMADecompressor().decompress(image[start:start + length])  # four bytes with the length follow


def write_initrd(path, folder, busybox):
    boot = load_order(folder, BOOT)
    later = {name: data for name, data in load_order(folder, BOOT + LATER).items() if name not in boot}
    archive = b"".join(archive_entry(name, 0o040755) for name in
                       ("bin", "dev", "proc", "sys", "lower", "upper", "root", "modules"))
    archive += archive_entry("init", 0o100755, INIT.replace("BOOT", " ".join(boot)).encode())
    archive += archive_entry("bin/busybox", 0o100755, pathlib.Path(busybox).read_bytes())
    for name, data in {**boot, **later}.items():
        archive += archive_entry(f"modules/{name}.ko", 0o100644, data)
    path.write_bytes(archive + archive_entry("TRAILER!!!", 0))
    return list(later)


def run(*command, **more):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    if done.returncode:
        raise Unavailable(f"`{' '.join(command)}` failed: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout


def package_name():
    """The package that linux-image-amd64 stands for."""
    for attempt in (False, True):
        if attempt:
            run("apt-get", "-qq", "update")
        found = re.search(r"^\s*Depends: (linux-image-\S+)", run("apt-cache", "depends", "linux-image-amd64"), re.M) \
            if subprocess.run(["apt-cache", "show", "linux-image-amd64"], capture_output=True).returncode == 0 else None
        if found:
            return found[1]
    raise Unavailable("apt knows no linux-image-amd64")


def make(folder, busybox):
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        work = pathlib.Path(temporary)
        run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package_name(), cwd=work)
        run("dpkg-deb", "-x", str(next(work.glob("*.deb"))), str(work / "files"))
        ready = work / "ready"
        ready.mkdir()
        (ready / "vmlinux").write_bytes(unpack_kernel(next((work / "files/boot").glob("vmlinuz-*")).read_bytes()))
        later = write_initrd(ready / "initrd", work / "files/lib/modules", busybox)
        (ready / "later").write_text(" ".join(later))
        try:
            os.replace(ready, folder)
        except OSError:
            if not (folder / "later").exists():  # else another run was faster
                raise


def get(cache):
    """A folder with `vmlinux`, `initrd`, and in `later` the names of the modules that the first program does not load.
    Raises Unavailable, with the reason."""
    for program, package in (("busybox", "busybox-static"), ("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        if not shutil.which(program):
            raise Unavailable(f"{program} is not installed (package {package})")
    what = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()[:16]
    folder = pathlib.Path(cache) / what
    if not (folder / "later").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        make(folder, shutil.which("busybox"))
    return folder
