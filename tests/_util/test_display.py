"""What users hold is shown in one line; results also as HTML."""

import pytest

import antiphase as ap
from antiphase import sampling
from antiphase.comparison import Entry

pytestmark = pytest.mark.issue(23)
SETTING = ap.Setting.of(steps=16, epochs=2, epsilon=8.0, delta=1e-5)
KEY = ap.Key(bytes(range(1, 33)))


@pytest.fixture(scope="module")
def held():
    """An object of every class that users hold, by class."""
    comparison = ap.compare(SETTING, ["dp-sgd", "dp-mf"], measure=False)
    recommendation = ap.recommend(SETTING)
    f = ap.design("dp-mf", steps=16, epochs=2)
    m = ap.calibrate(f, epsilon=8.0, delta=1e-5)
    bands = ap.select_bands(
        workload=ap.Workload.sgd(16), sampling=sampling.CyclicPoisson(0.1), epsilon=8.0, delta=1e-5
    )
    return {
        ap.BandSelection: bands,
        ap.Candidate: ap.Candidate("dp-mf+", {"tau": 16}),
        ap.Comparison: comparison,
        Entry: comparison.entries[0],
        ap.Factorization: f,
        ap.Key: KEY,
        ap.Mechanism: m,
        ap.NoiseStream: m.noise(1000, key=ap.Key.insecure(0)),
        ap.Objective: f.objective,
        ap.Participation: f.participation,
        ap.PrivacyStatement: m.statement(),
        ap.Recommendation: recommendation,
        ap.Setting: SETTING,
        sampling.Sampling: sampling.Poisson(0.01),
        ap.Workload: f.workload,
    }


def test_every_class_is_covered(held):
    """All classes among the public names but the errors."""
    classes = {one for name in ap.__all__ if isinstance(one := getattr(ap, name), type)}
    assert {one for one in classes if not issubclass(one, Exception)} <= set(held)


def test_a_repr_is_one_line_without_arrays_and_addresses(held):
    """At most 200 characters; a selection of bands also shows its mechanism."""
    for kind, one in held.items():
        assert isinstance(one, kind)
        text = repr(one)
        limit = 260 if kind is ap.BandSelection else 200
        assert len(text) <= limit, text
        assert "\n" not in text
        assert "array(" not in text
        assert " at 0x" not in text
        assert kind.__name__ in text or kind is sampling.Sampling, text


def test_no_repr_shows_the_key(held):
    secret = bytes(range(1, 33))
    stream = held[ap.Mechanism].noise(3, key=KEY)
    statement = stream.statement()
    for text in (repr(KEY), repr(stream), repr(statement), statement._repr_html_()):
        for written in (secret.hex(), repr(secret), str(list(secret))):
            assert written[:20] not in text


def test_a_stream_tells_its_position_and_an_insecure_key(held):
    stream = held[ap.Mechanism].noise(1000, key=ap.Key.insecure(0))
    stream.next()
    assert "1 of 16 rows drawn, 1,000 numbers each" in repr(stream)
    assert "INSECURE" in repr(stream)
    assert "INSECURE" in repr(stream.statement())
    assert "INSECURE" not in repr(held[ap.Mechanism].noise(3, key=ap.Key.generate()))


def test_a_shortened_promise_is_rounded_up():
    """In one line and as HTML, for ε and for μ."""
    f = ap.design("dp-sgd", steps=4)
    m = ap.calibrate(f, noise_multiplier=0.7, delta=1e-5)
    for shown in (repr(m), m._repr_html_(), repr(m.statement())):
        digits = ap.statement.rounded_up(m.epsilon())
        assert float(digits) >= m.epsilon()
        assert digits in shown
    m = ap.calibrate(f, noise_multiplier=0.7)
    assert m.mu() > 1.428
    assert "μ = 1.429" in repr(m)
    assert "1.429-GDP" in m._repr_html_()
