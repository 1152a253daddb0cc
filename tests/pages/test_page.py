"""The page, opened from a file in a real browser: what it shows, what moves it, and what it never does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paper.small import write_results
from patience import PATIENCE, wait_for

from fedsmoo.pages.page import write_page
from fedsmoo.pages.report import report
from fedsmoo.runs.storage.walk import find_runs

from .folders import accuracy, measurements, run_folder

HOSTILE = "<script>window.hacked=1;<b>x"
PLOTS = ["accuracy", "loss", "heat", "totals", "drift", "surface", "line", "density", "fairness"]


class Visit:
    """A page in the tab, as new, with everything that went wrong or out on the way."""

    def __init__(self, tab: Any, file: Path, width: int = 1280, height: int = 720, scheme: str = "light") -> None:
        self.tab, self.file = tab, file
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.heard = {
            "pageerror": lambda e: self.problems.append(str(e)),
            "console": lambda m: self.problems.append(m.text) if m.type == "error" else None,
            "request": lambda r: self.requests.append(r.url),
        }
        tab.set_viewport_size({"width": width, "height": height})
        tab.emulate_media(media="screen", color_scheme=scheme)
        for event, hear in self.heard.items():
            tab.on(event, hear)
        tab.goto(file.as_uri())
        tab.wait_for_selector("html[data-ready=yes]")

    def leave(self) -> None:
        """Nothing went wrong, and nothing was asked for but the file."""
        for event, hear in self.heard.items():
            self.tab.remove_listener(event, hear)
        assert self.problems == []
        assert self.requests == [self.file.as_uri()]

    def see(self, section: str) -> None:
        """Scroll to a panel, and wait until it is drawn."""
        self.tab.locator(f"#{section}").scroll_into_view_if_needed()
        self.tab.wait_for_selector(f"#{section}[data-drawn]", state="attached")

    def plot(self, name: str) -> list[dict[str, Any]]:
        """The traces of a chart once it is drawn as was last asked for."""
        self.tab.wait_for_selector(f"section[data-drawn] #plot-{name} .main-svg", state="attached")
        keep = "t => ({type: t.type, name: t.name, x: t.x && Array.from(t.x), y: t.y && Array.from(t.y), mode: t.mode})"
        return self.tab.evaluate(f"document.getElementById('plot-{name}').data.map({keep})")

    def cells(self, place: str) -> list[list[str]]:
        self.tab.wait_for_selector(f"section[data-drawn] #{place} tbody tr")
        rows = self.tab.locator(f"#{place} tbody tr").all()
        return [[c.inner_text() for c in row.locator("th,td").all()] for row in rows]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for algorithm, steepness in (("fedavg", 3.0), ("fedsmoo", 1.0)):
        for seed in (0, 1):
            found = measurements(steepness) if seed == 0 else {}
            run_folder(root, f"{algorithm}-{seed}", algorithm, seed, analysis=found)
    run_folder(root, HOSTILE, "fedavg", 2, command="fedsmoo run </script><script>window.hacked=2</script>", lr=0.5)
    return write_page(find_runs([root]), root / "report.html")


@pytest.fixture(scope="module")
def tab(browser: Any) -> Any:
    """One tab for all: a page that is opened in it is as new, and its program need not be compiled again."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    opened.set_default_timeout(1000 * PATIENCE)
    yield opened
    context.close()


@pytest.fixture
def visit(tab: Any, page_file: Path) -> Any:
    seen = Visit(tab, page_file)
    yield seen
    seen.leave()


def test_every_panel_is_drawn_and_nothing_leaves_the_page(visit: Visit) -> None:
    sections = [s.get_attribute("id") for s in visit.tab.locator("main > section:not(.hidden)").all()]
    for section in sections:
        if section != "controls":
            visit.see(section)
    for name in PLOTS:
        assert visit.plot(name), name
    for place in ("summary-table", "target-table", "hessian-table", "fairness-table", "diff-table"):
        assert visit.cells(place), place
    assert visit.tab.locator("#command-list pre").count() == 5
    assert visit.plot("surface")[0]["type"] == "surface"
    heat = visit.tab.evaluate("(({zmin, zmax}) => [zmin, zmax])(document.getElementById('plot-heat').data[0])")
    counts = json.loads(visit.tab.evaluate("document.getElementById('data').textContent"))["partitions"][0]["counts"]
    assert heat == [0, max(map(max, counts))]  # so that a cell of few samples is not white, as one of none is
    assert len(visit.tab.locator("main section h2").all()) == len(sections) + 1  # none is of the paper's table
    assert not visit.tab.locator("#standing, #contents a[href='#standing']").first.is_visible()


