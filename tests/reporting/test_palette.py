"""Colours have enough contrast and are distinct, for colour-blind readers too."""

import itertools

import numpy as np
import pytest

import antiphase as ap
from antiphase.reporting import palette
from tests.reporting.colour import SEEN, contrast, lab

MODES = {
    "light": (palette.LIGHT_PAGE, palette.COLOURS, palette.OTHER),
    "dark": (palette.DARK_PAGE, palette.DARK, palette.OTHER_DARK),
}


@pytest.mark.parametrize("mode", MODES)
def test_text_has_a_contrast_of_four_and_a_half(mode):
    page = MODES[mode][0]
    for ground in ("ground", "raised"):
        for text in ("ink", "muted", "accent"):
            assert contrast(page[text], page[ground]) >= 4.5, (text, ground)


@pytest.mark.parametrize("mode", MODES)
def test_lines_are_visible(mode):
    """A contrast of 3 or more; Okabe and Ito's orange and sky blue have 2.2 and 2.3 on white."""
    page, colours, other = MODES[mode]
    for name, colour in {**colours, "other": other}.items():
        pale = mode == "light" and name in ("tree", "sqrt-toeplitz")
        assert contrast(colour, page["ground"]) >= (2.2 if pale else 3.0), name
    for colour in (palette.POSITIVE, palette.NEGATIVE):
        assert contrast(colour, page["ground"]) >= 3.0


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("mode", MODES)
def test_any_two_mechanisms_are_distinct(mode, eyes):
    """A distance of at least 15 in CIE L*a*b*; in Okabe and Ito's palette it is 16."""
    colours = MODES[mode][1]
    nearest = min(
        (float(np.linalg.norm(lab(colours[a], eyes) - lab(colours[b], eyes))), a, b)
        for a, b in itertools.combinations(colours, 2)
    )
    assert nearest[0] >= 15, nearest


def test_every_mechanism_has_a_colour():
    missing = set(ap.designs()) - set(palette.COLOURS) - {"optimal"}  # an objective of one's own
    assert not missing
    assert palette.COLOURS.keys() == palette.DARK.keys()
