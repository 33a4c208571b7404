"""One self-contained HTML page of tables, its numbers inside as JSON; good on a phone, in the dark, without colour."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from flyk._files import write_whole

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --page: #ffffff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa4af; --line: #343b44; --page: #0f1419; --card: #182028; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; color: var(--ink); background: var(--page);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: .5rem 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
p { max-width: 46rem; } .soft, figcaption { color: var(--soft); font-size: .92rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem; padding: 0; }
.cards li { list-style: none; background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .8rem; }
.cards b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.5rem;
  align-items: start; }
.charts figure:first-child { grid-row: span 2; }
figure { margin: 0; } svg { display: block; width: 100%; height: auto; max-width: 36rem; color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
td { white-space: nowrap; } th.words, td.words { text-align: left; white-space: normal; }
th:first-child, td:first-child { padding-left: 0; } thead th { border-bottom-width: 2px; }
code { overflow-wrap: anywhere; }
"""


def write_page(result: dict[str, Any], title: str, parts: Sequence[str], folder: Path) -> Path:
    """Writes report.json and report.html into `folder`, each whole or not at all, and returns the HTML's path.

    Args:
        result: the numbers, finite (see `finite`); they are also kept in the page.
        title: plain text.
        parts: HTML, one after the other.
        folder: made if it is not there.
    """
    text = json.dumps(result, indent=1, allow_nan=False)
    for name, content in (("report.json", text + "\n"), ("report.html", page(title, parts, text))):
        with write_whole(folder / name) as part:
            part.write_text(content, encoding="utf-8")
    return folder / "report.html"


def page(title: str, parts: Sequence[str], data: str) -> str:
    """A whole HTML page that loads nothing; `data` is JSON, kept in the script element "result"."""
    body, inlined = "\n".join(parts), data.replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f'<body>\n{body}\n<script type="application/json" id="result">\n{inlined}\n</script>\n</body>\n</html>\n'
    )


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as a number of per cent, a dash for None."""
    return "–" if value is None else f"{100 * value:.{digits}f}".replace("-", "−")


def finite(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", words: Sequence[int] = (0,)) -> str:
    """An HTML table of escaped text; the columns `words` are set to the left and may wrap."""

    def cells(kind: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{kind}{' class=words' if i in words else ''}>{escape(cell)}</{kind}>" for i, cell in enumerate(row)
        )

    top, lines = cells("th", head), "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    title = f'<p class="soft">{escape(caption)}</p>\n' if caption else ""
    inner = f"<table><thead><tr>{top}</tr></thead>\n<tbody>\n{lines}\n</tbody></table>"
    return f'{title}<div class="scroll" tabindex="0">{inner}</div>'
