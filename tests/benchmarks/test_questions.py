"""Alternation, claims, losses and the page of the benchmarks, on made-up records."""

import importlib
import json

import numpy as np
import pytest

import antiphase as ap
from benchmarks import design, noise, page, peers, step, timing
from benchmarks.__main__ import QUESTIONS, RecordFile
from benchmarks.question import Claim, Loss, excess, optimum


def a_design(seconds=100.0, above=1e-3):
    ours = [
        {
            "kind": "exact",
            "steps": 1024,
            "seconds": 0.1,
            "excess": 1e-9,
            "buffers": 30,
            "first": 9.0,
        }
    ]
    ours += [
        {
            "kind": "default",
            "steps": t,
            "seconds": 1e-4 * t,
            "excess": 1e-4,
            "buffers": 5,
            "first": 9.0,
        }
        for t in (1024, 4096, 16_384)
    ]
    theirs = [
        {"steps": t, "seconds": seconds * (t / 1024) ** 3, "excess": above}
        for t in (256, 512, 1024)
    ]
    ours += [{**ours[0], "steps": t} for t in (256, 512)]
    return {"epochs": 1, "ours": ours, "theirs": theirs, "peer": {"version": "2.0.0"}}


def test_every_question_has_all_its_parts():
    for name in QUESTIONS:
        module = importlib.import_module(f"benchmarks.{name}")
        assert module.TITLE
        for part in ("measure", "tables", "claims", "losses", "notes", "draw"):
            assert callable(getattr(module, part)), (name, part)


def test_timings_alternate_and_separate_the_first_call():
    done = []
    found = timing.take_turns(
        {"a": lambda: done.append("a"), "b": lambda: done.append("b")}, repetitions=3, warm=2
    )
    assert done == list("ab" * 5)
    assert found["a"].count == 3
    assert timing.take_turns({"said": lambda: 2.5}, 4)["said"].median == 2.5
    assert timing.Timing.of(9.0, [1.0, 2.0, 3.0]).json() == {
        "first": 9.0,
        "median": 2.0,
        "low": 1.0,
        "high": 3.0,
        "count": 3,
    }


def test_an_exponent_is_fitted():
    assert design.exponent(
        [{"steps": t, "seconds": 3e-9 * t**2.5} for t in (10, 100, 1000)]
    ) == pytest.approx(2.5)


def test_claims_hold_or_do_not():
    holds = [claim.holds for claim in design.claims(a_design())]
    assert holds == [True, True, True]
    assert [claim.holds for claim in design.claims(a_design(seconds=5.0))] == [False, True, True]
    assert [claim.holds for claim in design.claims(a_design(above=1e-8))] == [True, False, True]


def test_losses_list_what_a_peer_does_better():
    assert design.losses(a_design()) == []
    lost = design.losses(a_design(above=1e-12))
    assert len(lost) == 3
    assert all(isinstance(loss, Loss) and loss.why for loss in lost)


def a_row(name, first, median):
    return {
        "name": name,
        "d": noise.CIFAR,
        "memory": 0,
        "first": first,
        "median": median,
        "low": median,
        "high": median,
    }


def test_a_slower_first_row_is_a_loss():
    """Theirs was compiled before; whoever is ahead in the first row may be behind in all others."""
    names = [*noise.COUNTERPARTS, *dict.fromkeys(noise.COUNTERPARTS.values())]
    assert noise.losses({"rows": [a_row(name, 0.02, 0.004) for name in names]}) == []
    rows = [a_row(name, 0.03 if name == "antiphase, 4 buffers" else 0.014, 0.004) for name in names]
    (loss,) = noise.losses({"rows": rows})
    assert loss.what == "first row, JAX Privacy, BLT, 4 buffers, d = 550,570: 14 ms against 30 ms"
    assert "compiled" in loss.why


def a_step(what, ratio, alone):
    return {
        "what": what,
        "opacus": 0.1,
        "antiphase": 0.1 * ratio,
        "ratio": ratio,
        "buffers": 5,
        "asked": None,
        "optimizer_opacus": 0.01,
        "optimizer_antiphase": 0.01 * alone,
        "optimizer_ratio": alone,
    }


def test_slower_steps_and_optimizers_are_losses_with_their_reasons():
    def lost(*rows, epochs=()):
        return step.losses({"rows": rows, "epochs": list(epochs)})

    assert lost(a_step("cnn, hooks", 0.9, 0.9)) == []
    whole, alone = lost(a_step("logistic, hooks", 1.08, 1.23))
    assert whole.what == "a step, logistic, hooks: Opacus 100 ms, ours 108 ms"
    assert alone.what == "the optimizer alone, logistic, hooks: Opacus 10 ms, ours 12.3 ms"
    assert whole.why == alone.why == step.NOISE
    (alone,) = lost(a_step("logistic, hooks", 0.99, 1.1))
    assert alone.what.startswith("the optimizer alone")
    (ghost,) = lost(a_step("cnn, ghost", 1.02, 0.67))
    assert step.NOISE not in ghost.why  # which is in the optimizer, and that is faster
    assert "bounded" in ghost.why
    assert "same cores" in ghost.why
    (short,) = lost(a_step("logistic, ghost", 1.01, 0.97))
    assert "same cores" not in short.why  # so short a row is not made beside the passes
    (epoch,) = lost(epochs=[{"what": "cnn, ghost", "opacus": 1.0, "antiphase": 1.2, "ratio": 1.2}])
    assert epoch.what == "an epoch, cnn, ghost: Opacus 1.0 s, ours 1.2 s"


def test_the_page_shows_claims_losses_tables_and_figures(tmp_path):
    record = {"design": a_design(seconds=5.0, above=1e-12)}
    machine = {"cores": 2, "processor": "x86_64", "python": "3.11"}
    whole = json.loads(json.dumps({"date": "2026-01-01", "machine": machine, "questions": record}))
    (tmp_path / "figures").mkdir()
    text = page.write(whole, tmp_path).read_text()
    assert "**does not hold**" in text
    assert "## Where a peer is ahead" in text
    assert "| JAX Privacy, dense | 1,024 | 5.0 s | 1.0e-12 |" in text
    assert "(figures/benchmark-design.svg)" in text
    assert [p.name for p in (tmp_path / "figures").iterdir()] == ["benchmark-design.svg"]


def test_errors_of_peers_are_recomputed():
    """The optimum's own encoder is at the optimum, and independent noise is where it should be."""
    best = optimum(64, 1)
    assert excess(
        ap.design("dp-mf", steps=64, buffers="exact").encoder(), 1, best
    ) == pytest.approx(0, abs=1e-8)
    assert excess(np.eye(64), 1, best) == pytest.approx(64 * 65 / 2 / best - 1)
    assert excess(np.eye(64), 4, 1.0) == pytest.approx(4 * 64 * 65 / 2 - 1)


def test_records_are_written_at_once_beside_earlier_ones(tmp_path):
    path = tmp_path / "deeper" / "benchmarks.json"
    RecordFile(path, full=True).keep("noise", {"took": 1})
    RecordFile(path, full=False).keep("design", {"took": 2})
    kept = json.loads(path.read_text())
    assert kept["questions"] == {
        "design": {"took": 2},
        "noise": {"took": 1},
    }  # in the order of the page
    assert kept["command"] == "python -m benchmarks"


def test_versions_of_peers_are_pinned():
    assert all("==" in lines[0] for lines in peers.REQUIREMENTS.values())
    assert Claim("", "", "", True).holds
