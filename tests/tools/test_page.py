"""The page of tutti-topo draw in a browser: steps through it by keys, buttons and address, and looks at what is shown.
Argument: the directory of the programs. Skipped where there is no Chromium (Debian: apt-get install chromium)."""
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def machine():
    """4 GPUs: pairs by NVLink, each pair with a NIC below its own CPU."""
    text = '<system version="1">'
    for cpu in range(2):
        text += (f'<cpu numaid="{cpu}" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
                 f'<pci busid="0000:{cpu}0:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">')
        for gpu in (2 * cpu, 2 * cpu + 1):
            text += (f'<pci busid="0000:{cpu}{gpu + 1}:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">'
                     f'<gpu dev="{gpu}" sm="80" rank="{gpu}" gdr="1"><nvlink target="0000:{cpu}{(gpu ^ 1) + 1}:00.0" count="4" '
                     'tclass="0x030200"/></gpu></pci>')
        text += (f'<pci busid="0000:{cpu}9:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16"><nic>'
                 f'<net name="a&lt;b&gt;&amp;&quot;\'" dev="{cpu}" speed="100000" port="1" guid="0x{cpu + 1}" maxconn="64" '
                 'gdr="1"/></nic></pci></pci></cpu>')
    return text + "</system>"


def graphs():
    def graph(kind, pattern, orders):
        channels = "".join(f'<channel><net dev="{n}"/>' + "".join(f'<gpu dev="{g}"/>' for g in order) +
                           f'<net dev="{n}"/></channel>' for n, order in orders)
        return (f'<graph id="{kind}" pattern="{pattern}" crossnic="0" nchannels="{len(orders)}" speedintra="10" '
                f'speedinter="10" typeintra="SYS" typeinter="SYS" samechannels="0">{channels}</graph>')

    return ('<graphs version="1">' + graph(0, 4, [(0, (0, 1, 2, 3)), (1, (3, 2, 1, 0))]) + graph(1, 3, [(1, (2, 3, 0, 1))]) +
            "</graphs>")


# Runs in the page: acts, and notes after each act what is to be seen.
PROBE = """
<script>
(function () {
  const seen = [], svg = document.querySelector('figure svg');
  const texts = (shapes) => Array.from(shapes, (s) => s.querySelector('text').textContent);
  function note(what) {
    seen.push({
      what, view: document.body.dataset.view, hash: location.hash, which: document.getElementById('which').textContent,
      on: texts(svg.querySelectorAll('.gpu.on, .net.on')), ways: svg.querySelectorAll('.way path[marker-end]').length,
      used: Array.from(svg.querySelectorAll('.line.used'), (s) => s.dataset.tip),
      hot: svg.querySelectorAll('.line.h5').length, pressed: Array.from(document.querySelectorAll('#graphs [aria-pressed=true]'), (b) => b.textContent),
      rows: document.querySelectorAll('#links tbody tr').length,
      hops: Array.from(document.querySelectorAll('#hops tbody tr'), (r) => r.textContent),
      wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    });
  }
  const press = (key) => {
    document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    note(key);
  };
  const click = (id) => { document.getElementById(id).click(); note(id); };
  note('loaded');
  for (const key of ['n', 'ArrowRight', 'ArrowLeft', 'p', 'g', 'g', 'g', 'a', 'm']) press(key);
  for (const button of document.querySelectorAll('#graphs button')) { button.click(); note('button ' + button.textContent); }
  click('all'); click('next'); click('previous'); click('fit'); click('fit'); click('next');
  const row = document.querySelector('#hops tbody tr');
  row.focus();
  const focused = svg.querySelectorAll('.way.some path.hot').length;
  row.blur();
  svg.querySelector('.line .hit').dispatchEvent(new MouseEvent('mousemove', { bubbles: true, clientX: 30, clientY: 30 }));
  const tip = document.getElementById('tip');
  /* Every text within its box, as the browser's own fonts have it. */
  const outside = [];
  for (const box of svg.querySelectorAll('[data-node]')) {
    const edge = box.querySelector('rect').getBBox();
    for (const text of box.querySelectorAll('text')) {
      const t = text.getBBox();
      if (t.x < edge.x || t.y < edge.y || t.x + t.width > edge.x + edge.width || t.y + t.height > edge.y + edge.height)
        outside.push(text.textContent);
    }
  }
  const result = document.createElement('pre');
  result.id = 'result';
  const tips = Array.from(svg.querySelectorAll('.net[data-tip]'), (n) => n.dataset.tip);
  result.textContent = JSON.stringify({ seen, errors: window.testErrors, outside, focused, tips,
    tip: tip.hidden ? '' : tip.textContent, title: document.title, width: innerWidth });
  document.body.append(result);
})();
</script>
"""
ERRORS = """<script>
window.testErrors = [];
addEventListener('error', (e) => testErrors.push(String(e.message)));
addEventListener('securitypolicyviolation', (e) => testErrors.push(e.violatedDirective));
</script>
"""


