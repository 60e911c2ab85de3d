"""The page of a plan in a real browser: what it asks for, shows, adds up, and how it is used."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

from reshard import Layout, Mesh, Model, Parallelism, Shard, TensorSpec, make_plan
from reshard.page import make_page
from reshard.topology import Topology

WIDTHS = (320, 360, 700, 1280, 2560)
CASES = {
    8: ("qwen3-235b", "tp2,ep4,dp2", "tp4"),
    512: ("deepseek-v3", "pp16,ep16", "tp32,dp8"),
}


def plan_of(num_ranks):
    name, trainer, generator = CASES[num_ranks]
    model = Model.load(name)
    sides = Parallelism.parse(trainer), Parallelism.parse(generator)
    specs = sides[0].specs(model), sides[1].specs(model, sides[0].num_ranks)
    assert sum(side.num_ranks for side in sides) == num_ranks
    return make_plan(*specs, topology=Topology.dgx_h100(num_ranks))


@pytest.fixture(scope="module", params=CASES)
def page(request, browser, tmp_path_factory):
    """A plan and its page, loaded anew."""
    plan = plan_of(request.param)
    path = tmp_path_factory.mktemp("page") / "plan.html"
    path.write_text(make_page(plan, title=f"{request.param} ranks"), encoding="utf-8")
    return Page(browser, plan, path.as_uri())


class Page:
    def __init__(self, browser, plan, address):
        self.browser, self.plan, self.address = browser, plan, address

    def open(self, selection="", *, width=1280, theme="light"):
        command = self.browser.execute_cdp_cmd
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        command("Emulation.setDeviceMetricsOverride", metrics)
        # Colours that are on their way to others cannot be compared.
        wishes = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        command("Emulation.setEmulatedMedia", {"features": features})
        self.browser.get("about:blank")
        for kind in ("browser", "performance"):
            self.browser.get_log(kind)
        self.browser.get(f"{self.address}#{selection}")
        self.run("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))", wait=True)

    def run(self, script, *arguments, wait=False):
        execute = self.browser.execute_async_script if wait else self.browser.execute_script
        return execute(script, *arguments)

    def hash(self):
        return self.run("return decodeURIComponent(location.hash)")

    def press(self, *keys):
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            self.browser.switch_to.active_element.send_keys(getattr(Keys, key, key))

    def fact(self, name, panel="rank-panel"):
        script = "return document.querySelector(arguments[0]).dataset.bytes"
        return int(self.run(script, f'#{panel} [data-fact="{name}"]'))

    def peers(self, title):
        """Returns bytes per rank of a table of peers, all of its rows."""
        script = """
            const panel = document.getElementById("rank-panel");
            for (const more of panel.querySelectorAll(".more")) more.click();
            const captions = [...panel.querySelectorAll("caption")];
            const found = captions.find((each) => each.textContent.startsWith(arguments[0]));
            if (!found) return [];
            return [...found.closest("table").querySelectorAll("tbody tr")].map((row) => [
                Number(row.querySelector("[data-rank]").dataset.rank),
                Number(row.querySelector("[data-bytes]").dataset.bytes)]);
        """
        sums = Counter()
        for rank, nbytes in self.run(script, title):
            sums[rank] += nbytes
        return sums


def received_by(plan, rank, name=None):
    sums = Counter()
    for transfer in plan.receives(rank):
        if transfer.src_rank != rank and name in (None, plan.pairs[transfer.pair].name):
            sums[transfer.src_rank] += plan.nbytes(transfer)
    return sums


def sent_by(plan, rank, name=None):
    sums = Counter()
    for transfer in plan.sends(rank):
        if transfer.dst_rank != rank and name in (None, plan.pairs[transfer.pair].name):
            sums[transfer.dst_rank] += plan.nbytes(transfer)
    return sums


def moved_of(plan, name):
    pairs = {number for number, pair in enumerate(plan.pairs) if pair.name == name}
    return sum(
        plan.nbytes(transfer)
        for transfer in plan.transfers()
        if transfer.pair in pairs and transfer.src_rank != transfer.dst_rank
    )


def test_it_loads_without_errors_and_asks_for_nothing(page):
    page.open()
    assert page.browser.title == f"{len(page.plan.ranks)} ranks"
    assert page.run("return document.querySelectorAll('.cell').length") == len(
        page.plan.src_ranks
    ) + len(page.plan.dst_ranks)
    assert page.browser.get_log("browser") == []
    messages = [json.loads(entry["message"]) for entry in page.browser.get_log("performance")]
    requests = [
        each["message"]["params"]["request"]["url"]
        for each in messages
        if each["message"]["method"] == "Network.requestWillBeSent"
    ]
    assert requests == [page.address]


def test_a_selected_rank_shows_the_sums_of_the_plan(page):
    plan = page.plan
    ranks = (*plan.src_ranks, *plan.dst_ranks)
    page.open()
    for rank in sorted({ranks[0], plan.src_ranks[-1], plan.dst_ranks[len(plan.dst_ranks) // 3]}):
        page.run("location.hash = arguments[0]", f"rank={rank}")
        page.run("setTimeout(arguments[0], 0)", wait=True)
        sent, received = sent_by(plan, rank), received_by(plan, rank)
        assert (page.fact("sent"), page.fact("received")) == (sent.total(), received.total())
        assert page.peers("Sends to") == sent
        assert page.peers("Receives from") == received


def test_the_tiles_add_up_all_streams(page):
    page.open()
    script = "return [...document.querySelectorAll('.tile [data-bytes]')].map(e => e.dataset.bytes)"
    assert int(page.run(script)[0]) == sum(page.plan.stream_bytes().values())


def test_the_tiles_say_how_many_times_the_floor_the_busiest_link_is_busy(page):
    page.open()
    view = page.plan.view
    text = page.run("return document.getElementById('tiles').textContent")
    assert f"Busiest{view.busy_seconds / view.floor.seconds:.2f} x floor{view.busiest}, " in text


def test_a_selected_tensor_shows_its_sums(page):
    plan = page.plan
    name = "model.layers.3.self_attn.o_proj.weight"
    rank = plan.dst_ranks[-1]
    page.open(f"rank={rank}&tensor={name}")
    assert page.fact("moved", "tensor-panel") == moved_of(plan, name)
    assert page.peers("Receives from") == received_by(plan, rank, name)
    assert page.run("return document.querySelectorAll('.block.chosen').length") >= 1
    assert name in page.run("return document.getElementById('chosen').textContent")


def test_the_search_box_finds_ranks_and_tensors(page):
    page.open()
    page.run("document.getElementById('query').focus()")
    page.press("rank 5", "ENTER")
    assert page.hash() == "#rank=5"
    page.run("document.getElementById('query').value = ''")
    page.press("embed_tokens", "ENTER")
    assert page.hash() == "#rank=5&tensor=model.embed_tokens.weight"
    page.run("document.getElementById('query').value = ''")
    page.press("nothing is called so", "ENTER")
    assert "Nothing is called" in page.run("return document.getElementById('chosen').textContent")


def test_it_is_used_with_keys_alone(page):
    page.open()
    for _ in range(12):
        page.press("TAB")
        if page.run("return document.activeElement.className").startswith("cell"):
            break
    focused = "return Number(document.activeElement.dataset.rank)"
    assert page.run(focused) == 0
    page.press("ARROW_RIGHT", "ARROW_RIGHT")
    assert page.run(focused) == 2
    page.press("ENTER")
    assert page.hash() == "#rank=2"
    page.press("ESCAPE")
    assert page.hash() == ""
    page.press("END")
    assert page.run(focused) == page.plan.src_ranks[-1]
    if len(page.plan.src_ranks) > 8:
        page.press("HOME", "ARROW_DOWN")
        assert page.run(focused) == 4
    page.press("TAB")
    assert page.run(focused) == page.plan.dst_ranks[0]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off_at_any_width(page, width):
    rank = page.plan.dst_ranks[0]
    for selection in ("", f"rank={rank}&tensor=model.embed_tokens.weight"):
        page.open(selection, width=width)
        assert page.run("return document.documentElement.scrollWidth") <= width
        outside = page.run("""
            const found = [];
            for (const chart of document.querySelectorAll("svg.chart")) {
                const frame = chart.getBoundingClientRect();
                for (const text of chart.querySelectorAll("text")) {
                    const box = text.getBoundingClientRect();
                    if (box.left < frame.left - 1 || box.right > frame.right + 1
                        || box.top < frame.top - 1 || box.bottom > frame.bottom + 1) {
                        found.push(text.textContent);
                    }
                }
            }
            return found;
        """)
        assert outside == []
        cell = page.run("return document.querySelector('.cell').getBoundingClientRect().width")
        assert cell >= 6


def test_dark_and_light_are_both_readable(page):
    """The ratio of contrast of text and its background; WCAG 2.2 asks for 4.5."""
    selections = "", f"rank={page.plan.src_ranks[0]}", f"rank={page.plan.dst_ranks[-1]}"
    for theme, selection in itertools.product(("light", "dark"), selections):
        page.open(selection, theme=theme)
        worst = page.run("""
            const channel = (value) => value <= 0.04045 ? value / 12.92
                : ((value + 0.055) / 1.055) ** 2.4;
            const numbers = (color) => color.match(/[0-9.]+/g).map(Number);
            const light = (color) => {
                const [r, g, b] = numbers(color).map((each) => channel(each / 255));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const behind = (element) => {
                const color = getComputedStyle(element).backgroundColor;
                return numbers(color)[3] === 0 ? behind(element.parentElement) : color;
            };
            const names = "p, td, th, dt, dd, small, h1, h2, h3, summary, button.link, .cell";
            const ratios = [...document.querySelectorAll(names)].map((each) => {
                const pair = [light(getComputedStyle(each).color), light(behind(each))];
                const [low, high] = pair.sort((a, b) => a - b);
                return [(high + 0.05) / (low + 0.05), each.className || each.tagName];
            });
            return ratios.sort((a, b) => a[0] - b[0])[0];
        """)
        assert worst[0] >= 4.5, (theme, selection, worst)


def test_tables_hold_what_the_figures_show(page):
    page.open()
    summaries = page.browser.find_elements("css selector", "details.as-table > summary")
    assert len(summaries) >= 5
    for summary in summaries:
        page.run("arguments[0].parentElement.open = true", summary)
    page.run("setTimeout(arguments[0], 0)", wait=True)
    rows = page.run(
        "return [...document.querySelectorAll('details.as-table')]"
        ".map((each) => each.querySelectorAll('tbody tr').length)"
    )
    assert rows[0] == len(page.plan.ranks)
    assert all(rows)
    assert page.browser.get_log("browser") == []


def test_names_cannot_run_as_scripts_and_no_topology_is_needed(browser, tmp_path):
    name = "</script><img src=x onerror=alert(1)><script>document.title='changed'</script>"
    mesh = Mesh.of(tp=2)
    src = TensorSpec(name, (4, 6), "float32", Layout(mesh, Shard(0)))
    dst = TensorSpec(name, (4, 6), "float32", Layout(mesh, Shard(1)))
    path = tmp_path / "plan.html"
    path.write_text(make_page(make_plan([src], [dst]), title=name), encoding="utf-8")
    page = Page(browser, None, path.as_uri())
    page.open("rank=1")
    assert browser.title == name
    assert page.run("return document.getElementById('title').textContent") == name
    assert page.run("return document.images.length") == 0
    assert page.fact("copied") == 24
    assert browser.get_log("browser") == []
