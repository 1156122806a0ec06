"""The page of a run with 100,000 rows of findings: seconds to write and to open it, and its size.

    python benchmarks/report_page.py [ROWS]

Two adversaries attack 20 clients in each round, and the attacks of one have pictures in the first
50 rounds. A page is open when its charts are drawn and its rows are shown. The browser is new for
the first opening. Needs chromium, chromedriver and selenium.
"""

import argparse
import csv
import random
import shutil
import struct
import tempfile
import time
import zlib
from pathlib import Path

from fedsim.report import write_report
from fedsim.runs.reading import COLUMNS

CLIENTS = 20
METRICS = {"dlg": ("recovered", "mse", "psnr", "ssim", "asr"), "llg": ("asr", "label_f1")}
OPENED = """
const done = arguments[arguments.length - 1];
(function wait() {
  const drawn = [...document.querySelectorAll(".chart")].every((one) => one.querySelector("svg"));
  if (drawn && document.querySelectorAll("#attacks tbody tr").length > 5) {
    requestAnimationFrame(() => done(performance.now() / 1000));
  } else setTimeout(wait, 5);
})();
"""


def picture(shade: int) -> bytes:
    """A grey PNG file of 32 x 66 pixels."""
    lines = b"".join(b"\0" + bytes([shade]) * 32 for _ in range(66))
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 32, 66, 8, 0, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def write(folder: Path, rows: int) -> None:
    """A run folder of about so many rows."""
    rng, written, number = random.Random(0), 0, 0  # noqa: S311
    with (folder / "findings.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, restval="")
        table.writeheader()
        while written < rows:
            number += 1
            for client in range(CLIENTS):
                for label, metrics in METRICS.items():
                    victim, artifact = f"r{number:04d}-c{client:04d}", ""
                    if label == "dlg" and number <= 50:
                        artifact = f"artifacts/{victim}/reconstruction.png"
                        (folder / artifact).parent.mkdir(parents=True)
                        (folder / artifact).write_bytes(picture(rng.randrange(256)))
                    key = {"scenario": "many", "seed": 7, "round": number, "client": client}
                    key |= {"victim": victim, "adversary": label, "label": label, "status": "ok"}
                    for metric in metrics:
                        score = {"metric": metric, "value": rng.random(), "baseline": 0.4}
                        table.writerow(key | score | {"artifact": artifact, "batch_size": 1})
                        written += 1
    lines = [f"{n},accuracy,{1 - 1 / n:.4f}," for n in range(1, number + 1)]
    (folder / "utility.csv").write_text("\n".join(["round,metric,value,point", *lines, ""]))


def opening(page: Path) -> list[float]:
    """Seconds from navigation until the page is complete, three times."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000"):
        options.add_argument(flag)
    driver = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=driver)
    try:
        found = []
        for _ in range(3):
            browser.get("about:blank")
            browser.get(page.resolve().as_uri())
            found.append(float(browser.execute_async_script(OPENED)))
        return found
    finally:
        browser.quit()


def main() -> None:
    """Print the three numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="?", type=int, default=100_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), rows)
        start = time.perf_counter()
        page = write_report(Path(folder))
        print(f"{rows} rows: written in {time.perf_counter() - start:.1f} s")
        print(f"size {page.stat().st_size / 1e6:.1f} MB")
        print("open after", ", ".join(f"{one:.2f} s" for one in opening(page)))


if __name__ == "__main__":
    main()
