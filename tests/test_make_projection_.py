"""make_projection_: Philox's published vectors, the same bits everywhere, and the distributions that are promised."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from flyk.ops.make_projection_ import KINDS, make_projection_, normal, philox, reference

# Random123 1.14.0, tests/kat_vectors, "philox4x32 10": counter, key, result.
VECTORS = [
    ("00000000 00000000 00000000 00000000 00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
# sha256 of values and indices of rows 0 to 4, in_features 33, nnz 7, std 0.1, for seeds 0, 1 and 2^63 - 1.
SEEDS = (0, 1, 2**63 - 1)
GOLDEN = {
    "gaussian": [
        "9a5799d6be7b85ea6b64250ef7110bbc4645157328354346ab41bd6d2d7d3ad3",
        "4d67e23eb94da5280cd1d658adbf13510e83f293304502968d1ff90f77443930",
        "55b170b4ab1353ad0c743e44bbb69fa6b5b24bd381bcd8be339bb741525e5b74",
    ],
    "sparse_gaussian": [
        "465e0cc19c9cedd1a39d88316ca9fc350f1d0a5d918f6849fc39ff5eac88fd18",
        "9e4285add9ae0cb78e32392f42cbdf7e9fd5e52d5294ad197839943440cc81a1",
        "3c3c577e9830576396eb03926194a348628a9681de6f6423343d50732d44d51f",
    ],
    "sparse_sign": [
        "bab430a5cbe946be848391ff3d107ecba40543f0750f7fe1e126cfa3c14bd4ec",
        "cce9981ce2189b73d4659e1e5817ec5171016049ed2d0c4276254a4a417b5ad6",
        "65fdfb00fd1945c5228992455d9a9ef4983328527f69468ad75030062d54708f",
    ],
    "binary": [
        "9922a43f9bf7dfeff18cc3cbc90767af5c8c8383ad2b1af1f15f8a74492564b6",
        "693616cc67b7b07dcb83a2fe7037eecc8845780067ed3f4e64bc72b96ae1ab30",
        "f9c61fc588789ef980866f43b39b5b580594b37d3903555c146cc7575dd14d7a",
    ],
}
# kind is every kind; rows, in_features, nnz, std, seed, first
SIZES = [
    (1000, 257, 33, 1.0, 0, 0),
    (77, 768, 192, 0.03125 * 1.1, 2**63 - 1, 2**40 + 5),
    (64, 64, 64, 1e-37, 123456789012345678, 1),
    (3, 100003, 17, 1.0, 5, 2**33),
    (1, 1, 1, 3.0, 7, 0),
    (0, 10, 3, 1.0, 0, 0),
    (4, 0, 0, 1.0, 0, 0),
]


def made(kind, rows, in_features, nnz, std, seed, first=0, make=make_projection_):
    shape = (rows, in_features if kind == "gaussian" else nnz)
    values = torch.full(shape, torch.nan)
    indices = None if kind == "gaussian" else torch.full(shape, -1, dtype=torch.int32)
    assert make(values, indices, kind, in_features, std, seed, first) is None
    return values, indices


def digest(*arrays):
    parts = (np.ascontiguousarray(a).tobytes() for a in arrays if a is not None)
    return hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.mark.parametrize(("given", "wanted"), VECTORS)
def test_philox_gives_the_published_words(given, wanted):
    given, wanted = ([int(word, 16) for word in words.split()] for words in (given, wanted))
    words = philox([torch.tensor([c]) for c in given[:4]], tuple(given[4:]))
    assert [int(w) for w in words] == wanted
    compiled = pytest.importorskip("flyk._C", reason="the extension is not built")
    assert list(compiled.philox(*given)) == wanted


def test_triton_gives_the_same_first_word(tmp_path):
    pytest.importorskip("triton")
    script = tmp_path / "words.py"
    script.write_text("""
import sys, torch, triton, triton.language as tl

@triton.jit
def words(out, counters, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.randint(seed, tl.load(counters + at)))

for seed in (0, 7, 2**40 + 3, 2**63 - 1):
    for start in (0, 2**32 - 20, 2**50):
        out = torch.empty(64, dtype=torch.int32)
        words[(1,)](out, torch.arange(start, start + 64), seed, 64)
        print(*(int(w) & 0xFFFFFFFF for w in out))
