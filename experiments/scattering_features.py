r"""Scattering features of small colour images: a fixed transform, without training.

An image is filtered by Morlet wavelets of two scales and eight orientations, in the Fourier domain
and with mirrored borders. The moduli are averaged under Gaussian windows on a 4 × 4 grid (first
order), or filtered again by the wavelets of the coarser scale before that (second order). First
order is computed for each colour, second order for the grey image: 3 · (1 + 16) + 64 = 115 maps of
16 values. The features of an image are normalised within groups of maps, and then to length 1.

References:
    Bruna and Mallat (2013); with differential privacy, Tramèr and Boneh (2021).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Images = NDArray[np.float32]

SCALES, ORIENTATIONS = 2, 8
GRID = 4  # windows along each side
BORDER = 4  # mirrored pixels on each side
GROUPS = ([1] * 3, [16] * 3, [8] * 8)  # maps per group: means, first order, second order
MAPS = 3 * (1 + SCALES * ORIENTATIONS) + ORIENTATIONS**2
FEATURES = MAPS * GRID**2


def features(images: Images) -> NDArray[np.float32]:
    """A row of `FEATURES` values of length 1 for each image of (count, 3, side, side)."""
    side = images.shape[-1]
    psi, windows = morlets(side + 2 * BORDER), _windows(side)
    maps = np.empty((len(images), MAPS, GRID, GRID), np.float32)
    maps[:, :3] = _averaged(images, windows)
    spectra = _transformed(images)
    for colour in range(3):
        first = 3 + colour * SCALES * ORIENTATIONS
        for i, wavelet in enumerate(psi):
            maps[:, first + i] = _averaged(_modulus(spectra[:, colour], wavelet), windows)
    grey = spectra.mean(axis=1)
    for i, fine in enumerate(psi[:ORIENTATIONS]):
        again = fft.fft2(_modulus(grey, fine, keep_border=True))
        for j, coarse in enumerate(psi[ORIENTATIONS:]):
            place = MAPS - ORIENTATIONS**2 + ORIENTATIONS * i + j
            maps[:, place] = _averaged(_modulus(again, coarse), windows)
    return _normalised(maps)


def morlets(side: int) -> NDArray[np.float32]:
    """Fourier transforms of the wavelets, the finer scale first.

    Gaussians around ``3π/4·2^−j``, corrected to mean zero.
    """
    omega = 2 * np.pi * np.fft.fftfreq(side)
    wavelets = []
    for j in range(SCALES):
        centre, width = 0.75 * np.pi / 2**j, 0.8 * 2**j
        for angle in np.pi * np.arange(ORIENTATIONS) / ORIENTATIONS:
            total = np.zeros((side, side))
            offset = np.zeros((side, side))
            for v in (-1, 0, 1):  # a sampled wavelet's transform is periodic
                for h in (-1, 0, 1):
                    y, x = omega[:, None] + 2 * np.pi * v, omega[None, :] + 2 * np.pi * h
                    along, across = (
                        np.cos(angle) * x + np.sin(angle) * y,
                        np.cos(angle) * y - np.sin(angle) * x,
                    )
                    across = across * ORIENTATIONS / 4  # so that the orientations cover the circle
                    total += np.exp(-0.5 * width**2 * ((along - centre) ** 2 + across**2))
                    offset += np.exp(-0.5 * width**2 * (along**2 + across**2))
            wavelets.append(total - total[0, 0] / offset[0, 0] * offset)
    return np.array(wavelets, np.float32)


def _transformed(images: Images) -> NDArray[np.complex64]:
    mirrored = np.pad(images, [(0, 0)] * (images.ndim - 2) + [(BORDER, BORDER)] * 2, mode="reflect")
    spectra: NDArray[np.complex64] = fft.fft2(mirrored)
    return spectra


def _modulus(
    spectra: NDArray[np.complex64], wavelet: NDArray[np.float32], keep_border: bool = False
) -> Images:
    """``|x ⋆ ψ|``, without the mirrored borders unless ``keep_border``."""
    modulus: Images = np.abs(fft.ifft2(spectra * wavelet))
    return modulus if keep_border else modulus[..., BORDER:-BORDER, BORDER:-BORDER]


def _windows(side: int) -> NDArray[np.float32]:
    """Gaussian windows around the centres of the grid, of weight 1."""
    step = side / GRID
    centres = step * (np.arange(GRID) + 0.5) - 0.5
    weights = np.exp(-0.5 * ((np.arange(side) - centres[:, None]) / (0.4 * step)) ** 2)
    windows: NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return windows


def _averaged(images: Images, windows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(windows @ images @ windows.T)


def _normalised(maps: NDArray[np.float32]) -> NDArray[np.float32]:
    """Normalise each group of maps to mean 0 and deviation 1, and each image to length 1."""
    rows, first = maps.reshape(len(maps), MAPS, -1), 0
    for size in (size for order in GROUPS for size in order):
        group = rows[:, first : first + size]
        group -= group.mean(axis=(1, 2), keepdims=True)
        group /= group.std(axis=(1, 2), keepdims=True) + 1e-3
        first += size
    flat = rows.reshape(len(maps), -1)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    return flat