def test_result_files_of_the_papers_table_are_a_heat_map(tab: Any, tmp_path: Path) -> None:
    """FedSMOO's second seed ends a point higher; ranks are of the seed that all have, distances of both."""
    hard = "10%-of-100 cifar10.dirichlet-0.1"
    write_results(tmp_path / "results", {"FedAvg": 77.0, "FedDyn": 79.5}, hard)
    write_results(tmp_path / "results", {"FedSMOO": 79.0}, hard, (0, 1))
    seen = Visit(tab, report(tmp_path / "results", tmp_path / "page.html"))
    seen.see("standing")
    seen.tab.wait_for_selector("section[data-drawn] #plot-standing .main-svg", state="attached")
    keep = "document.getElementById('plot-standing').data.map(t => [t.x, t.y, t.z, t.text, t.customdata])[0]"
    methods, columns, gaps, texts, seeds = seen.tab.evaluate(keep)
    assert (methods, columns, seeds) == (["FedAvg", "FedDyn", "FedSMOO"], [hard], [[1, 1, 2]])
    assert texts == [["3 (+1.0)", "1 (+1.4)", "2 (-1.3)"]]
    assert gaps[0] == pytest.approx([77 - 76.0, 79.5 - 78.08, 79.5 - 80.82])
    seen.tab.locator("#standing details summary").click()
    assert seen.cells("standing-table") == [[hard, "3 (+1.0), n = 1", "1 (+1.4), n = 1", "2 (-1.3), n = 2"]]
    assert len(seen.cells("summary-table")) == 3
    assert seen.tab.locator("#contents a[href='#standing']").is_visible()
    seen.leave()


def test_summary_means_over_seeds_with_the_best_in_bold(visit: Visit) -> None:
    rows = {r[0]: r for r in visit.cells("summary-table")}
    ten = [100 * sum(accuracy("fedsmoo", s, t, 60) for t in range(51, 61)) / 10 for s in (0, 1)]
    last = [100 * accuracy("fedsmoo", s, 60, 60) for s in (0, 1)]
    for place, values in ((3, ten), (4, last)):
        mean, deviation = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
        shown = [float(number) for number in rows["FedSMOO"][place].split("\n")[0].split(" ± ")]
        assert shown == pytest.approx([mean, deviation], abs=0.00501)  # two decimals
    assert rows["FedSMOO"][7] == "180.0 MB"
    bold = visit.tab.locator("#summary-table tbody tr", has_text="FedSMOO").locator("td").nth(2).locator("strong")
    assert bold.count() == 1
    assert "FedAvg (lr=0.5)" in rows


@pytest.mark.parametrize(
    ("lengths", "title"), [((4,), "last 4 (%)"), ((12,), "last ten (%)"), ((4, 12), "last ten or all (%)")]
)
def test_the_mean_at_the_end_says_over_what(tab: Any, tmp_path: Path, lengths: tuple[int, ...], title: str) -> None:
    for seed, rounds in enumerate(lengths):
        run_folder(tmp_path, f"run-{seed}", "fedavg", seed, rounds=rounds)
    seen = Visit(tab, write_page(find_runs([tmp_path]), tmp_path / "report.html"))
    seen.cells("summary-table")
    assert seen.tab.locator("#summary-table thead th").nth(3).inner_text() == title
    seen.leave()


