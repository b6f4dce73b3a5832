"""Ranks that fail: those that live end with an error that names the one to blame, in bounded time, and leave nothing.
The ranks have no parent that could end them and, but for the class of tutti-perf, no way to hear of each other than
the library."""
import os
import re
import signal
import socket
import time

import lib
from lib import Case

# A multiple of what the library allows itself; a hang is what would exceed it.
BOUND = 60


class Failures(Case):
    def tearDown(self):
        self.nothing_left()

    def blamed(self, processes, rank, pattern=None, timeout=BOUND):
        """All given processes end with status 3 and name `rank`."""
        end = time.monotonic() + timeout
        for process in filter(None, processes):
            process.wait(max(1, end - time.monotonic()))
        for index, process in enumerate(processes):
            if process is not None:
                self.assertEqual(process.status, 3, f"rank {index}: {process.all}")
                self.assertRegex(process.err, pattern or rf"\brank {rank}\b", f"rank {index}")

    def running(self, processes):
        self.until(lambda: all("running" in p.out or p.popen.poll() is not None for p in processes), "the loop's start")
        for process in processes:
            self.assertIsNone(process.popen.poll(), process.all)

    def held(self, steps, **env):
        """Ranks on a network that takes a message of 1000 bytes, and never sends it. All are of one connection."""
        return self.ranks(steps, NCCL_SHM_DISABLE=1, NCCL_P2P_DISABLE=1, NCCL_NCHANNELS_PER_NET_PEER=1,
                          NCCL_NET_PLUGIN=os.environ["E2E_HOLDING_NET"], HOLD_BYTES=1000,
                          HOLD_PLUGIN=os.environ["E2E_SOCKET_NET"], **env)

    def kill(self, processes, rank):
        os.kill(processes[rank].pid, signal.SIGKILL)
        self.blamed([p for p in processes if p is not processes[rank]], rank)


