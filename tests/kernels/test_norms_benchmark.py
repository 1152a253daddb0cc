"""What the benchmark of norms times is what modules compute, whichever way; here on tensors of a few numbers."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F


def small(case):
    """A case of few numbers."""
    return replace(case, shape=torch.Size((2, 3, 5, 8)))


def cases():
    pytest.importorskip("triton")
    from benchmarks.kernels import norms

    return norms, norms.cases()


def test_layer_norms_are_pytorch_s_client_by_client(device):
    norms, found = cases()
    for case in map(small, (c for c in found if type(c) is norms.Rows)):
        dy, x, gamma, *_, more = given = case.given(device, 0)
        ways = list(case.ways(given))
        assert ways[0][0] == "today"
        truth = case.truth(given, ())
        assert norms.error(norms.plain(*given), truth) < 0.01
        for c in range(len(x)):
            parts = [v[c].double().requires_grad_() for v in (x, gamma, torch.zeros_like(gamma))]
            out = F.layer_norm(parts[0], x.shape[-1:], *parts[1:])
            dx, *rest = torch.autograd.grad(out, parts, dy[c].double())
            for got, want in zip(truth, (dx if more is None else dx + more[c], *rest), strict=False):
                torch.testing.assert_close(got[c], want, rtol=1e-5, atol=1e-5)  # its statistics are in float32
        for name, way in (ways[1], ways[-1]):
            assert norms.error(way(), truth) < 0.01, name


def test_forward_is_pytorch_s(device):
    norms, found = cases()
    for case in map(small, (c for c in found if type(c) is norms.Forward)):
        branch, x, gamma, *_ = given = case.given(device, 0)
        _, y, *_ = case.truth(given, ())
        for c in range(len(x)):
            want = F.layer_norm((x + branch)[c], x.shape[-1:], gamma[c], gamma[c])
            torch.testing.assert_close(y[c].float(), want, rtol=0.02, atol=1e-5)


def test_tiles_of_group_norms_have_the_results_of_todays(device):
    norms, found = cases()
    maps = [c for c in found if isinstance(c, norms.Maps)]
    assert {(c.end, c.back) for c in maps} == {(e, b) for e in (False, True) for b in (False, True)}
    for case in maps[:4]:
        case = replace(small(case), shape=torch.Size((1, 1, 150, 64)))  # enough for several tiles
        (today, first), second, *_, last = case.ways(case.given(device, 0))
        assert today == "today"
        truth = case.truth((), first())
        for name, way in (second, last):
            for v in way():
                v.fill_(float("nan"))
            assert norms.error(way(), truth) < 0.01, name


def test_the_summary_takes_a_tile_that_is_faster_in_every_case(device):
    norms, found = cases()
    rows = []
    for case in found[2:5]:
        for way, us in (("today", 100.0), ("(4, 4, 4)", 40.0 if case.module == "vit" else 99.0), ("(8, 4, 4)", 60.0)):
            rows.append({**vars(case), "way": way, "us": us, "limit_us": 20.0})
    said = norms.summary(rows)
    assert "TILES[256]: Tile(4, 4, 4)" in said  # of 192
    assert "TILES[128]: Tile(8, 4, 4)" in said
    assert "vit: 36.0 ms less in a round of 50 steps" in said  # twelve calls a step, 60 us less
    rows = [{**r, "us": 97.0} if r["way"] != "today" else r for r in rows]
    assert "TILES[128]: nothing that is faster in every case" in norms.summary(rows)


def test_a_case_is_measured_way_by_way_until_the_time_is_up(device, monkeypatch, capsys):
    norms, found = cases()
    seen = []
    monkeypatch.setattr(norms, "CACHE", 0)
    monkeypatch.setattr(norms, "compiled", lambda function: function)
    monkeypatch.setattr(norms, "compiling", lambda threads: nullcontext())
    monkeypatch.setattr(norms, "captured", lambda call: call)
    monkeypatch.setattr(norms, "milliseconds", lambda call, budget: seen.append(call()) or 0.5)
    monkeypatch.setattr(norms, "tiles", lambda width: [norms.Tile(2, 1, 4)])
    for case in (found[0], found[3], found[-1]):
        rows = norms.measure(small(case), float("inf"), device)
        assert rows[0]["way"] == "today"
        assert rows[0]["us"] == 250.0  # of one of two sets of inputs
        assert all(row["error"] < 0.01 for row in rows)
    assert len(seen[0]) == 2
    assert norms.measure(small(found[3]), 0.0, device) == []
    assert f"the time is up: vit, {found[3].name} from today on" in capsys.readouterr().out