@pytest.mark.parametrize(
    ("metric", "label", "higher"),
    [("mse", "mean squared error", False), ("f1", "F1 score", True), ("perplexity",) * 2 + (False,)],
)
def test_what_leads_is_named_wherever_it_is_shown(
    tab: Any, tmp_path: Path, metric: str, label: str, higher: bool
) -> None:
    """Contents, titles, axes, the summary and the unit beside the slider; less is better where it is."""
    for method, factor in (("fedavg", 1.0), ("fedprox", 2.0)):
        run_folder(tmp_path, method, method, 0, rounds=12)
        metrics = tmp_path / method / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        for r in lines:
            r |= {"test_accuracy": None, "metrics": {metric: factor / (1 + r["round"])}}
        metrics.write_text("".join(json.dumps(r) + "\n" for r in lines))
    seen = Visit(tab, write_page(find_runs([tmp_path]), tmp_path / "report.html"))
    assert seen.tab.locator("#contents a").all_inner_texts()[2:4] == [
        f"{label[0].upper()}{label[1:]} and loss",
        f"Rounds to a target {label}",
    ]
    note = seen.tab.locator("#summary .note").first.inner_text()
    assert note.startswith(f"Test {label}{'' if higher else ' (lower is better)'}: the mean of the last ten")
    assert f"which is a {'maximum' if higher else 'minimum'} over the test set" in note
    cells = {row[0]: row for row in seen.cells("summary-table")}
    best, other = ("FedProx", "FedAvg") if higher else ("FedAvg", "FedProx")
    assert "(best)" in cells[best][3]
    assert "(best)" not in cells[other][3]
    titles = [h.inner_text() for h in seen.tab.locator("#summary-table thead th").all()]
    assert not [t for t in titles if "%" in t]
    seen.tab.evaluate("document.getElementById('goal').dispatchEvent(new Event('input'))")
    assert "%" not in seen.tab.locator("#goal-value").inner_text()
    seen.leave()


def test_the_round_chosen_by_validation_has_a_column_where_samples_were_held_out(tab: Any, tmp_path: Path) -> None:
    run_folder(tmp_path, "run", "fedavg", 0, rounds=12)
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for r in lines:
        r["validation_accuracy"] = 0.6 if r["round"] == 7 else 0.5
    metrics.write_text("".join(json.dumps(r) + "\n" for r in lines))
    seen = Visit(tab, write_page(find_runs([tmp_path]), tmp_path / "report.html"))
    (row,) = seen.cells("summary-table")
    titles = [h.inner_text() for h in seen.tab.locator("#summary-table thead th").all()]
    assert titles[3:7] == ["last ten (%)", "by validation (%)", "last round (%)", "best on test (%)"]
    assert float(row[4].split("\n")[0]) == pytest.approx(100 * accuracy("fedavg", 0, 7, 12), abs=0.00501)
    seen.leave()


def test_personal_models_have_columns_where_a_run_has_them(tab: Any, tmp_path: Path) -> None:
    for name in ("with", "without"):
        run_folder(tmp_path, name, "fedavg" if name == "without" else "fedprox", 0, rounds=4)
    metrics = tmp_path / "with" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for r in lines[:3]:
        r |= {"personal_accuracy": r["round"] / 10, "personal_deviation": 0.05, "personal_worst_tenth": 0.125}
    lines[3] |= {"test_accuracy": None, "test_loss": None}  # it was not evaluated
    metrics.write_text("".join(json.dumps(r) + "\n" for r in lines))
    seen = Visit(tab, write_page(find_runs([tmp_path]), tmp_path / "report.html"))
    titles = [h.inner_text() for h in seen.tab.locator("#summary-table thead th").all()]
    assert titles[4:7] == ["personal (%)", "over clients ±", "worst tenth (%)"]
    cells = sorted([c.split("\n")[0] for c in row[4:7]] for row in seen.cells("summary-table"))
    assert cells == [["30.00", "5.00", "12.50"], ["–", "–", "–"]]
    seen.leave()


def test_personal_models_that_diverged_are_not_those_of_a_round_before(tab: Any, tmp_path: Path) -> None:
    """Of a round that was evaluated a run leaves them out only where they are no numbers."""
    metrics = run_folder(tmp_path, "lost", "fedprox", 0, rounds=4) / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for r in lines[:3]:
        r |= {"personal_accuracy": 0.3, "personal_deviation": 0.05, "personal_worst_tenth": 0.125}
    metrics.write_text("".join(json.dumps(r) + "\n" for r in lines))
    seen = Visit(tab, write_page(find_runs([tmp_path]), tmp_path / "report.html"))
    assert [row[4:7] for row in seen.cells("summary-table")] == [["no number"] * 3]
    seen.leave()


