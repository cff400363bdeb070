"""Colours of mechanisms and of the page, for light and dark, distinct for colour-blind readers.

Seven colours are Okabe and Ito's; their yellow is too pale for lines on white. The others were
chosen by a search for colours that are distinct from all others with protanopia, deuteranopia and
tritanopia. The tests measure the distances.
"""

from __future__ import annotations

COLOURS = {
    "dp-sgd": "#000000",
    "anti-pgd": "#5E5E5E",
    "chess": "#CC79A7",
    "tree": "#E69F00",
    "sqrt-toeplitz": "#56B4E9",
    "fourier": "#7A3CF0",
    "dp-mf": "#0072B2",
    "dp-mf+": "#D55E00",
    "damped": "#009E73",
    "curvature": "#5B1065",
    "non-private": "#7A3B00",
    "toeplitz": "#1A088A",
    "banded": "#830C29",
    "blt": "#B767FE",
    "bisr": "#714878",
    "lambda-cgd": "#AE884E",
    "epoch-restarts": "#3F2A42",
}
OTHER = "#444444"  # all other mechanisms

# On a dark background black becomes white and dark colours become lighter; the first eleven keep
# their hues.
DARK = {
    "dp-sgd": "#FFFFFF",
    "anti-pgd": "#C8C8C8",
    "chess": "#D67FB0",
    "tree": "#F2B430",
    "sqrt-toeplitz": "#8FD3F7",
    "fourier": "#8A50FF",
    "dp-mf": "#2B86DE",
    "dp-mf+": "#E8590C",
    "damped": "#00A87A",
    "curvature": "#D01EB0",
    "non-private": "#A6763F",
    "toeplitz": "#4E797F",
    "banded": "#C7B065",
    "blt": "#CFFFCE",
    "bisr": "#A4D099",
    "lambda-cgd": "#FEEE7A",
    "epoch-restarts": "#6E6849",
}
OTHER_DARK = "#A8AEB5"

# Heat maps: above and below zero, both visible on the light and on the dark background.
POSITIVE, NEGATIVE = "#D55E00", "#2B86DE"

# The page: text in ``ink`` or ``muted`` and buttons in ``accent``, on ``ground`` or ``raised``.
LIGHT_PAGE = {
    "ground": "#FFFFFF",
    "raised": "#F5F7F9",
    "ink": "#171B20",
    "muted": "#56606B",
    "accent": "#0B5CAD",
    "rule": "#D5DAE0",
}
DARK_PAGE = {
    "ground": "#14181D",
    "raised": "#1D232A",
    "ink": "#E9ECEF",
    "muted": "#A9B3BE",
    "accent": "#7DB9F5",
    "rule": "#38414B",
}
