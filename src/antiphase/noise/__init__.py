"""Noise: a secret key, normals from it, and the rows of ``C⁻¹Z`` as a stream.

The stream's module compiles its inner loops with Numba, whose import takes longer than the rest of
the library: it is imported when the first stream is made
(``from antiphase.noise.stream import NoiseStream``).
"""

from antiphase.noise.key import Key

__all__ = ["Key"]
