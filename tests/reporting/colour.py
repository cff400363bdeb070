"""Contrast by WCAG 2.2, and colours as colour-blind people see them.

Machado, Oliveira and Fernandes (2009), *A physiologically-based model for simulation of color
vision deficiency*.
"""

import re

import numpy as np

SEEN = {  # linear RGB to linear RGB, severity 1.0
    "all cones": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


def linear(colour):
    """From ``#rrggbb`` or ``rgb(r, g, b)``."""
    if colour.startswith("#"):
        parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    else:
        parts = [float(v) for v in re.findall(r"[\d.]+", colour)[:3]]
    c = np.array(parts) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(colour, eyes):
    """CIE L*a*b* (D65) of a colour, with the given colour vision."""
    rgb = np.clip(np.array(SEEN[eyes]) @ linear(colour), 0, 1)
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(matrix) @ rgb / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
