"""tutti-info. Arguments as support.py has them."""
import json
import os
import tempfile

from support import BIN, Case, environment, main, run


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

    def test_wrong_flags(self):
        self.assertEqual(run(self.INFO, "-q").returncode, 2)
        self.assertEqual(run(self.INFO, "word").returncode, 2)


if __name__ == "__main__":
    main()
