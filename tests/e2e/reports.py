"""Reports of running processes: tutti-info --pid, the signal, and what they say of ranks that wait, are late, stuck,
stopped or just being born."""
import json
import os
import re
import signal
import subprocess
import time

import lib
from lib import BIN, Case

INFO = os.path.join(BIN, "tutti-info")


def refused(pid, **options):
    done = subprocess.run([INFO, "--pid", str(pid)], capture_output=True, text=True, timeout=lib.PATIENCE, **options)
    return (done.returncode, done.stdout), done.stderr


class Reports(Case):
    def setUp(self):
        super().setUp()
        self.started = []

    def start(self, *command, **options):
        self.started.append(super().start(*command, **options))
        return self.started[-1]

    def tearDown(self):
        for process in self.started:
            process.kill()
        self.nothing_left()

    def report(self, process):
        """The report in JSON; None when there is nobody to give one."""
        done = subprocess.run([INFO, "--pid", str(process.pid), "--json"], capture_output=True, text=True,
                              timeout=lib.PATIENCE)
        if done.returncode != 0:
            self.assertEqual(done.stdout, "")
            self.assertRegex(done.stderr, rf"^tutti-info: process {process.pid}: ")
            return None
        whole = json.loads(done.stdout)
        self.assertEqual(whole["pid"], process.pid)
        return whole

    def comm(self, process):
        whole = self.report(process)
        return whole["communicators"][0] if whole and whole["communicators"] else None

    def waiting(self, process, still=0.0):
        """The report of a rank in whose operation nothing has moved for so long."""
        found = None

        def waits():
            nonlocal found
            found = self.comm(process)
            return found and found.get("operations") and found["still_seconds"] > still
        self.until(waits, "the wait")
        return found

    def test_a_late_rank(self):
        """Three ranks, the last one late: the others' reports name it, the operation, and that no step is done."""
        processes = self.ranks(["init all_reduce:1000 all_reduce:500000", "init all_reduce:1000 all_reduce:500000",
                                "init all_reduce:1000 sleep:60000"],
                               NCCL_ALGO="ring", NCCL_PROTO="simple", NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="COLL")
        first = self.waiting(processes[0], 2)
        self.waiting(processes[1], 2)
        operation = first["operations"][0]
        self.assertEqual((first["rank"], first["nranks"], first["state"]), (0, 3, "in operation"))
        self.assertEqual(first["not_heard_of"], [2])
        self.assertEqual((operation["collective"], operation["count"], operation["type"], operation["op"]),
                         ("AllReduce", 500000, "float32", "sum"))
        self.assertEqual((operation["algorithm"], operation["protocol"], operation["bytes"], operation["sequence"]),
                         ("RING", "SIMPLE", 2000000, 1))
        awaited = [c for c in operation["connections"] if c["awaited"]]
        self.assertEqual({(c["peer"], c["direction"]) for c in awaited}, {(2, "receive")})
        self.assertTrue(all(c["steps_done"] == 0 < c["steps"] for c in awaited), awaited)
        self.assertIn("waits to receive from rank 2 on ", operation["state"])
        # Nothing moves, and the log has the same number of the operation.
        time.sleep(0.3)
        again = self.comm(processes[0])
        self.assertEqual(again["operations"][0]["connections"], operation["connections"])
        self.assertGreater(again["still_seconds"], first["still_seconds"])
        self.assertEqual(re.findall(r"AllReduce: opCount (\w+) ", processes[0].all), ["0", "1"])
        self.assertEqual(operation["op_count"], 1)
        # The ring's next rank waits for the one in front of it; who is late is the same.
        second = self.comm(processes[1])
        self.assertEqual({c["peer"] for c in second["operations"][0]["connections"] if c["awaited"]}, {0})
        self.assertEqual(second["not_heard_of"], [2])
        late = self.comm(processes[2])
        self.assertEqual((late["state"], late["op_count"], "operations" in late), ("idle", 1, False))

    def test_who_is_late_in_the_first_of_two(self):
        """A rank that waits in the same operation is not late, although it has begun fewer."""
        processes = self.ranks(["init all_reduce:10 twice:10", "init all_reduce:10 all_reduce:10",
                                "init all_reduce:10 sleep:600000"])
        self.until(lambda: self.waiting(processes[0], 2)["not_heard_of"] == [2], "word of rank 1")

    def test_host_streams(self):
        """What a thread of the library runs is listed like what a calling thread does."""
        processes = self.ranks(["init stream all_reduce:1000 all_gather:70000",
                                "init stream all_reduce:1000 sleep:60000"], NCCL_ALGO="ring")
        first = self.waiting(processes[0], 2)
        operation = first["operations"][0]
        self.assertEqual((first["state"], first["groups_on_host_streams"], first["not_heard_of"]),
                         ("in operation", 1, [1]))
        self.assertEqual((operation["collective"], operation["count"], operation["sequence"]), ("AllGather", 70000, 1))
        self.assertTrue(any(c["awaited"] and c["peer"] == 1 for c in operation["connections"]), operation)
        other = self.comm(processes[1])
        self.assertEqual((other["state"], "groups_on_host_streams" in other), ("idle", False))

    def test_stopped_and_killed(self):
        processes = self.ranks(["init loop:all_reduce:1000"] * 2)
        self.until(lambda: all("running" in p.out for p in processes), "the loop's start")
        os.kill(processes[1].pid, signal.SIGSTOP)
        self.waiting(processes[0], 0.2)
        status, said = refused(processes[1].pid)
        self.assertEqual(status, (1, ""))
        self.assertIn("stopped (SIGSTOP", said)
        names = [n for n in lib.read("/proc/net/unix").split() if n.startswith(f"@tutti-report-{processes[0].pid}-")]
        self.assertEqual(len(names), 1)
        for process in processes:
            process.kill()
        self.assertNotIn(names[0], lib.read("/proc/net/unix"))
        status, said = refused(processes[0].pid)
        self.assertEqual(status, (1, ""))
        self.assertIn("no such process", said)

    def test_connecting(self):
        """A peer that is stopped before it could be connected with."""
        for _ in range(5):  # on a slow machine the first rank may have been faster than the signal
            processes = self.ranks(["init sleep:1000 all_reduce:1000", "init sleep:60000"])
            self.until(lambda: (self.comm(processes[1]) or {}).get("state") == "idle", "the second rank's init")
            os.kill(processes[1].pid, signal.SIGSTOP)
            if self.comm(processes[0])["op_count"] == 0:
                break
        operation = self.waiting(processes[0], 0.2)["operations"][0]
        self.assertEqual((operation["state"], operation["collective"]), ("waits for connections", "AllReduce"))
        connecting = self.comm(processes[0])["connecting"]
        self.assertEqual({c["peer"] for c in connecting}, {1})
        self.assertEqual({c["progress"] for c in connecting}, {"asked, no answer"})

    def test_who_may_ask(self):
        process = self.ranks(["init sleep:60000"] * 2, TUTTI_REPORT=0)[0]
        status, said = refused(os.getpid())
        self.assertEqual(status, (1, ""))
        self.assertIn("has not loaded Tutti", said)
        self.until(lambda: "no communicator of several ranks now, or TUTTI_REPORT=0" in refused(process.pid)[1],
                   "the library's being loaded")
        for words in (["--pid", "0"], ["--pid", "x"], ["--pid", "1", "-D"]):
            self.assertEqual(subprocess.run([INFO, *words], capture_output=True).returncode, 2)
        if os.geteuid() != 0:
            return
        process = self.ranks(["init sleep:60000"] * 2)[0]
        self.until(lambda: self.comm(process), "a report")
        done = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", INFO, "--pid", str(process.pid)],
                              capture_output=True, text=True)
        if "setpriv" not in done.stderr and "denied" not in done.stderr:  # it may not reach the program
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("belongs to user 0", done.stderr)

    def test_init(self):
        process = self.ranks(["init", None])[0]
        self.until(lambda: self.comm(process), "a report")
        self.assertEqual((self.comm(process)["state"], self.comm(process)["stage"]),
                         ("init", "meets the other ranks"))

    def test_signal(self):
        processes = self.ranks(["init recv:10:1", "init sleep:60000"], TUTTI_REPORT_SIGNAL="USR1", TUTTI_REPORT=0)
        end = time.monotonic() + lib.PATIENCE
        caught = 1 << (signal.SIGUSR1 - 1)
        self.until(lambda: int(re.search(r"SigCgt:\s+(\w+)", lib.read(f"/proc/{processes[0].pid}/status"))[1], 16)
                   & caught, "the handler")
        while "state: waits to receive from rank 1 " not in processes[0].err:
            self.assertLess(time.monotonic(), end, processes[0].all)
            os.kill(processes[0].pid, signal.SIGUSR1)
            time.sleep(0.1)
        self.assertIn("operation: Recv of 40 bytes from rank 1", processes[0].err)
        self.assertIsNone(processes[0].popen.poll())

    def test_a_signal_that_is_none(self):
        done = self.ranks(["init destroy"] * 2, TUTTI_REPORT_SIGNAL="HUPP", NCCL_DEBUG="WARN")
        for process in done:
            self.assertEqual(process.wait().status, 0)
            self.assertIn("TUTTI_REPORT_SIGNAL is HUPP", process.all)

    def test_network(self):
        """Over a network too: the requests that are open; and a plugin that does not return is told from a peer that is
        late."""
        hang = os.path.join(self.work, "hang")
        processes = self.ranks(["init send:3000000:1 recv:100:1 all_reduce:100"] + ["init recv:3000000:0 sleep:60000"],
                               NCCL_SHM_DISABLE=1, NCCL_NET_PLUGIN=os.environ["E2E_HANGING_NET"], HANG_FILE=hang,
                               HANG_PLUGIN=os.path.join(BIN, os.pardir, "lib", "tutti", "libtutti-net-socket.so"))
        waits = self.waiting(processes[0], 0.1)
        self.assertEqual(waits["thread"], "waits")
        self.assertEqual(waits["network"]["busy"], False)
        ends = waits["operations"][0]["connections"]
        self.assertEqual([(c["peer"], c["direction"], c["awaited"], c["steps_done"], c["requests_open"]) for c in ends],
                         [(1, "receive", True, 0, 1)])
        with open(hang, "w"):
            pass
        self.until(lambda: self.comm(processes[0])["thread"].startswith("does not come round"), "the hang")
        stuck = self.comm(processes[0])
        self.assertEqual((stuck["network"]["busy"], stuck["operations"][0]["collective"]), (True, "Recv"))

    def test_an_application_s_handler_stays(self):
        done = self.ranks(["ignore:USR1 init destroy"] * 2, TUTTI_REPORT_SIGNAL="SIGUSR1", NCCL_DEBUG="WARN")
        for process in done:
            self.assertEqual(process.wait().status, 0, process.all)
            self.assertIn("which the application handles or ignores", process.all)

    def test_streams(self):
        """On a device with streams the device says what it waits for."""
        processes = self.ranks(["device:0 init all_reduce:1000", "device:1 init sleep:60000"],
                               TUTTI_DEVICE=os.environ["E2E_FAKE"])
        found = None

        def waits():
            nonlocal found
            found = self.comm(processes[0])
            return found and "device_waits" in found
        self.until(waits, "the device's wait")
        self.assertEqual((found["state"], found["device_waits"]["peer"], found["not_heard_of"]),
                         ("in operation", 1, [1]))
        self.assertIn("AllReduce of 1000 x float32", found["device_waits"]["operation"])

    def test_what_networks_moved(self):
        """What moved: the proxy's figures of each connection agree with the plugin's counters, and with each other."""
        processes = self.ranks(["init all_reduce:300000 all_gather:5000 sleep:60000"] * 2, NCCL_SHM_DISABLE=1,
                               NCCL_NET="Socket")
        idle = None

        def finished():
            nonlocal idle
            idle = [self.report(p) for p in processes]
            return all(r and r["communicators"] and r["communicators"][0].get("op_count") == 2 and
                       r["communicators"][0]["state"] == "idle" for r in idle)
        self.until(finished, "the end of both operations")
        sent = {}
        for rank, whole in enumerate(idle):
            network, (library,) = whole["communicators"][0]["network"], whole["networks"]
            memory = whole["communicators"][0]["memory"]  # to and from the other rank: slots for a network's messages
            self.assertEqual(memory["slot_bytes"]["SIMPLE"], 2 * 8 * (256 << 10), memory)
            self.assertEqual((network["name"], library["name"], library["counts"]), ("Socket", "Socket", True))
            counted = {c["net_comm"]: c for c in library["connections"]}
            for connection in network["connections"]:
                own = counted[connection["net_comm"]]
                self.assertEqual((connection["direction"], connection["bytes"], connection["steps"]),
                                 (own["direction"], own["bytes"], own["operations"]))
                self.assertEqual(connection["peer"], 1 - rank)
                self.assertTrue(0 <= connection["slot_fill_percent"] <= 100, connection)
            for name, direction in (("sends", "send"), ("receives", "receive")):
                ours = [c for c in network["connections"] if c["direction"] == direction]
                for key in ("bytes", "steps"):
                    self.assertEqual(sum(c[key] for c in ours), network[name][key])
                sent[rank, direction] = network[name]["bytes"], network[name]["steps"]
            device, = library["devices"]
            for key in ("bytes", "operations"):
                self.assertEqual(device[key], sum(c[key] for c in library["connections"]))
            self.assertGreater(device["bytes"], 300000 * 4)
        self.assertEqual((sent[0, "send"], sent[1, "send"]), (sent[1, "receive"], sent[0, "receive"]))

    def test_reports_while_processes_come_and_go(self):
        """The status of a process is asked for all its life, from its birth to its end."""
        reports = 0
        for _ in range(3):
            processes = self.ranks(["init all_reduce:1000 destroy"] * 2, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT")
            while any(p.popen.poll() is None for p in processes):
                reports += sum(self.report(p) is not None for p in processes)
            for process in processes:
                self.assertEqual(process.wait().status, 0, process.all)
                held = re.search(r"memory held: (\d+) bytes: (\d+) for (\d+) ends .* scratch (\d+), .* (\d+), work (\d+)$",
                                 process.all, re.M)
                total, buffers, ends, scratch, node, work = map(int, held.groups())
                self.assertGreater(min(ends, buffers, work), 0)
                self.assertEqual(total, buffers + scratch + node + work)
        print(f"{reports} reports")


if __name__ == "__main__":
    lib.main()
