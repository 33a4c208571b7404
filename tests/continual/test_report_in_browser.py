"""The report in a real browser, on a phone and on a desk: nothing sticks out of the page, and text is not too small."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flyk._page import table, write_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Opened in a frame as wide as the screen, for a browser without a screen has a least width of its own.
MEASURE = """
<iframe src="report.html" style="width: {width}px; height: 800px; border: 0"></iframe>
<pre id="said"></pre>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  const texts = [...page.querySelectorAll("p, li, td, th, figcaption, svg text")];
  const sizes = texts.map((e) => parseFloat(getComputedStyle(e).fontSize) *
    (e.ownerSVGElement ? Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b) : 1));
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const body = page.defaultView.getComputedStyle(page.body);
  said.textContent = JSON.stringify({{ wide: root.scrollWidth, smallest: Math.min(...sizes), dark,
    ink: body.color, page: body.backgroundColor }});
}};
</script>
"""


def seen(folder: Path, width: int, dark: bool) -> dict:
    """What the browser says of folder/report.html."""
    (folder / "frame.html").write_text(MEASURE.format(width=width))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", scheme]
    command = [BROWSER, *options, "--virtual-time-budget=5000", "--dump-dom", (folder / "frame.html").as_uri()]
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(re.findall(r'<pre id="said">(.*?)</pre>', page)[0])


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2."""
    channels = [int(c) / 255 for c in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_report_fits_and_can_be_read(tmp_path: Path, width: int, dark: bool) -> None:
    pytest.importorskip("matplotlib")
    from flyk.continual.charts import accuracy_chart

    tests = {"samples": [1, 2], "at_task_end": [False, True], "accuracy": {"REAR classifier": [0.5, 0.9]}}
    head = ["learner", *(f"a measure with a name {i}" for i in range(8))]
    parts = [
        "<h1>flyk demo</h1>",
        f'<div class="charts"><figure>{accuracy_chart(tests, 0.9)}<figcaption>words</figcaption></figure></div>',
        table(head, [["REAR classifier", *["100.0"] * 8]], "A caption."),
        f"<p><code>flyk demo --features {'a-long-folder/' * 12}x.npz</code></p>",
    ]
    write_page({}, "flyk demo", parts, tmp_path)
    found = seen(tmp_path, width, dark)
    assert found["dark"] == dark
    assert found["wide"] <= width
    assert found["smallest"] >= 9  # CSS pixels
    light, dim = sorted((luminance(found["ink"]), luminance(found["page"])), reverse=True)
    assert (light + 0.05) / (dim + 0.05) >= 7  # WCAG AAA
    assert (luminance(found["page"]) < 0.1) == dark
