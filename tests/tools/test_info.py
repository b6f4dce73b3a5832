"""tutti-info. Arguments as support.py has them."""
import json
import os
import subprocess
import tempfile

from support import BIN, Case, environment, main, PERF, run


class Info(Case):
    INFO = os.path.join(BIN, "tutti-info")

    def test_text(self):
        done = run(self.INFO)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^library:\ttutti\n\tversion:\t+\d+\.\d+\.\d+\n\tnccl_api:\t+2\.28\.9$")
        self.assertRegex(done.stdout, r"(?m)^device:\thost$")
        self.assertRegex(done.stdout, r"(?m)^net_plugin:\tlibtutti-net-socket\.so$")
        self.assertRegex(done.stdout, r"(?m)^param:\tNCCL_DEBUG\n\tvalue:\t+-\n\torigin:\t+default$")

    def test_plugins(self):
        plugins = {p["name"]: p for p in json.loads(run(self.INFO, "--json").stdout)["net_plugins"]}
        tcp = plugins["libtutti-net-socket.so"]
        self.assertTrue(os.path.isfile(tcp["path"]), tcp)
        self.assertEqual(tcp["abi_versions"], ["v8", "v9", "v10", "v11", "v12"])
        self.assertEqual(tcp["abi_in_use"], 12)
        env = environment(NCCL_NET_PLUGIN="no-such-thing")
        done = run(self.INFO, "-P", "--json", env=env)
        missing = {p["name"]: p for p in json.loads(done.stdout)["net_plugins"]}["no-such-thing"]
        self.assertEqual((missing["state"], missing["asked_by"]), ("passed over", "NCCL_NET_PLUGIN"))
        self.assertTrue(missing["reason"])

    def tuners(self, **env):
        return json.loads(run(self.INFO, "-P", "--json", env=environment(**env)).stdout)["tuner_plugins"]

    def test_tuners(self):
        default = self.tuners()[0]
        self.assertEqual((default["name"], default["asked_by"]), ("libnccl-tuner.so", "default search"))
        self.assertEqual(self.tuners(NCCL_TUNER_PLUGIN="none"), [])
        missing, own = self.tuners(NCCL_TUNER_PLUGIN="nosuch,tutti")[:2]
        self.assertEqual((missing["name"], missing["asked_by"]), ("nosuch", "NCCL_TUNER_PLUGIN"))
        self.assertEqual((missing["state"], missing["reason"]), ("passed over", "no such file, and no libnccl-tuner-nosuch.so"))
        self.assertEqual((own["state"], own["abi_in_use"], own["reason"]), ("usable", 6, None))
        self.assertTrue(os.path.isfile(own["path"]), own)
        shown = run(self.INFO, "-P", env=environment(TUTTI_TUNER_ADAPT=1)).stdout
        self.assertRegex(shown, r"(?m)^tuner_plugin:\tlibtutti-tuner\.so\n\ttuner:\t+\S.*\n\tpath:\t+/.*\n\tasked_by:\t+.*ADAPT$")

    def test_params(self):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
            conf.write("NCCL_BUFFSIZE=1048576\n")
            conf.flush()
            env = environment(NCCL_CONF_FILE=conf.name, NCCL_ALGO="ring")
            params = {p["name"]: p for p in json.loads(run(self.INFO, "-E", "-J", env=env).stdout)["params"]}
            self.assertEqual((params["NCCL_ALGO"]["value"], params["NCCL_ALGO"]["origin"]), ("ring", "environment"))
            self.assertEqual(params["NCCL_BUFFSIZE"]["value"], 1048576)
            self.assertEqual(params["NCCL_BUFFSIZE"]["file"], conf.name)
            self.assertEqual(params["NCCL_PROTO"]["origin"], "default")
            self.assertTrue(all(p["help"] for p in params.values()))

    def test_malformed_parameter(self):
        done = run(self.INFO, "-J", env=environment(NCCL_BUFFSIZE="many"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("NCCL_BUFFSIZE", json.loads(done.stdout)["problem"])
        self.assertIn("many", done.stderr)

    def test_malformed_words(self):
        """What the layers above read is checked as a communicator checks it, in the same words."""
        for name, value in (("NCCL_ALGO", "bogus"), ("NCCL_PROTO", "ring"), ("NCCL_LAUNCH_MODE", "FOO"),
                            ("NCCL_P2P_LEVEL", "FOO"), ("NCCL_NETDEVS_POLICY", "foo"), ("NCCL_COMM_ID", "foo"),
                            ("NCCL_BUFFSIZE", "1"), ("NCCL_NET_MERGE_LEVEL", "FOO"), ("NCCL_NET_MERGE_POLICY", "FOO"),
                            ("TUTTI_DEVICE", "bogus")):
            with self.subTest(name):
                done = run(self.INFO, "-E", "-J", env=environment(**{name: value}))
                self.assertEqual(done.returncode, 1, done.stderr)
                said = json.loads(done.stdout)["problem"]
                self.assertIn(name, said)
                self.assertIn(value, said)
                if name == "TUTTI_DEVICE":
                    continue  # tutti-perf itself looks for the device's memory first
                ranks = run(PERF, "all_reduce", "-t", 2, "-b", 8, "-e", 8, env=environment(**{name: value}))
                self.assertEqual(ranks.returncode, 3, ranks.stdout)
                self.assertIn(said, ranks.stderr)
        good = {"NCCL_ALGO": "allreduce:^tree", "NCCL_COMM_ID": "127.0.0.1:4000", "NCCL_LAUNCH_MODE": "group",
                "NCCL_BUFFSIZE": "1048576", "NCCL_NET_MERGE_LEVEL": "pix", "NCCL_P2P_LEVEL": "SYS", "TUTTI_DEVICE": "host"}
        self.assertEqual(run(self.INFO, "-E", env=environment(**good)).returncode, 0)

    def test_wrong_flags(self):
        self.assertEqual(run(self.INFO, "-q").returncode, 2)
        self.assertEqual(run(self.INFO, "word").returncode, 2)

    def test_no_room_for_output(self):
        """A page that a full disk cut short is no success."""
        for flags in ([], ["--json"], ["--help"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([self.INFO, *flags], env=environment(), stdout=full, stderr=subprocess.PIPE,
                                      text=True, timeout=120)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("tutti-info: the output could not be written", done.stderr)


if __name__ == "__main__":
    main()