def test_seconds_of_several_devices_are_marked(tab: Any, tmp_path: Path) -> None:
    for seed, device in enumerate(("a GPU", "a CPU")):
        folder = run_folder(tmp_path, f"fedavg-{seed}", "fedavg", seed)
        run_folder(tmp_path, f"fedsam-{seed}", "fedsam", seed)
        facts = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**facts, "device": device}))
    seen = Visit(tab, write_page(find_runs([tmp_path]), tmp_path / "report.html"))
    assert [row[-1] for row in seen.cells("summary-table")] == ["3.0 (2 devices)", "3.0\n(best)"]
    seen.leave()


def test_smoothing_axis_and_choice_of_runs_change_the_curves(visit: Visit) -> None:
    visit.see("curves")
    before = visit.plot("accuracy")
    assert visit.tab.locator("#plot-accuracy .modebar-btn").count() > 0
    assert max(before[-1]["x"]) == 60
    visit.tab.locator("#smooth").focus()
    for _ in range(5):
        visit.tab.keyboard.press("ArrowRight")
    smooth = visit.plot("accuracy")
    assert visit.tab.locator("#smooth-value").inner_text() == "11 rounds"
    assert smooth[-1]["y"] != before[-1]["y"]
    visit.tab.get_by_label("bytes", exact=True).check()
    assert max(visit.plot("accuracy")[-1]["x"]) == 60 * 3_000_000
    visit.tab.get_by_label("seconds", exact=True).check()
    assert max(visit.plot("accuracy")[-1]["x"]) == pytest.approx(60 * 0.05)
    visit.tab.get_by_text("Choose runs").click()
    visit.tab.get_by_role("button", name="Show none").click()
    visit.tab.get_by_label("FedSMOO: fedsmoo-1").check()
    visit.see("curves")
    assert [t["name"] for t in visit.plot("accuracy")] == ["FedSMOO"]


def test_target_slider_finds_the_first_round(visit: Visit) -> None:
    visit.see("target")
    visit.tab.locator("#goal").evaluate("e => { e.value = 60; e.dispatchEvent(new Event('input')) }")
    first = [next(t for t in range(1, 61) if accuracy("fedsmoo", s, t, 60) >= 0.6) for s in (0, 1)]
    row = next(r for r in visit.cells("target-table") if r[0] == "FedSMOO")
    assert float(row[1].split()[0]) == pytest.approx(sum(first) / 2)
    visit.tab.locator("#goal").evaluate("e => { e.value = e.max; e.dispatchEvent(new Event('input')) }")
    assert next(r for r in visit.cells("target-table") if r[0] == "FedAvg (lr=0.5)")[1].startswith("never")


def test_a_method_that_not_all_seeds_bring_to_the_target_is_not_the_first_there(tab: Any, tmp_path: Path) -> None:
    """One seed of FedAvg gets there in round 1, the other never; both of FedSAM in round 3, of FedSMOO in 4."""
    for method, starts in (("fedavg", (1, 9)), ("fedsam", (3, 3)), ("fedsmoo", (4, 4))):
        for seed, start in enumerate(starts):
            metrics = run_folder(tmp_path, f"{method}-{seed}", method, seed, rounds=5) / "metrics.jsonl"
            rows = [json.loads(line) for line in metrics.read_text().splitlines()]
            rows = [{**r, "test_accuracy": 0.8 if r["round"] >= start else 0.1} for r in rows]
            metrics.write_text("".join(json.dumps(r) + "\n" for r in rows))
    seen = Visit(tab, write_page(find_runs([tmp_path]), tmp_path / "report.html"))
    seen.see("target")
    seen.tab.locator("#goal").evaluate("e => { e.value = 70; e.dispatchEvent(new Event('input')) }")
    assert {row[0]: [cell.replace("\n", " ") for cell in row[1:]] for row in seen.cells("target-table")} == {
        "FedAvg": ["1 (1 of 2 seeds)", "3.0 MB", "0.1"],
        "FedSAM": ["3 (best)", "9.0 MB (best)", "0.2 (best)"],
        "FedSMOO": ["4", "12.0 MB", "0.2"],
    }
    seen.leave()