def browse(browser, folder, page, fragment, width):
    """What the probe found."""
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                           "--no-first-run", "--user-data-dir=" + os.path.join(folder, "profile"), "--dump-dom",
                           f"--window-size={width},800", f"file://{page}#{fragment}"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200)
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.S)
    assert found, f"the page did not run: {done.stderr[-2000:]} {done.stdout[-500:]}"
    return json.loads(html.unescape(found.group(1)))


def check(browser, folder, page):
    seen = browse(browser, folder, page, "ring/1", 1200)
    views = {}
    for step in seen["seen"]:
        views.setdefault(step["view"], step)
        assert step["wide"] <= 0, step
        assert step["hash"] in ("#" + step["view"], ""), step
        assert step["pressed"] == [step["view"].split("/")[0]], step
    order = [step["view"] for step in seen["seen"]]
    assert order[:10] == ["ring/1", "ring", "ring/0", "ring", "ring/1", "tree/0", "machine", "ring/0", "ring", "machine"], order
    assert order[10:] == ["machine", "ring/0", "tree/0", "tree", "tree/0", "tree", "tree", "tree", "tree/0"], order
    assert seen["focused"] == 1, seen["focused"]
    assert seen["errors"] == [] and seen["outside"] == [], (seen["errors"], seen["outside"])
    assert seen["title"].startswith("<i>&\"' x"), seen["title"]
    assert "GB/s" in seen["tip"], seen["tip"]
    assert seen["tips"] == [f"NET {n}, a<b>&\"', 12.5 GB/s, port 1, GPUDirect" for n in (0, 1)], seen["tips"]
    # Channel 1 comes by NET 1 and visits 3 2 1 0; of GPU pairs, 3-2 and 1-0 have NVLink, 2-1 goes by the CPUs.
    ring = views["ring/1"]
    assert sorted(ring["on"]) == ["GPU 0", "GPU 1", "GPU 2", "GPU 3", "NET 1"], ring["on"]
    assert ring["which"] == "channel 1 of 0\u20131", ring["which"]
    ends = ["NET 1GPU 3", "GPU 3GPU 2", "GPU 2GPU 1", "GPU 1GPU 0", "GPU 0NET 1"]
    assert [hop[:10] for hop in ring["hops"]] == ends, ring["hops"]
    assert ring["ways"] == 5 and any(tip.startswith("CPU 0 - CPU 1: SYS, 22 ") for tip in ring["used"]), ring
    assert len([tip for tip in ring["used"] if ": NVL, 80 " in tip]) == 2, ring["used"]
    tree = views["tree/0"]
    assert tree["on"] and tree["ways"] == 5, tree
    machine_view = views["machine"]
    assert machine_view["on"] == [] and machine_view["ways"] == 0 and machine_view["used"] == [], machine_view
    assert views["ring"]["ways"] == 0 and views["ring"]["hot"] > 0 and views["ring"]["on"] == [], views["ring"]
    assert all(views["ring"]["rows"] >= views[f"ring/{c}"]["rows"] > 0 for c in (0, 1)), views
    narrow = browse(browser, folder, page, "", 400)  # begins as the command said
    assert narrow["errors"] == [] and all(step["wide"] <= 0 for step in narrow["seen"]), narrow
    assert narrow["width"] <= 600 and narrow["seen"][0]["view"] == "tree/0", (narrow["width"], narrow["seen"][0])


def main():
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    if not browser:
        print("SKIP: there is no Chromium, in which the page could be looked at (Debian: apt-get install chromium)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        files = {"<i>&\"' x" + "y" * 120 + ".xml": machine(), "graphs": graphs()}
        for name, text in files.items():
            with open(os.path.join(folder, name), "w") as f:
                f.write(text)
        page = os.path.join(folder, "page.html")
        command = [os.path.join(sys.argv[1], "tutti-topo"), "draw", os.path.join(folder, next(iter(files)))]
        command += ["--load", os.path.join(folder, "graphs"), "-N", "2", "-g", "tree", "--html", page]
        subprocess.run(command, check=True, timeout=100)
        with open(page) as f:
            text = f.read()
        with open(page, "w") as f:
            f.write(text.replace("<head>", "<head>" + ERRORS).replace("</body>", PROBE + "</body>"))
        check(browser, folder, page)
    print("the page works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