""")
    run = [sys.executable, str(script)]
    lines = subprocess.run(run, env=os.environ | {"TRITON_INTERPRET": "1"}, check=True, capture_output=True, text=True)
    lines = iter(lines.stdout.splitlines())
    for seed in (0, 7, 2**40 + 3, 2**63 - 1):
        for start in (0, 2**32 - 20, 2**50):
            c = torch.arange(start, start + 64)
            zero = torch.zeros_like(c)
            first, *_ = philox((c & 0xFFFFFFFF, c >> 32, zero, zero), (seed & 0xFFFFFFFF, seed >> 32))
            assert [int(w) for w in next(lines).split()] == first.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [make_projection_, reference])
def test_golden_bits(kind, make):
    assert [digest(*made(kind, 5, 33, 7, 0.1, seed, make=make)) for seed in SEEDS] == GOLDEN[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [make_projection_, reference])
def test_a_block_of_rows_is_made_alone(kind, make):
    whole = made(kind, 50, 70, 9, 0.5, 3, 0, make)
    for begin, end in ((0, 50), (17, 31), (49, 50), (20, 20)):
        block = made(kind, end - begin, 70, 9, 0.5, 3, begin, make)
        for part, all_rows in zip(block, whole, strict=True):
            assert part is None or torch.equal(part, all_rows[begin:end])


COMPILED = """
import hashlib, importlib.util, json, sys
import numpy as np
path, cases = sys.argv[1], json.loads(sys.argv[2])
spec = importlib.util.spec_from_file_location("_C", path)
C = importlib.util.module_from_spec(spec)
spec.loader.exec_module(C)
for kind, rows, n, nnz, std, seed, first in cases:
    values = np.full((rows, n if kind == 0 else nnz), np.nan, np.float32)
    indices = np.full(values.shape, -1, np.int32)
    C.make_projection(kind, n, values.shape[1], std, seed, first, rows, values.ctypes.data, indices.ctypes.data)
    parts = values.tobytes() + (indices.tobytes() if kind else b"")
    print(C.isa(), hashlib.sha256(parts).hexdigest())
