"""A missing extra is named with the command that installs it."""

import subprocess
import sys

import pytest

# An image of one white pixel in a class folder, and CIFAR-10's PNG sheets, need Pillow.
IMAGE = (
    "from pathlib import Path; import tempfile, antiphase.data as d; f = tempfile.mkdtemp(); "
    "[(Path(f, c).mkdir(parents=True), Path(f, c, '1.png').write_bytes(b'')) for c in 'ab']; "
    "d.load(f)"
)
FACTORIZATION = "import antiphase as ap; f = ap.design('dp-sgd', steps=4); "
NEEDS = [  # libraries, what needs them, the extra
    ("torch", "import antiphase.torch", "torch"),
    ("opacus", "from antiphase.torch.plan import Plan", "torch"),
    ("flwr", "import antiphase.federated.flower", "federated"),
    ("sklearn", "import antiphase.data; antiphase.data.load('digits')", "data"),
    ("PIL", IMAGE, "data"),
    ("jinja2", "import antiphase.reporting.page", "plot"),
    ("PIL", "import antiphase.reporting.svg", "plot"),
    ("matplotlib", "import antiphase.reporting.figures", "plot"),
    ("matplotlib", FACTORIZATION + "f.plot()", "plot"),
    (
        "lightning pytorch_lightning",
        "from antiphase.torch.lightning import PrivacyCallback; PrivacyCallback(max_grad_norm=1.0)",
        "lightning",
    ),
    (
        "transformers",
        "from antiphase.torch.huggingface import PrivateTrainer; PrivateTrainer(privacy={})",
        "huggingface",
    ),
]
ALL = "torch opacus flwr sklearn PIL jinja2 matplotlib typer rich pandas lightning transformers"


def without(modules, code):
    """Run code in a process in which modules are not installed."""
    hide = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules.split()!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
    return subprocess.run(
        [sys.executable, "-c", hide + code], capture_output=True, text=True, check=False
    )


@pytest.mark.issue(23)
@pytest.mark.slow
@pytest.mark.parametrize(("modules", "code", "extra"), NEEDS)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(modules, code, extra):
    done = without(modules, code)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(f": pip install 'antiphase[{extra}]'"), done.stderr


@pytest.mark.issue(23)
@pytest.mark.slow
def test_the_core_works_without_any_extra():
    """Design, calibration, noise, statement, and HTML in a notebook."""
    code = (
        FACTORIZATION + "m = ap.calibrate(f, epsilon=1.0, delta=1e-6, clip_norm=1.0); "
        "m.noise(dimension=3, key=ap.Key.generate()).next(); m.statement(); f._repr_html_(); "
        "ap.compare(ap.Setting(ap.Workload.sgd(8), ap.once()), ['dp-sgd', 'dp-mf'])"
    )
    done = without(ALL, code)
    assert done.returncode == 0, done.stderr