def test_a_hostile_name_is_shown_as_text(visit: Visit) -> None:
    visit.tab.locator("#merge").uncheck()
    visit.see("curves")
    names = [t["name"] for t in visit.plot("accuracy") if t["name"]]
    assert HOSTILE.replace("<", "&lt;").replace(">", "&gt;") in names
    legend = visit.tab.locator("#plot-accuracy .legendtext")
    wait_for(lambda: any(HOSTILE in text for text in legend.all_text_contents()), "the name in the legend")
    for section in ("configs", "commands"):
        visit.see(section)
    assert visit.tab.locator("#command-list h3").all_inner_texts().count(HOSTILE) == 1
    assert "</script>" in visit.tab.locator("#command-list pre").first.inner_text()
    assert visit.tab.evaluate("window.hacked") is None


def test_landscape_can_be_turned_compared_and_flattened(visit: Visit) -> None:
    visit.see("landscape")
    visit.plot("surface")
    eye = "document.getElementById('plot-surface').layout.scene.camera.eye.x"
    before = visit.tab.evaluate(eye)
    visit.tab.get_by_role("button", name="Turn right").click()
    wait_for(lambda: visit.tab.evaluate(eye) != before, "the surface to turn")
    visit.tab.locator("#surface-b").select_option("fedsmoo-0")
    assert len(visit.plot("surface")) == 2
    visit.tab.locator("#surface-view").select_option("contour")
    assert visit.plot("surface")[0]["type"] == "contour"


def test_readable_on_a_phone_and_in_the_dark(tab: Any, page_file: Path) -> None:
    seen = Visit(tab, page_file, width=360, height=740, scheme="dark")
    seen.see("curves")
    seen.plot("accuracy")
    assert seen.tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert seen.tab.locator("#plot-accuracy .modebar-btn").count() == 0  # they would lie on the legend
    background = seen.tab.evaluate("document.getElementById('plot-accuracy').layout.paper_bgcolor")
    assert background == "#0d1117"
    dashes = seen.tab.evaluate("document.getElementById('plot-accuracy').data.map(t => t.line && t.line.dash)")
    assert len({d for d in dashes if d}) == 3  # three lines told apart without colour
    seen.leave()


def test_on_paper_tables_keep_their_headings_and_every_panel_is_drawn(visit: Visit) -> None:
    visit.tab.emulate_media(media="print", color_scheme="dark")
    visit.tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    for name in PLOTS:
        assert visit.plot(name), name
    assert visit.tab.locator("#summary-table thead th").nth(3).inner_text() == "last ten (%)"
    assert visit.tab.locator("#summary-table thead th").nth(3).is_visible()
    assert not visit.tab.locator("#smooth").is_visible()
    assert visit.tab.evaluate("document.getElementById('plot-fairness').layout.paper_bgcolor") == "#fff"


def test_the_paper_s_hessian_stands_beside_ours(tab: Any, tmp_path: Path) -> None:
    ours = {
        "hessian": {"eigenvalues": [100.5], "trace": 2500.0, "trace_error": 20.0, "samples": 50000, "part": "train"}
    }
    paper = {"dataset": "cifar10", "model": "resnet18_gn", "clients": 100, "cohort": 10, "analysis": ours}
    for algorithm in ("fedsam", "fedsmoo"):
        for u in (0.6, 0.1):
            run_folder(tmp_path / "runs", f"{algorithm}-{u}", algorithm, u=u, **paper)
    seen = Visit(tab, write_page(find_runs([tmp_path / "runs"]), tmp_path / "page.html"))
    for u, printed in (("0.1", ["107.44", "2689.4"]), ("0.6", ["91.46", "1783.3"])):
        seen.tab.locator("#task").select_option(f"cifar10, dirichlet-{u}, resnet18_gn, 10 of 100 clients")
        seen.see("flatness")
        rows = {r[0]: r for r in seen.cells("hessian-table")}
        assert rows[f"FedSMOO, dirichlet-{u} (the paper)"][1:3] == printed
        assert rows[f"FedSMOO: fedsmoo-{u}"][1:3] == ["100.5", "2500 ± 20"]
        assert len(rows) == 4
    seen.leave()


