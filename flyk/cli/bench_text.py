"""What flyk bench prints: who ran it on what, and a table for each kind of run."""

from __future__ import annotations

from typing import Any

from flyk.cli.columns import columns

HEADER = [
    ["case", "published", "eager", "compiled", "flyk", "vs best", "vs publ.", "floor", "reached"],
    ["", "ms, error", "ms, error", "ms, error", "ms, error", "", "", "ms, MB", "%, GFLOP"],
]


def head(about: dict[str, Any]) -> list[str]:
    """The machine, in three lines."""
    return [
        about["command"],
        f"flyk {about['flyk']}, torch {about['torch']}, Python {about['python']}, kernels: {about['kernels']}",
        f"{about['system']}, {about['processor']}, {about['cores']} cores, {about['threads']} threads"
        + ("" if about["load"] is None else f", load {about['load']:.2f} before the run"),
    ]


def speed(result: dict[str, Any]) -> str:
    """Each case's times, errors and floor, and the notes to them."""
    limits, notes = result["ceilings"], []
    rows = list(HEADER)
    for case in result["cases"]:
        rows += _rows(case, notes)
    copy = limits["copy_bytes_per_second"]
    lines = [
        *head(result["machine"]),
        f"ceilings: copy {copy[min(copy)] / 1e9:.0f} GB/s in cache, {copy[max(copy)] / 1e9:.0f} from memory; "
        f"matrix product {limits['flop_per_second'] / 1e9:.0f} GFLOP/s",
        "",
        columns(rows, right=range(1, len(HEADER[0]))),
        "",
        "medians ± half the distance of the quartiles; errors: largest against float64, of the largest entry; floor:",
        "the longer of moving the bytes and doing the operations at the ceilings; reached: its share of flyk's time",
        *(f"[{at}] {note}" for at, note in enumerate(notes, 1)),
        *(f"left out, for the time was over: {name}" for name in result["left_out"]),
    ]
    return "\n".join(lines)


def _rows(case: dict[str, Any], notes: list[str]) -> list[list[str]]:
    """A case in two lines: times, and errors below them."""
    name, rivals, floor = f"{case['op']} {case['what']}", case["rivals"], case["floor"]["seconds"]
    errors = ["" if rival.get("error") is None else f"{rival['error']:.0e}" for rival in rivals.values()]
    work = [f"{case['floor']['bytes'] / 1e6:.3g}", f"{case['floor']['flop'] / 1e9:.3g}"]
    below = [f"  {case['sizes']}", *errors, "", "", *work]
    if case["check"] == "red":
        return [[name, *["RED"] * 4, *[_note(case["fault"], notes), "", "", ""]], below]
    times = [_time(rival, notes) for rival in rivals.values()]
    if case["published_share"] > 1:
        scaled = f"timed on 1/{case['published_share']} of the rows, times {case['published_share']}"
        times[0] += " " + _note(scaled, notes)
    ours, published = rivals["flyk"]["median"], rivals["published"]["median"]
    best = min(r["median"] for n, r in rivals.items() if n != "flyk" and "median" in r)
    ratios = [f"{best / ours:.2f}x", f"{published / ours:.2f}x", _ms(floor), f"{floor / ours:.0%}"]
    return [[name, *times, *ratios], below]


def _time(rival: dict[str, Any], notes: list[str]) -> str:
    if "median" not in rival:
        return _note(rival["absent"], notes)
    spread = (rival["q3"] - rival["q1"]) / 2
    return f"{_ms(rival['median'])} ±{_ms(spread, like=rival['median'])}"


def _ms(seconds: float, like: float | None = None) -> str:
    """Milliseconds to three figures, or to as many places as those of `like` have."""
    of = seconds if like is None else like
    places = 0 if of >= 0.1 else 1 if of >= 0.01 else 2 if of >= 0.001 else 3
    return f"{seconds * 1e3:.{places}f}"


def _note(sentence: str, notes: list[str]) -> str:
    """The mark of a note below the table; the same sentence has one."""
    if sentence not in notes:
        notes.append(sentence)
    return f"[{notes.index(sentence) + 1}]"


def crossovers(result: dict[str, Any]) -> str:
    """Each sweep's ratio of the two ways' times, and where they cross."""
    rows = []
    for each in result["crossovers"]:
        ratios = [f"{above / below:.2f}x at {size:g}" for size, below, above in zip(*_sweep(each), strict=True)]
        rows.append([f"{each['op']} {each['name']}", f"{each['crossover']:g}", ", ".join(ratios)])
    table = columns([["crossover", "at", "the way below over the way above"], *rows], right=(1,))
    return "\n".join([*head(result["machine"]), "", table])


def _sweep(each: dict[str, Any]) -> tuple[list[float], list[float], list[float]]:
    return each["sweep"], each["below"], each["above"]


def scaling(result: dict[str, Any]) -> str:
    """Each point of each curve."""
    rows = [["curve", "", "threads", "eager, ms", "flyk, ms", "vs eager", "floor, ms"]]
    for curve in result["curves"]:
        fixed = ", ".join(f"{name} {value}" for name, value in curve["fixed"].items())
        for at, point in enumerate(curve["points"]):
            name = f"{curve['op']} {curve['what']}: {fixed}" if at == 0 else ""
            size = f"{curve['axis']} {point['value']}"
            if point["fault"]:
                rows.append([name, size, str(point["threads"]), "RED", "RED", "", point["fault"]])
                continue
            times = [_ms(point["eager"]), _ms(point["flyk"]), f"{point['eager'] / point['flyk']:.2f}x"]
            rows.append([name, size, str(point["threads"]), *times, _ms(point["floor"])])
    return "\n".join([*head(result["machine"]), "", columns(rows, right=range(2, 7))])


def memory(result: dict[str, Any]) -> str:
    """The peak of each rival, and what a layer keeps."""
    peaks = [["peak beyond the inputs, MB", "inputs", "published", "eager", "compiled", "flyk"]]
    for case in result["peaks"]:
        found = (f"{rival['peak'] / 1e6:.1f}" if "peak" in rival else "-" for rival in case["rivals"].values())
        peaks.append([f"{case['op']} {case['what']}: {case['sizes']}", f"{case['inputs'] / 1e6:.1f}", *found])
    kept = [["kept for the backward of a layer, MB", *result["activations"][0]["kept"]]]
    for layer in result["activations"]:
        sizes = f"{layer['sequence']} tokens, width {layer['d']}, r {layer['r']}, k {layer['k']}"
        kept.append([sizes, *(f"{size / 1e6:.2f}" for size in layer["kept"].values())])
    tables = columns(peaks, right=range(1, 6)), columns(kept, right=range(1, 5))
    return "\n".join([*head(result["machine"]), "", tables[0], "", tables[1]])