class Init(Failures):
    def missing(self, processes, rank):
        self.blamed(processes, rank, rf"(?s)(?=.*\b(ranks?:? )?{rank}\b)(?=.*NCCL_BOOTSTRAP_TIMEOUT)")

    def test_a_rank_that_never_starts(self):
        self.missing(self.ranks(["init", "init", "init", None], NCCL_BOOTSTRAP_TIMEOUT=3), 3)

    def test_a_late_rank_is_named_while_it_is_waited_for(self):
        processes = self.ranks(["init", "init", "init", None], NCCL_BOOTSTRAP_TIMEOUT=5, TUTTI_INIT_WARN=1,
                               NCCL_DEBUG="WARN")
        self.missing(processes, 3)
        for rank in range(3):
            said = re.findall(rf"rank {rank} of 4 waits: 3 of 4 ranks have come so far; missing rank 3",
                              processes[rank].all)
            self.assertEqual(len(said), 2, processes[rank].all)  # after one second and two more

    def test_a_rank_that_leaves_before_init(self):
        processes = self.ranks(["init", "init", "id leave", "init"], NCCL_BOOTSTRAP_TIMEOUT=3)
        self.assertEqual(processes[2].wait().status, 0)
        processes[2] = None
        self.missing(processes, 2)

    def test_rank_0_leaves_before_init(self):
        """It has made the unique id, and takes the meeting point with it."""
        processes = self.ranks(["id leave", "init", "init"], NCCL_BOOTSTRAP_TIMEOUT=5, NCCL_SOCKET_RETRY_CNT=2)
        processes[0].wait()
        processes[0] = None
        self.blamed(processes, 0, r"root|rank 0")

    def test_a_rank_that_is_killed_during_init(self):
        file = os.path.join(self.work, "id")
        processes = [self.rank(r, 4, file, "init", NCCL_BOOTSTRAP_TIMEOUT=5) for r in range(3)]
        self.until(lambda: lib.listening(processes[2].pid), "the listening of rank 2")
        time.sleep(0.3)
        os.kill(processes[2].pid, signal.SIGKILL)
        processes[2].wait()
        late = self.rank(3, 4, file, "init", NCCL_BOOTSTRAP_TIMEOUT=5, NCCL_SOCKET_RETRY_CNT=2)
        self.blamed([*processes[:2], late], 2)  # the others have given up, but the root tells the one that came after

    def test_clients_that_speak_something_else(self):
        """Connections with garbage, with nothing, and such that close at once: init succeeds all the same."""
        file = os.path.join(self.work, "id")
        processes = [self.rank(0, 4, file, "init all_reduce:1000 destroy")]
        self.until(lambda: os.path.exists(file), "the id")
        pid = processes[0].pid
        ports = {port for port, _ in lib.listening(pid)}
        self.assertTrue(ports, "rank 0 listens nowhere")
        sockets = []
        for address, port in [(a, p) for a in self.addresses() for p in ports]:
            for content in (b"", b"\0" * 200, b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), lib.read(file, "rb")):
                try:
                    client = socket.create_connection((address, port), 5)
                    client.sendall(content)
                except OSError:
                    continue
                sockets.append(client)
        self.assertGreater(len(sockets), 3, "no client reached rank 0")
        for client in sockets[::2]:
            client.close()
        processes += [self.rank(r, 4, file, "init all_reduce:1000 destroy") for r in (1, 2, 3)]
        for rank, process in enumerate(processes):
            self.assertEqual(process.wait().status, 0, f"rank {rank}: {process.all}")
        for client in sockets:
            client.close()

    @staticmethod
    def addresses():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))
                return ["127.0.0.1", "::1", probe.getsockname()[0]]
            except OSError:
                return ["127.0.0.1", "::1"]

    def test_a_damaged_id(self):
        """One rank has an id that is not what rank 0 made: that rank says so, and the others that it did not come."""
        file, damaged = os.path.join(self.work, "id"), os.path.join(self.work, "damaged")
        processes = [self.rank(r, 3, file, "init", NCCL_BOOTSTRAP_TIMEOUT=4) for r in range(2)]
        self.until(lambda: os.path.exists(file), "the id")
        with open(damaged, "wb") as out:
            out.write(os.urandom(128))
        stray = self.rank(2, 3, damaged, "init", NCCL_BOOTSTRAP_TIMEOUT=4)
        self.assertEqual(stray.wait(BOUND).status, 3, stray.all)
        self.assertRegex(stray.err, "unique id")
        self.missing(processes, 2)

    def test_too_few_descriptors(self):
        """The limit is named, with what raises it, wherever files run short: at the root, for memory, for sockets."""
        # Nobody waits until the bootstrap's time has passed.
        network = {"NCCL_SHM_DISABLE": "1"}
        cases = [(limit, {}) for limit in (12, 16, 18, *range(20, 26))] + [(limit, network) for limit in range(20, 25)]
        for limit, setting in cases:
            command = ["prlimit", f"--nofile={limit}:{limit}", lib.RANKS]
            file = os.path.join(self.work, f"id-{limit}-{len(setting)}")
            processes = [self.start(*command, r, 8, file, "init", "all_reduce:1000", NCCL_BOOTSTRAP_TIMEOUT=10 * BOUND,
                                    NCCL_DEBUG="WARN", **setting) for r in range(8)]
            for process in processes:
                self.assertEqual(process.wait(BOUND).status, 3, process.all)
            self.assertRegex("".join(p.all for p in processes),
                             rf"the limit of open files is {limit}; raise it with ulimit -n")

    def test_two_ranks_with_one_number(self):
        file = os.path.join(self.work, "id")
        processes = [self.rank(r, 3, file, "init", NCCL_BOOTSTRAP_TIMEOUT=6) for r in (0, 1, 1)]
        for process in processes:
            self.assertEqual(process.wait(BOUND).status, 3, process.all)
        self.assertTrue([p for p in processes if re.search(r"rank 1\b.*(twice|already|two|second)", p.err)],
                        "".join(p.all for p in processes))

    def test_ranks_that_disagree_on_their_number(self):
        file = os.path.join(self.work, "id")
        processes = [self.rank(r, n, file, "init", NCCL_BOOTSTRAP_TIMEOUT=6) for r, n in ((0, 3), (1, 3), (2, 4))]
        for process in processes:
            self.assertEqual(process.wait(BOUND).status, 3, process.all)
        self.assertTrue([p for p in processes if re.search(r"(?s)(?=.*\b3\b)(?=.*\b4\b)", p.err)],
                        "".join(p.all for p in processes))