def test_two_hundred_runs_of_eight_hundred_rounds_open_quickly(browser: Any, tmp_path: Path) -> None:
    one = run_folder(tmp_path / "runs", "one", "fedsmoo", rounds=800)
    config, metrics = (one / "config.toml").read_text(), (one / "metrics.jsonl").read_text()
    for k in range(1, 200):
        folder = tmp_path / "runs" / f"run{k:03d}"
        folder.mkdir()
        seeded = config.replace("seed = 0", f"seed = {k % 5}")
        (folder / "config.toml").write_text(seeded + f"lr = {0.01 + 0.01 * (k // 5)}\n")
        (folder / "metrics.jsonl").write_text(metrics)
    file = write_page(find_runs([tmp_path / "runs"]), tmp_path / "many.html")
    tab = browser.new_context().new_page()
    tab.set_default_timeout(1000 * PATIENCE)
    # Time of the page's own thread: a busy machine does not make the page slow.
    meter = tab.context.new_cdp_session(tab)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    tab.goto(file.as_uri())
    tab.wait_for_selector("#plot-accuracy .main-svg")
    spent = {m["name"]: m["value"] for m in meter.send("Performance.getMetrics")["metrics"]}["TaskDuration"]
    assert tab.evaluate("JSON.parse(document.getElementById('data').textContent).runs.length") == 200
    points = tab.evaluate("document.getElementById('plot-accuracy').data.map(t => t.x.length).reduce((a, b) => a + b)")
    assert points <= 10_000  # of 160,000 rounds
    drawn = tab.evaluate("[...document.querySelectorAll('section[data-drawn]')].map(s => s.id)")
    assert 0 < len(drawn) < 6  # of eleven panels: those in sight
    assert spent < 10.0  # five times what it takes, for a slower machine
    tab.context.close()


def test_the_data_cannot_close_its_element(page_file: Path) -> None:
    content = page_file.read_text(encoding="utf-8")
    block = content.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    assert "<" not in block
    data = json.loads(block)
    assert sorted(r["name"] for r in data["runs"])[0] == HOSTILE
    assert "connect-src 'none'" in content


