"""tutti-tune. Arguments as support.py has them."""
import json
import os
import re
import tempfile
import xml.etree.ElementTree

from support import BIN, Case, environment, main, ROOT, run


class Tune(Case):
    TUNE = os.path.join(BIN, "tutti-tune")

    def tune(self, *words, status=0):
        done = run(self.TUNE, *words)
        self.assertEqual(done.returncode, status, f"{words}: {done.stdout}{done.stderr}")
        return done.stderr if status else done.stdout

    def table(self, *words):
        listed = json.loads(self.tune("programs", *words, "--json"))["programs"]
        return {(p["collective"], p["algorithm"]): p for p in listed}

    def test_all_programs_are_proved(self):
        for ranks, nodes in ((1, 1), (5, 1), (8, 1), (8, 2)):
            for pair, program in self.table("-n", ranks, "--nodes", nodes).items():
                with self.subTest(pair=pair, ranks=ranks, nodes=nodes):
                    self.assertTrue(program["proved"] or not program["exists"], program)

    def test_counts(self):
        """Steps, messages and data of the busiest rank, as everybody knows them."""
        table = self.table("-n", 16)
        known = {("all_reduce", "ring"): (30, 30, 1.875), ("all_reduce", "one_shot"): (1, 15, 15),
                 ("all_reduce", "two_shot"): (2, 30, 1.875), ("all_reduce", "tree"): (8, 4, 2),
                 ("all_gather", "ring"): (15, 15, 15 / 16), ("all_gather", "direct"): (1, 15, 15 / 16),
                 ("reduce_scatter", "ring"): (15, 15, 15 / 16), ("broadcast", "ring"): (15, 1, 1),
                 ("reduce", "direct"): (1, 1, 1), ("scatter", "direct"): (1, 15, 15 / 16),
                 ("gather", "direct"): (1, 1, 1 / 16), ("alltoall", "direct"): (1, 15, 15 / 16),
                 ("sendrecv", "p2p"): (1, 1, 1), ("sendrecv", "mapped"): (2, 1, 1)}
        for pair, counts in known.items():
            program = table[pair]
            self.assertEqual((program["steps"], program["messages"], program["data"]), counts, pair)
        few = self.table("all_gather", "-n", 16, "--pieces", 16)
        self.assertEqual(few["all_gather", "pat"]["steps"], 4)
        self.assertEqual(few["all_gather", "pat"]["messages"], 4)

    def test_programs(self):
        text = self.tune("programs", "all_reduce", "--algo", "Two_Shot", "-n", 3, "--rank", 1)
        self.assertIn("AllReduce TWO_SHOT: rank 1 of 3, parts 3, input 1, output 1\n", text)
        self.assertIn("  1       recv 0 + input[1] + recv 2 -> output[1], send 2, send 0  final\n", text)
        self.assertNotIn("rank 0 of 3", text)
        self.assertIn("proved: 3 ranks, 2 loops, 8 slots, in place and out of place\n", text)
        self.assertEqual(self.tune("programs", "all_reduce", "-a", "ring", "-n", 3).count("AllReduce RING"), 3)
        self.assertIn("rank 1 takes no part", self.tune("programs", "sendrecv", "-a", "p2p", "-n", 3, "-r", 2, "-p", 0))
        self.assertIn("  1       input[0] -> output of 0[0]\n", self.tune("programs", "sendrecv", "-a", "mapped", "-n", 3, "-r", 2,
                                                                        "-p", 0))
        self.assertIn("root 2", self.tune("programs", "gather", "-a", "direct", "-n", 3, "--root", 2, "--rank", 0))
        self.assertNotEqual(self.tune("programs", "all_reduce", "-a", "tree", "-c", 0),
                            self.tune("programs", "all_reduce", "-a", "tree", "-c", 1))

    def test_json(self):
        shown = json.loads(self.tune("programs", "all_reduce", "-a", "ring", "-n", 4, "--json"))
        self.assertTrue(shown["proved"])
        self.assertEqual([p["rank"] for p in shown["programs"]], [0, 1, 2, 3])
        second = shown["programs"][2]
        self.assertEqual((second["parts"], second["peers"]), (4, [1, 3]))
        repeated = second["strands"][0][1]
        self.assertEqual((repeated["op"], repeated["repeat"], len(repeated["operands"])), ("data", 2, 3))
        self.assertEqual(repeated["operands"][0], {"kind": "receive", "buffer": "result", "peer": 1, "start": 0,
                                                   "stride": -1, "modulo": 4, "count": 1, "step": 0})

    def test_not_proved(self):
        """A ring of four in which each rank holds a message and wants to send another, and has one slot."""
        said = self.tune("programs", "all_reduce", "-a", "ring", "-n", 4, "--slots", 1, status=1)
        self.assertIn("not proved", said)
        self.assertIn("deadlock", said)
        self.assertIn("deadlock", self.tune("simulate", "all_reduce", "-a", "ring", "-n", 4, "--slots", 1, status=1))

    def test_picture(self):
        picture = self.tune("programs", "all_reduce", "-a", "ring", "-n", 4, "-l", 1, "--picture")
        self.assertIn("rank 2      sAAAffr\n", picture)
        self.assertIn("A reduces and sends\n", picture)
        self.assertNotIn("semaphore", picture)
        tree = ("programs", "all_reduce", "-a", "tree", "-n", 4, "-l", 2, "--picture")
        self.assertIn("rank   0.0  ..++\n        .1  wwwss\n", self.tune(*tree))
        self.assertIn("rank   0.0  ..+ ....+\n", self.tune(*tree, "--sequential"))

    def test_svg(self):
        with tempfile.TemporaryDirectory() as directory:
            for i, command in enumerate((["programs", "all_gather", "-a", "pat", "-n", 5],
                                         ["simulate", "all_reduce", "-a", "tree", "-n", 4, "-b", "64K"])):
                path = os.path.join(directory, f"{i}.svg")
                self.tune(*command, "--svg", path)
                root = xml.etree.ElementTree.parse(path).getroot()
                name = "{http://www.w3.org/2000/svg}"
                width, height = float(root.get("width")), float(root.get("height"))
                boxes = [b for b in root.iter(name + "rect") if b.find(name + "title") is not None]
                self.assertGreater(len(boxes), 20)
                for box in boxes:
                    self.assertLessEqual(float(box.get("x")) + float(box.get("width")), width)
                    self.assertLessEqual(float(box.get("y")) + float(box.get("height")), height)
                words = [t.text for t in root.iter(name + "text")]
                self.assertTrue(any(w.startswith("rank 3") for w in words), words)
                self.assertIn("sends", words)
            said = self.tune("programs", "all_gather", "-a", "ring", "--svg", "/nowhere/x.svg", status=3)
            self.assertIn("/nowhere/x.svg", said)

    def predict(self, collective, *flags):
        shown = json.loads(self.tune("simulate", collective, "--json", *flags))
        return {a["algorithm"]: a for a in shown["algorithms"]}

    def test_simulate(self):
        """A message costs 3 us and 1 us for each 1000 bytes; instructions nothing."""
        flags = ["-n", 4, "-b", 4096, "--latency", 3, "--bandwidth", 1, "--instruction", 0]
        found = self.predict("all_reduce", *flags)
        self.assertAlmostEqual(found["ring"]["strands_us"], 6 * (3 + 1.024))
        self.assertAlmostEqual(found["two_shot"]["strands_us"], 2 * (3 + 3 * 1.024))
        self.assertEqual(found["ring"]["bytes"], 6 * 1024)
        self.assertAlmostEqual(self.predict("all_reduce", *flags, "--shared-by", "pair")["two_shot"]["strands_us"],
                               2 * (3 + 1.024))
        self.assertAlmostEqual(self.predict("all_reduce", *flags, "--instruction", 1)["ring"]["strands_us"],
                               6 * (3 + 1.024) + 7)
        far = self.predict("broadcast", *flags, "--nodes", 2, "--far-latency", 50, "--far-bandwidth", 0.5)
        self.assertAlmostEqual(far["ring"]["strands_us"], 2 * (3 + 4.096) + 50 + 8.192)
        tree = self.predict("all_reduce", "-n", 16, "-b", "8M")["tree"]
        self.assertGreater(tree["sequential_us"], 1.5 * tree["strands_us"])
        self.assertEqual(tree["channels"], 2)

    def document(self):
        with open(os.path.join(ROOT, "docs", "programs.md")) as f:
            return f.read()

    def decide(self, *words, **env):
        done = run(self.TUNE, "decide", *words, "--json", env=environment(**env))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)

    @staticmethod
    def chosen(choice):
        return choice["algorithm"], choice["protocol"], choice["channels"]

    def test_decide(self):
        """With the table tuner: what a rule asks for and can have is used, everything else stays as without it."""
        plain = self.decide("all_reduce", "-n", 4, "-b", 64, "-e", "16K", "-f", 16)
        self.assertEqual([d["bytes"] for d in plain["decisions"]], [64, 1024, 16384])
        self.assertIsNone(plain["tuner"])
        for decision in plain["decisions"]:
            self.assertIsNone(decision["tuner_said"])
            self.assertEqual(decision["used"], decision["without_tuner"])
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as rules:
            rules.write("allreduce,0,64,ring,simple,3,-1,-1\nallreduce,1024,1024,collnet_chain,simple,-1,-1,-1\n"
                        "allreduce,16384,-1,tree,ll,-1,1,4\n")
            rules.flush()
            tuned = self.decide("all_reduce", "-n", 4, "-b", 64, "-e", "16K", "-f", 16,
                                NCCL_TUNER_CONFIG_FILE=rules.name)
            self.assertEqual(tuned["tuner"], "Tutti")
            for one, other in zip(plain["decisions"], tuned["decisions"]):
                self.assertEqual(one["without_tuner"], other["without_tuner"])
            first, second, third = tuned["decisions"]
            self.assertEqual(self.chosen(first["used"]), ("ring", "SIMPLE", 3))
            self.assertIn("RING with SIMPLE, 3 channels", first["tuner_said"])
            self.assertEqual(self.chosen(second["used"]), self.chosen(plain["decisions"][1]["used"]))
            self.assertEqual(self.chosen(third["used"])[:2], ("tree", "LL"))
            # Other shapes have other rules; NCCL_ALGO wins over all of them.
            spread = self.decide("all_reduce", "-n", 4, "-N", 2, "-b", "16K", NCCL_TUNER_CONFIG_FILE=rules.name)
            self.assertEqual(self.chosen(spread["decisions"][0]["used"]),
                             self.chosen(spread["decisions"][0]["without_tuner"]))
            forced = self.decide("all_reduce", "-n", 4, "-b", 64, NCCL_TUNER_CONFIG_FILE=rules.name, NCCL_ALGO="tree")
            self.assertEqual(forced["decisions"][0]["used"]["algorithm"], "tree")
            text = run(self.TUNE, "decide", "all_reduce", "-n", 4, "-b", 64,
                       env=environment(NCCL_TUNER_CONFIG_FILE=rules.name)).stdout
            self.assertRegex(text, r"Tuner: Tutti \(v6\), /.*libtutti-tuner\.so")
            self.assertRegex(text, r"(?m)^ +64 .*RING with SIMPLE, 3 channels +RING SIMPLE 3 +the tuner's choice$")
            rules.write("allreduce,0,64,rign,simple,3,-1,-1\n")
            rules.flush()
            broken = run(self.TUNE, "decide", "all_reduce", env=environment(NCCL_TUNER_CONFIG_FILE=rules.name))
            self.assertEqual(broken.returncode, 3)
            self.assertIn(f"{rules.name}:4:16: \"rign\" as algorithm is none of", broken.stderr)

    def gpus(self, *words, **env):
        """What is chosen for one size on GPUs."""
        return self.decide(*words, "--gpus", **env)["decisions"][0]["used"]

    def test_decide_for_gpus(self):
        """As tests/tuning/test_gpu.c has it of the core; environment and shape count as they do in a communicator."""
        all_reduce = ("all_reduce", "-n", 4, "-b")
        for size, expected in (("8K", ("one_shot", "LL", 16)), ("32K", ("one_shot", "LL128", 32)),
                               ("512K", ("two_shot", "LL128", 64)), ("512M", ("ring", "SIMPLE", 64))):
            self.assertEqual(self.chosen(self.gpus(*all_reduce, size)), expected)
        self.assertEqual(self.gpus(*all_reduce, "8K", NCCL_MAX_NCHANNELS=2)["channels"], 2)
        self.assertEqual(self.gpus(*all_reduce, "8K", NCCL_MAX_CTAS=2)["channels"], 2)
        self.assertNotEqual(self.gpus(*all_reduce, "32K", NCCL_P2P_DISABLE=1)["protocol"], "LL128")
        self.assertNotEqual(self.gpus(*all_reduce, "32K", "-N", 2)["protocol"], "LL128")
        self.assertEqual(self.gpus(*all_reduce, "512M", "-N", 2)["channels"], 4)
        self.assertGreater(self.gpus(*all_reduce, "8M", "-N", 2)["predicted_us"],
                           4 * self.gpus(*all_reduce, "8M")["predicted_us"])
        mapped = self.gpus("alltoall", "-n", 4, "-b", "1G", "--mapped")
        self.assertEqual((mapped["algorithm"], mapped["copy_engines"]), ("mapped", True))
        for words, env in ((("--mapped",), {"TUTTI_COPY_ENGINES": 0}), (("--mapped",), {"NCCL_P2P_DIRECT_DISABLE": 1}),
                           ((), {})):
            self.assertFalse(self.gpus("alltoall", "-n", 4, "-b", "1G", *words, **env)["copy_engines"])
        for env in ({"TUTTI_COPY_ENGINES": 1}, {"NCCL_CTA_POLICY": 2}):
            small = self.gpus("alltoall", "-n", 4, "-b", "16M", "--mapped", **env)
            self.assertEqual((small["copy_engines"], small["channels"]), (True, 1))
        for size, words, expected in (("64M", ("--mapped",), ("mapped", True)),
                                      ("16M", ("--mapped",), ("mapped", False)), ("16M", (), ("p2p", False)),
                                      ("4M", ("--mapped",), ("p2p", False))):
            chosen = self.gpus("sendrecv", "-n", 2, "-b", size, *words)
            self.assertEqual((chosen["algorithm"], chosen["copy_engines"]), expected)
        for ranks, words, expected in ((33, ("--mapped",), "mapped"), (33, (), "direct"), (34, ("--mapped",), "p2p"),
                                       (34, (), "p2p")):
            self.assertEqual(self.gpus("alltoall", "-n", ranks, "-b", "1G", *words)["algorithm"], expected)
        self.assertIn("as sends and receives of 2 bytes", self.gpus("scatter", "-n", 34, "-b", 68)["why"])
        self.assertEqual(self.gpus("all_reduce", "-n", 34, "-b", "1G", "--mapped")["algorithm"], "ring")
        text = run(self.TUNE, "decide", "gather", "-n", 4, "-b", 64, "-g", env=environment()).stdout
        self.assertIn("gather on 4 ranks of 1 node, GPUs, without CollNet and NVLS", text)

    def test_documented_output(self):
        """docs/programs.md shows what the tool prints."""
        blocks = re.findall(r"(?s)```\n\$ tutti-tune ([^\n]*)\n(.*?)```", self.document())
        self.assertGreaterEqual(len(blocks), 4)
        for command, shown in blocks:
            with self.subTest(command):
                self.assertEqual(self.tune(*command.split()), shown)

    def test_documented_example(self):
        with open(os.path.join(ROOT, "tests", "program", "test_example.c")) as f:
            tested = re.search(r"(?s)/\* example begins \*/\n(.*?)/\* example ends \*/", f.read()).group(1)
        self.assertIn(f"```c\n{tested}```", self.document())

    def compare(self, table, rows, columns, **sizes):
        for collective, algorithm, *formulas in rows:
            for name, formula in zip(columns, formulas):
                with self.subTest(collective=collective, algorithm=algorithm, what=name, **sizes):
                    most = formula.startswith("<= ")
                    value = eval(formula[3 * most:], {"min": min, "log2": lambda n: (n - 1).bit_length(), **sizes})
                    found = table[collective, algorithm][name]
                    if most:
                        self.assertLessEqual(found, value)
                    else:
                        self.assertAlmostEqual(found, value, places=6)

    def test_documented_tables(self):
        columns, cell = ("steps", "messages", "data", "multicast"), r" `([^|]*)` \|"
        plain, nodes = (re.findall(rf"(?m)^\| (\w+) \| (\w+) \|{cell * n}(?! `)", self.document()) for n in (3, 4))
        for n in range(2, 17):
            table = self.table("-n", n)
            self.compare(table, plain, columns[:3], n=n)
            self.compare(table, [row for row in nodes if row[1] == "nvls"], columns, n=n)
        for m, k in ((1, 4), (2, 2), (2, 4), (3, 3), (4, 2), (4, 4), (5, 2)):
            table = self.table("-n", m * k, "--nodes", m)
            self.compare(table, [row for row in nodes if row[1] != "nvls"], columns, n=m * k, m=m, k=k)
        self.assertEqual({row[:2] for row in plain + nodes}, set(table), "the document's tables and what there is")

    def test_refusals(self):
        for words, said in ((["programs", "all_reduce", "-a", "pat"], "tree"), (["programs", "sorting"], "sorting"),
                            (["programs", "all_reduce", "-P"], "--algo"), (["programs", "--rank", 1], "--rank"),
                            (["programs", "all_reduce", "-a", "ring", "-n", 4, "--rank", 4], "--rank 4"),
                            (["programs", "all_reduce", "-r", 1], "no root"), (["programs", "-n", "many"], "many"),
                            (["programs", "-b", 8], "--bytes"), (["simulate"], "all_reduce"), ([], "--help"),
                            (["simulate", "reduce", "--latency", "-1"], "--latency -1"), (["tune"], "tune"),
                            (["simulate", "reduce", "--bytes", "1.0001"], "1.0001"), (["programs", "-z"], "-z"),
                            (["programs", "gather", "--nodes", 9], "--nodes 9"), (["programs", "-n"], "value"),
                            (["programs", "gather", "--json", "--picture"], "--json"),
                            (["simulate", "reduce", "--shared-by", "all"], "node"),
                            (["programs", "gather", "scatter"], "scatter"), (["decide"], "all_reduce"),
                            (["decide", "sendrecv"], "one algorithm"), (["decide", "reduce", "-N", 9], "--nodes 9"),
                            (["decide", "reduce", "-m"], "--mapped"), (["simulate", "reduce", "-g"], "--gpus"),
                            (["decide", "reduce", "-b", 8, "-e", 4], "--end"), (["simulate", "reduce", "-e", 4], "--end"),
                            (["decide", "reduce", "-S", "file"], "--svg"), (["decide", "reduce", "-f", 1], "--factor 1")):
            with self.subTest(words):
                self.assertIn(said, self.tune(*words, status=2))
        self.assertIn("usage: tutti-tune programs", self.tune("--help"))


if __name__ == "__main__":
    main()