class Stopped(Failures):
    """Processes that are stopped close nothing, and are found out because they do not answer."""

    def stop(self, processes, rank):
        os.kill(processes[rank].pid, signal.SIGSTOP)
        self.blamed([p for p in processes if p is not processes[rank]], rank,
                    rf"rank {rank} has not answered for 2 s \(TUTTI_PEER_TIMEOUT\)")
        self.assertIsNone(processes[rank].popen.poll())
        os.kill(processes[rank].pid, signal.SIGCONT)  # it finds out that the others went on without it
        processes[rank].wait(BOUND)
        self.assertEqual(processes[rank].status, 3, processes[rank].all)
        self.assertRegex(processes[rank].err, rf"rank \d has given this rank up: rank {rank} has not answered for 2 s")

    def test_in_an_all_reduce(self):
        for victim, setting in enumerate(({}, {"NCCL_SHM_DISABLE": "1"})):
            with self.subTest(**setting):
                processes = self.ranks(["init loop:all_reduce:1000"] * 4, TUTTI_PEER_TIMEOUT=2, **setting)
                self.running(processes)
                self.stop(processes, victim + 1)

    def test_after_the_device_is_done(self):
        """Only the network waits for the rank that is stopped; who destroys the communicator waits for the network."""
        processes = self.held(["device:0 init shift:10 send:500:1 destroy",
                               "device:1 init shift:10 ready sleep:600000"], TUTTI_DEVICE=os.environ["E2E_FAKE"],
                              TUTTI_PEER_TIMEOUT=2, NCCL_DEBUG="WARN")
        self.running(processes[1:])
        os.kill(processes[1].pid, signal.SIGSTOP)
        processes[0].wait(BOUND)
        self.assertRegex(processes[0].all, r"rank 1 has not answered for 2 s \(TUTTI_PEER_TIMEOUT\)")
        os.kill(processes[1].pid, signal.SIGKILL)

    def test_late_is_not_dead(self):
        """A rank whose user does something else answers all the same."""
        processes = self.ranks(["init all_reduce:10 all_reduce:10", "init all_reduce:10 sleep:4000 all_reduce:10"],
                               TUTTI_PEER_TIMEOUT=1)
        for process in processes:
            self.assertEqual(process.wait(BOUND).status, 0, process.all)


class Killed(Failures):
    """kill -9 in the middle of operations, by ways of moving data."""

    SETTINGS = ({}, {"NCCL_ALGO": "ring"}, {"NCCL_ALGO": "tree"}, {"NCCL_PROTO": "LL", "NCCL_ALGO": "ring"},
                {"NCCL_SHM_DISABLE": "1"}, {"NCCL_SHM_DISABLE": "1", "NCCL_ALGO": "tree", "NCCL_PROTO": "LL"})

    def test_in_an_all_reduce(self):
        for number, setting in enumerate(self.SETTINGS):
            for count in (2, 200000):
                with self.subTest(count=count, **setting):
                    processes = self.ranks([f"init loop:all_reduce:{count}"] * 4, **setting)
                    self.running(processes)
                    self.kill(processes, number % 4)

    def test_in_other_collectives(self):
        for victim, collective in enumerate(("all_gather", "reduce_scatter", "broadcast", "reduce")):
            with self.subTest(collective):
                # An all_reduce in between keeps those that only send from running ahead forever.
                processes = self.ranks([f"init loop:{collective}:5000"] * 4)
                self.running(processes)
                self.kill(processes, victim)

    def test_on_host_streams(self):
        processes = self.ranks(["init stream loop:all_reduce:200000"] * 3)
        self.running(processes)
        self.kill(processes, 1)

    def test_between_operations(self):
        """The dead rank left before the others called anything."""
        processes = self.ranks(["init all_reduce:10 loop:all_reduce:10", "init all_reduce:10 leave",
                                "init all_reduce:10 loop:all_reduce:10"])
        self.assertEqual(processes[1].wait().status, 0, processes[1].all)
        processes[1] = None
        self.blamed(processes, 1)

    def test_before_the_first_operation(self):
        """The others wait for connections with it."""
        for steps in ("init leave", "init destroy leave"):
            for setting in ({}, {"NCCL_SHM_DISABLE": "1"}, {"NCCL_ALGO": "ring"}):
                with self.subTest(steps, **setting):
                    processes = self.ranks(["init all_reduce:10", steps, "init all_reduce:10"], **setting)
                    self.assertEqual(processes[1].wait().status, 0, processes[1].all)
                    processes[1] = None
                    self.blamed(processes, 1)

    def test_a_rank_that_destroys_its_communicator_too_early(self):
        processes = self.ranks(["init all_reduce:10 all_reduce:10", "init all_reduce:10 destroy",
                                "init all_reduce:10 all_reduce:10"])
        self.assertEqual(processes[1].wait().status, 0, processes[1].all)
        processes[1] = None
        self.blamed(processes, 1)

    def test_many_ranks_of_which_one_leaves_too_early(self):
        """Most ranks have no connection of their own with it."""
        processes = self.ranks(["init all_reduce:10 all_reduce:10"] * 8 + ["init all_reduce:10 destroy"],
                               NCCL_ALGO="ring")
        self.assertEqual(processes[8].wait().status, 0, processes[8].all)
        processes[8] = None
        self.blamed(processes, 8)

    def test_all_at_once(self):
        processes = self.ranks(["init loop:all_reduce:1000"] * 4)
        self.running(processes)
        for process in processes[1:]:
            os.kill(process.pid, signal.SIGKILL)
        self.blamed(processes[:1], 1, r"\brank [123]\b")

    def test_nothing_is_left(self):
        """No file in /dev/shm, then or after; no port that still listens."""
        before = set(os.listdir("/dev/shm"))
        processes = self.ranks(["init loop:all_reduce:1000"] * 4)
        self.running(processes)
        ports = set()
        for process in processes:
            self.assertNotIn("/dev/shm/", lib.read(f"/proc/{process.pid}/maps"))
            ports |= lib.listening(process.pid)
        self.assertTrue(ports)
        for process in processes[1:]:
            os.kill(process.pid, signal.SIGKILL)
        self.blamed(processes[:1], 1, r"\brank [123]\b")
        self.nothing_left()
        self.until(lambda: not ports & lib.listeners(), "the end of all ports")
        self.assertFalse([n for n in set(os.listdir("/dev/shm")) - before if re.search("tutti|nccl", n)])