@pytest.fixture(scope="module")
def bare_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one typed command, with nothing measured of them and one that is not finished."""
    root = tmp_path_factory.mktemp("bare")
    for seed in (0, 1, 2):
        folder = run_folder(root, f"run-{seed}", "fedavg", seed, rounds=9 if seed else 12, finished=seed > 0)
        again = f"fedsmoo run --seed {seed} --set 'note=a \"b\"' " + "x" * 3000
        facts = {"command": "fedsmoo sweep many.toml", "again": again}
        (folder / "started.json").write_text(json.dumps(facts))
        if seed:
            (folder / "summary.json").write_text(json.dumps({"engine": "batched", **facts}))
    config = root / "run-0" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 12", "rounds = 40"))
    return write_page(find_runs([root]), root / "report.html")


def test_what_was_not_measured_is_a_line_that_says_how(tab: Any, bare_file: Path) -> None:
    seen = Visit(tab, bare_file, width=1280, height=900)
    for section, command in (
        ("consistency", "fedsmoo analyse consistency RUN"),
        ("landscape", "fedsmoo analyse landscape RUN"),
        ("flatness", "fedsmoo analyse hessian RUN"),
        ("fairness", "fedsmoo analyse fairness RUN"),
    ):
        seen.see(section)
        place = seen.tab.locator(f"#{section}")
        assert place.locator(".nothing code").inner_text() == command
        assert place.bounding_box()["height"] < 50  # one line, without controls and empty charts
        assert place.locator("select:visible, .plot:visible, button:visible").count() == 0
    assert seen.tab.locator("section.bare").count() == 4
    seen.leave()


def test_each_run_s_command_is_there_once_and_whole(tab: Any, bare_file: Path) -> None:
    seen = Visit(tab, bare_file)
    seen.see("commands")
    shown = seen.tab.locator("#command-list pre").all_inner_texts()
    assert shown == ["fedsmoo sweep many.toml"] + [
        f"fedsmoo run --seed {seed} --set 'note=a \"b\"' " + "x" * 3000 for seed in (0, 1, 2)
    ]
    button = seen.tab.locator("#command-list .copy").nth(2)
    button.click()
    wait_for(lambda: button.inner_text() == "Copied", "the button to say so")
    assert "unfinished, round 12 of 40" in seen.tab.locator("#command-list .note").first.inner_text()
    seen.leave()


def test_a_run_that_is_not_finished_says_how_far_of_how_much(tab: Any, bare_file: Path) -> None:
    seen = Visit(tab, bare_file)
    going = seen.tab.locator("#going li")
    assert [words.strip() for words in going.all_text_contents()] == ["run-0: round 12 of 40"]
    bar = going.locator("progress")
    assert (bar.get_attribute("value"), bar.get_attribute("max")) == ("12", "40")
    seen.tab.locator("#merge").uncheck()
    assert [row[2] for row in seen.cells("summary-table")] == ["12 of 40", "9", "9"]
    seen.leave()


def test_a_run_that_is_not_finished_is_not_the_cheapest(tab: Any, tmp_path: Path) -> None:
    short = run_folder(tmp_path, "fedavg-0", "fedavg", finished=False)
    lines = (short / "metrics.jsonl").read_text().splitlines(keepends=True)
    (short / "metrics.jsonl").write_text("".join(lines[:3]))
    run_folder(tmp_path, "fedsam-0", "fedsam")
    dear = run_folder(tmp_path, "fedsmoo-0", "fedsmoo")
    rows = [json.loads(line) for line in (dear / "metrics.jsonl").read_text().splitlines()]
    dearer = [{**r, "bytes_up": 2 * r["bytes_up"], "seconds_train": 2 * r["seconds_train"]} for r in rows]
    (dear / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in dearer))
    seen = Visit(tab, write_page(find_runs([tmp_path]), tmp_path / "report.html"))
    best = {row[0]: ["(best)" in cell for cell in row[-2:]] for row in seen.cells("summary-table")}
    assert best == {"FedAvg (unfinished)": [False] * 2, "FedSAM": [True] * 2, "FedSMOO": [False] * 2}
    seen.leave()


def test_tables_sort_by_mouse_and_keyboard_and_stay_so(visit: Visit) -> None:
    visit.tab.locator("#merge").uncheck()
    names = lambda: [row[0] for row in visit.cells("summary-table")]  # noqa: E731
    values = {row[0]: float(row[4].split("\n")[0]) for row in visit.cells("summary-table")}
    heading = visit.tab.locator("#summary-table thead th").nth(4)
    heading.locator("button").click()
    assert names() == sorted(values, key=lambda n: values[n])
    assert heading.get_attribute("aria-sort") == "ascending"
    visit.tab.keyboard.press("Enter")  # the heading has kept the focus
    assert names() == sorted(values, key=lambda n: -values[n])
    assert heading.get_attribute("aria-sort") == "descending"
    visit.tab.emulate_media(color_scheme="dark")  # everything is drawn again
    wait_for(lambda: heading.get_attribute("aria-sort") == "descending", "the table in the same order")
    assert names() == sorted(values, key=lambda n: -values[n])
    visit.see("target")
    visit.tab.locator("#goal").evaluate("e => { e.value = 85; e.dispatchEvent(new Event('input')) }")
    for _ in range(2):  # what was never reached comes last, either way
        visit.tab.locator("#target-table thead button").nth(1).click()
        reached = [row[1] for row in visit.cells("target-table")]
        assert reached[-1] == "never"
        assert not reached[0].startswith("never")


def test_a_table_that_is_wider_than_a_phone_says_that_it_scrolls(tab: Any, page_file: Path) -> None:
    seen = Visit(tab, page_file, width=390, height=800)
    seen.cells("summary-table")
    hint, region = seen.tab.locator("#summary-table .hint"), seen.tab.locator("#summary-table .scroll")
    wait_for(hint.is_visible, "the hint")
    region.evaluate("e => { e.scrollLeft = e.scrollWidth }")
    wait_for(lambda: not hint.is_visible(), "the hint to go at the end")
    seen.tab.set_viewport_size({"width": 1500, "height": 800})
    region.evaluate("e => { e.scrollLeft = 0 }")
    assert not hint.is_visible()
    seen.leave()
