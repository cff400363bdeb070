"""The notebook is stored without outputs, and every cell runs and shows what it should."""

import json
import re
import resource
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.issue(23)]
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "first-steps.ipynb"
TEXT = NOTEBOOK.read_text(encoding="utf-8")


def test_the_notebook_is_stored_without_outputs():
    """Otherwise a commit would contain figures, and times that differ from run to run."""
    cells = json.loads(TEXT)["cells"]
    assert 15 <= len(cells) <= 25
    for cell in cells:
        assert cell["metadata"] == {}
        assert len(cell["source"]) <= 20
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_links_of_the_notebook_lead_to_pages():
    links = re.findall(r"\]\((\S+?)\)", TEXT)
    assert len(links) >= 3
    assert all((NOTEBOOK.parent / link).is_file() for link in links)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The outputs of each code cell by its last line, from Jupyter's kernel, and its seconds."""
    import nbclient
    import nbformat

    before = processor_seconds()
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder / name))
        resources = {"metadata": {"path": str(folder)}}
        nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    named = {cell.source.splitlines()[-1].strip(): cell.outputs for cell in cells}
    return named, processor_seconds() - before


@pytest.fixture
def outputs(executed):
    return executed[0]


def processor_seconds():
    """Of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shown_as(mime, outputs):
    """The result of a cell in a format; a progress bar may stand before it."""
    *bars, result = outputs
    assert all(bar.text.startswith("\r") for bar in bars)
    assert result.output_type == "execute_result"
    return result.data[mime]


def test_every_cell_runs_within_a_minute(executed, shown):
    """In seconds of the processor; an error in a cell is raised by the fixture."""
    outputs, seconds = executed
    shown("the notebook", f"{seconds:.0f} s of the processor", "≤ 60 s")
    assert 1 < seconds <= 60
    assert not any(o.get("name") == "stderr" for cell in outputs.values() for o in cell)


def test_results_are_shown_as_tables(outputs):
    assert "certified minimum" in shown_as("text/html", outputs["factorization"])
    assert "DP-SGD, Poisson batches" in shown_as("text/html", outputs["comparison"])
    assert "(8, 1e-05)-DP" in shown_as("text/html", outputs["mechanism"])


def test_plots_are_shown_as_images(outputs):
    for call in ('factorization.plot("matrices")', "comparison.plot()"):
        assert shown_as("image/png", outputs[call]).startswith("iVBORw0KGgo")


def test_training_reports_its_progress_and_learns(outputs, shown):
    (printed,) = (cell for line, cell in outputs.items() if line.startswith("print("))
    text = "".join(output.text for output in printed)
    accuracies = [float(percent) for percent in re.findall(r"test accuracy ([\d.]+)%", text)]
    assert len(accuracies) == 10
    shown("the notebook, accuracy at ε = 8", f"{accuracies[-1]} %", "≥ 88 %")
    assert accuracies[-1] >= 88
    assert text.rstrip().endswith("ε so far 8.00")


def test_the_statement_is_shown(outputs):
    statement = shown_as("text/html", outputs["engine.statement()"])
    assert "(8, 1e-05)-differentially private for each example" in statement