class Late(Failures):
    """A rank that is merely late is no failure, whatever the others have done meanwhile."""

    def fine(self, processes):
        for rank, process in enumerate(processes):
            self.assertEqual(process.wait().status, 0, f"rank {rank}: {process.all}")

    def test_a_late_rank(self):
        for setting in ({}, {"NCCL_SHM_DISABLE": "1"}):
            with self.subTest(**setting):
                self.fine(self.ranks(["init all_reduce:10 sleep:2500 all_reduce:10 destroy"] +
                                     ["init all_reduce:10 all_reduce:10 destroy"] * 3, **setting))

    def test_the_user_does_not_want_to_wait(self):
        """Who waits fails and names the one that is late. That one may find all that it needs for a right result."""
        late, *others = self.ranks(["init all_reduce:10 sleep:4000 all_reduce:10", "init all_reduce:10 all_reduce:10",
                                    "init stream all_reduce:10 all_reduce:10"], TUTTI_LATE_TIMEOUT=2)
        for process in others:
            self.assertEqual(process.wait(BOUND).status, 3, process.all)
            self.assertRegex(process.err, r"TUTTI_LATE_TIMEOUT.*not heard of in it: rank 0\b")
        self.assertIn(late.wait(BOUND).status, (0, 3), late.all)

    def test_the_user_does_not_want_to_wait_for_a_device(self):
        """Which of its operations a device is in is not known, since graphs repeat them."""
        waits, late = self.ranks(["device:0 init all_reduce:10 all_reduce:10", "device:1 init all_reduce:10 sleep:600000"],
                                 TUTTI_DEVICE=os.environ["E2E_FAKE"], TUTTI_LATE_TIMEOUT=2)
        self.assertEqual(waits.wait(BOUND).status, 3, waits.all)
        self.assertRegex(waits.err, r"TUTTI_LATE_TIMEOUT.*not heard to have begun as many operations: rank 1;")
        late.kill()

    def test_who_is_late_in_the_first_of_two(self):
        """Rank 1 has begun fewer operations than rank 0, but is in the one that rank 0 waits in, and says so when it has
        waited for a second."""
        first, second, late = self.ranks(["init all_reduce:10 twice:10", "init all_reduce:10 all_reduce:10 all_reduce:10",
                                          "init all_reduce:10 sleep:600000"],
                                         each=lambda rank: {"TUTTI_LATE_TIMEOUT": 15} if rank == 0 else {})
        self.assertEqual(first.wait(BOUND).status, 3, first.all)
        self.assertRegex(first.err, r"TUTTI_LATE_TIMEOUT.*not heard of in it: rank 2;")
        second.wait(BOUND)
        late.kill()

    def test_the_user_does_not_want_to_wait_for_who_takes_a_message(self):
        """The call has only its network to wait for."""
        sender, late = self.held(["init shift:10 send:500:1", "init shift:10 sleep:600000"], TUTTI_LATE_TIMEOUT=2)
        self.assertEqual(sender.wait(BOUND).status, 3, sender.all)
        self.assertRegex(sender.err, r"TUTTI_LATE_TIMEOUT.*not heard of in it: rank 1\b")
        os.kill(late.pid, signal.SIGKILL)

    def test_an_abort_while_nobody_takes_a_message(self):
        """The call, or the thread that makes it for a non-blocking communicator, has only its network to wait for."""
        for kind in ("", "nonblocking "):
            with self.subTest(kind):
                sender, late = self.held([kind + "init shift:10 abort:1000 send:500:1", "init shift:10 sleep:600000"],
                                         E2E_LOOK_BEHIND=1)
                self.assertEqual(sender.wait(BOUND).status, 3, sender.all)
                self.assertRegex(sender.err, r"send:500:1: .*aborted")
                self.assertNotIn("the abort failed", sender.all)
                self.assertNotIn("LEFT", sender.all)
                late.kill()

    def test_who_is_to_take_a_message_leaves(self):
        sender, leaves = self.held(["init shift:10 send:500:1", "init shift:10 destroy"])
        self.assertEqual(leaves.wait(BOUND).status, 0, leaves.all)
        self.assertEqual(sender.wait(BOUND).status, 3, sender.all)
        self.assertRegex(sender.err, r"send to rank 1, which has left")

    def test_who_is_to_take_what_a_device_has_sent(self):
        """The device is done, and whoever destroys the communicator waits for the network."""
        for steps, limit, words in (("sleep:600000", 2, r"TUTTI_LATE_TIMEOUT.*not heard of in it: rank 1\b"),
                                    ("destroy", 0, r"send to rank 1, which has left")):
            with self.subTest(steps):
                sender, other = self.held(["device:0 init shift:10 send:500:1 destroy",
                                           "device:1 init shift:10 " + steps], TUTTI_DEVICE=os.environ["E2E_FAKE"],
                                          TUTTI_LATE_TIMEOUT=limit, NCCL_DEBUG="WARN")
                sender.wait(BOUND)
                self.assertRegex(sender.all, words)
                other.kill()

    def test_others_have_left_meanwhile(self):
        """The root waits for the last rank; the others, of which some have no connection with it, are done and gone."""
        self.fine(self.ranks(["init all_reduce:10 sleep:2500 reduce:10 destroy"] +
                             ["init all_reduce:10 reduce:10 destroy"] * 6 +
                             ["init all_reduce:10 sleep:5000 reduce:10 destroy"]))


