"""``antiphase verify``: the answer is yes, no, or none."""

import json

from tests.cli.conftest import strict_json


def test_verify_answers_yes_no_or_not_at_all(run, plan, tmp_path):
    """0: all holds; 1: a check fails, and which; 2: a damaged file, which cannot be checked."""
    assert run("verify", plan, "--statement statement.json").code == 0
    claims = json.loads((tmp_path / "statement.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(claims | {"epsilon": claims["epsilon"] / 2}))
    done = run("verify", plan, "--statement other.json")
    assert done.code == 1
    assert "FAILS" in done.out
    assert "Do not rely on it" in done.err
    asked = run("verify", plan, "--statement other.json --json")
    assert (asked.code, strict_json(asked.out)["holds"]) == (1, False)
    (tmp_path / "cut.antiphase").write_bytes((tmp_path / plan).read_bytes()[:-10])
    done = run("verify cut.antiphase --json")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: cut.antiphase")
