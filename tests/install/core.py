"""The core in an environment that ``make test-install`` made: prints a digest of noise.

The digest is the same in every environment: the noise does not depend on versions of libraries.
"""

import hashlib

import antiphase as ap


def main():
    factorization = ap.design("dp-mf", steps=64, buffers=2)
    mechanism = ap.calibrate(factorization, epsilon=1.0, delta=1e-6, clip_norm=1.0)
    assert mechanism.epsilon(delta=1e-6) <= 1.0
    assert mechanism.statement().to_json()
    amplified = ap.calibrate(
        ap.design("dp-sgd", steps=16),
        epsilon=1.0,
        delta=1e-6,
        clip_norm=1.0,
        sampling=ap.sampling.Poisson(0.1),
    )
    assert amplified.noise_multiplier < 10

    independent = ap.calibrate(ap.design("dp-sgd", steps=3), noise_multiplier=1.0, clip_norm=1.0)
    stream = independent.noise(dimension=5_000, key=ap.Key(bytes(range(32))), run="0" * 32)
    print(hashlib.sha256(b"".join(stream.next().tobytes() for _ in range(3))).hexdigest())


if __name__ == "__main__":
    main()