class Perf(Failures):
    """The same of tutti-perf, of which each process is started by hand."""

    ENDLESS = ("all_reduce", "-b", 8, "-e", "64K", "-f", 8, "-N", 0, "--iters", 5)

    def test_a_process_that_never_starts(self):
        port = lib.free_port()
        processes = [self.start(lib.PERF, "all_reduce", "-b", 8, "-e", 8, "--rank", r, "--nranks", 4, "--root-addr",
                                f"127.0.0.1:{port}", "--join-timeout", 2) for r in range(3)]
        for process in processes:
            self.assertEqual(process.wait(BOUND).status, 3, process.all)
        self.assertRegex(processes[0].err, r"of 4 processes, these did not come to \S+ within 2 s: 3 ")
        for process in processes[1:]:
            self.assertTrue(process.err.strip(), "a process ended without a word")

    def test_a_process_that_is_killed(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                processes = self.by_hand(self.ENDLESS, 4)
                self.until(lambda p=processes[0]: lib.ROW.search(p.out), "the first row")
                os.kill(processes[victim].pid, signal.SIGKILL)
                self.blamed([p for p in processes if p is not processes[victim]], victim,
                            rf"\b(rank|process) {victim}\b")

    def test_clients_that_speak_something_else(self):
        port = lib.free_port()
        words = ("all_reduce", "-b", 8, "-e", 8, "--nranks", 3, "--root-addr", f"127.0.0.1:{port}")
        processes = [self.start(lib.PERF, *words, "--rank", 0)]
        self.until(lambda: port in {p for p, _ in lib.listening(processes[0].pid)}, "the listening of process 0")
        clients = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(6)]
        contents = (b"", b"x", b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000), b"\0" * 64, b"ttperf1\0")
        for client, content in zip(clients, contents):
            client.sendall(content)
        processes += [self.start(lib.PERF, *words, "--rank", r) for r in (1, 2)]
        for process in processes:
            self.assertEqual(process.wait().status, 0, process.all)
        self.good(processes[0], 1)
        for client in clients:
            client.close()