"""


CASES = [(kind, *sizes) for kind in KINDS for sizes in SIZES]


@functools.cache
def digests_of_the_reference():
    return [digest(*made(*case, make=reference)) for case in CASES]


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_every_build_of_the_kernel_gives_the_bits_of_the_reference(isa):
    compiled = pytest.importorskip("flyk._C", reason="the extension is not built")
    coded = json.dumps([(KINDS.index(kind), *sizes) for kind, *sizes in CASES])
    run = [sys.executable, "-c", COMPILED, str(Path(compiled.__file__)), coded]
    result = subprocess.run(run, env=os.environ | {"FLYK_CPU": isa}, capture_output=True, text=True)
    if "FLYK_CPU must be one of" in result.stderr:
        pytest.skip(f"this processor has no {isa}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"{isa} {wanted}" for wanted in digests_of_the_reference()]


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_blocks_of_the_reference_change_nothing(kind, threads, monkeypatch):
    once = made(kind, 300, 100, 11, 1.0, 9)
    threads(1)
    alone = made(kind, 300, 100, 11, 1.0, 9)
    monkeypatch.setattr("flyk.ops.make_projection_.BLOCK", 700)  # seven rows at a time
    in_blocks = made(kind, 300, 100, 11, 1.0, 9, make=reference)
    for a, b, c in zip(once, alone, in_blocks, strict=True):
        assert a is None or (torch.equal(a, b) and torch.equal(a, c))


@pytest.mark.parametrize(("in_features", "nnz"), [(50, 7), (64, 64), (129, 100)])
def test_columns_are_distinct_sorted_and_uniform(in_features, nnz):
    rows = 4000
    _, indices = made("binary", rows, in_features, nnz, 1.0, 4)
    assert (indices.diff(dim=1) > 0).all()
    assert indices.min() >= 0
    assert indices.max() < in_features
    counts = torch.bincount(indices.flatten(), minlength=in_features).double()
    mean = rows * nnz / in_features
    if nnz == in_features:
        assert (counts == rows).all()
        return
    # A row without replacement: the counts' covariance is that of a multinomial times rows p (n - p) / (n (n - 1)),
    # so this is chi-square with n - 1 degrees of freedom, whose standard deviation is sqrt(2 (n - 1)).
    scale = mean * (in_features - nnz) / (in_features - 1)
    chi_square = float(((counts - mean) ** 2).sum() / scale)
    assert abs(chi_square - (in_features - 1)) < 4 * math.sqrt(2 * (in_features - 1))


def test_every_set_of_columns_has_the_same_chance():
    rows = 60000
    _, indices = made("binary", rows, 6, 3, 1.0, 11)
    counts = torch.bincount((1 << indices.long()).sum(dim=1), minlength=64)
    counts = counts[counts > 0].double()
    assert len(counts) == math.comb(6, 3)
    chi_square = float(((counts - rows / 20) ** 2).sum() / (rows / 20))
    assert abs(chi_square - 19) < 4 * math.sqrt(2 * 19)


def test_signs_are_even_and_binary_is_constant():
    values, _ = made("sparse_sign", 2000, 300, 50, 0.25, 1)
    assert set(values.unique().tolist()) == {-0.25, 0.25}
    assert abs(float((values > 0).double().mean()) - 0.5) < 4 * 0.5 / math.sqrt(values.numel())
    # Signs know nothing of columns: within a row their sum has variance nnz.
    sums = (values / 0.25).sum(dim=1).double()
    assert abs(float(sums.square().mean()) / 50 - 1) < 4 * math.sqrt(2 / 2000)
    assert (made("binary", 20, 30, 5, 0.3, 1)[0] == np.float32(0.3)).all()


@pytest.mark.parametrize("kind", ["gaussian", "sparse_gaussian"])
def test_normal_values_have_the_moments_and_tails_of_the_normal(kind):
    values, _ = made(kind, 2000, 512, 512, 2.0, 6)
    z = values.double().flatten() / 2
    n = z.numel()
    # Moments of order p: standard error sqrt((E z^2p - (E z^p)^2) / n).
    for order, moment, square in ((1, 0, 1), (2, 1, 3), (3, 0, 15), (4, 3, 105)):
        assert abs(float((z**order).mean()) - moment) < 4 * math.sqrt((square - moment**2) / n)
    for bound in (1.0, 2.0, 3.0, 4.0):
        chance = math.erfc(bound / math.sqrt(2))
        assert abs(float((z.abs() > bound).double().mean()) - chance) < 4 * math.sqrt(chance / n)
    stats = pytest.importorskip("scipy.stats")
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-3
    # Neighbours, which share a row and differ in their counter by one, are uncorrelated.
    assert abs(float((z[1:] * z[:-1]).mean())) < 4 / math.sqrt(n)


def test_normal_is_box_muller_to_float32():
    generator = torch.Generator().manual_seed(0)
    u, v = torch.randint(0, 2**32, (2, 2**19), generator=generator)
    edges = torch.arange(-500, 500)
    for i, centre in enumerate((500, 2**30, 2**31, 3 * 2**30, 2**32 - 500, int(2**31.5))):
        u[i * 1000 : (i + 1) * 1000] = centre + edges
        v[-(i + 1) * 1000 : -i * 1000 or None] = centre + edges
    fraction = (u.float() + 0.5).double() / 2**32  # u has the 24 bits of a float32
    exact = (-2 * fraction.log()).sqrt() * (2 * torch.pi * (v.double() + 0.5) / 2**32).cos()
    error = (normal(u, v).double() - exact).abs() / exact.abs().clamp_min(1)
    assert float(error.max()) < 4e-7


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "gaussian"}, "indices must be None for kind 'gaussian'"),
        ({"kind": "gaussian", "indices": None}, r"values must have shape \(rows, 9\), got \(2, 3\)"),
        ({"in_features": 2}, "nnz must be from 1 to in_features, 2, got 3"),
        ({"values": torch.zeros(2, 0), "indices": torch.zeros(2, 0, dtype=torch.int32)}, "nnz must be from 1 .*got 0"),
        ({"first": 2**62}, "first must be from 0 up and leave every entry a number below"),
        ({"values": torch.zeros(2, 3, requires_grad=True)}, "values must be frozen"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(change, sentence):
    indices = torch.full((2, 3), -1, dtype=torch.int32)
    arguments = {"values": torch.zeros(2, 3), "indices": indices, "kind": "binary", "in_features": 9}
    arguments = arguments | {"std": 1.0, "seed": 0} | change
    with pytest.raises(ValueError, match=sentence):
        make_projection_(**arguments)
    assert not arguments["values"].any()
    assert (indices == -1).all()