class Disagreement(Failures):
    """Ranks that call different things. Every rank gets an error that names both sides, and none a wrong number."""

    SETTINGS = ({}, {"NCCL_ALGO": "ring"}, {"NCCL_ALGO": "tree"}, {"NCCL_ALGO": "ring", "NCCL_PROTO": "LL"},
                {"NCCL_ALGO": "ring", "NCCL_PROTO": "Simple"}, {"NCCL_SHM_DISABLE": "1"})
    pairs = 0  # of different calls, each of which meets some of the settings

    def differ(self, usual, odd, one, other, settings=SETTINGS, nranks=3):
        """The last rank does `odd`, the others `usual`; after it all would meet in an all-reduce."""
        Disagreement.pairs += 1
        for (setting,) in lib.share(settings, first=Disagreement.pairs % len(settings)):
            with self.subTest(odd, **setting):
                steps = [f"init all_reduce:100 {odd if r == nranks - 1 else usual} all_reduce:100 destroy"
                         for r in range(nranks)]
                self.blamed(self.ranks(steps, **setting), nranks - 1,
                            rf"(?s)(?=.*{one})(?=.*{other})(?=.*\b[Rr]ank {nranks - 1}\b)"
                            rf"(?=.*\b[Rr]ank [0-{nranks - 2}]\b)")

    def test_counts(self):
        for count, other in ((2, 2000000), (2000000, 2), (1000, 1001)):
            self.differ(f"all_reduce:{count}", f"all_reduce:{other}", f"AllReduce of {count} x float32",
                        f"AllReduce of {other} x float32")

    def test_many_ranks(self):
        """Most have no connection of their own with the odd one."""
        self.differ("all_reduce:2", "all_reduce:3", r"AllReduce of 2 x float32", r"AllReduce of 3 x float32",
                    ({"NCCL_ALGO": "ring"}, {}), 9)

    def test_operations(self):
        self.differ("all_reduce:500", "all_reduce:500:max", r"float32, sum", r"float32, max")

    def test_types(self):
        self.differ("all_reduce:500", "all_reduce:500:sum:int32", r"500 x float32", r"500 x int32")

    def test_collectives(self):
        self.differ("all_reduce:500", "all_gather:500", r"AllReduce of 500", r"AllGather of 500")
        self.differ("broadcast:500", "reduce:500", r"Broadcast of 500", r"Reduce of 500")

    def test_roots(self):
        self.differ("broadcast:500", "broadcast:500:sum:float:1", r"root 0", r"root 1")

    def test_numbers_of_elements_of_other_collectives(self):
        for collective in ("all_gather", "reduce_scatter", "broadcast", "reduce"):
            with self.subTest(collective):
                self.differ(f"{collective}:2", f"{collective}:100000", r"of 2 x float32", r"of 100000 x float32", ({},))

    def test_send_and_receive(self):
        for count, other in ((100, 200), (2, 500000)):
            with self.subTest(count=count):
                self.blamed(self.ranks([f"init send:{count}:1 all_reduce:10", f"init recv:{other}:0 all_reduce:10"]), 0,
                            rf"(?s)(?=.*Rank 0: SendRecv of {4 * count} x)(?=.*Rank 1: SendRecv of {4 * other} x)")


if __name__ == "__main__":
    lib.main()
