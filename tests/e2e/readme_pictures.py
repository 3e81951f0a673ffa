"""Take the README's pictures of the bundled runs again: python tests/e2e/readme_pictures.py (needs Chromium)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import serve
from playwright.sync_api import Browser, sync_playwright

from routesparse.engine import paths
from routesparse.engine.rows import RunRecord
from routesparse.engine.store.bundle import read_bundle

FOLDER = paths.DATA / "pictures"
SIZE = {"width": 1280, "height": 1010}


def samples() -> dict[str, RunRecord]:
    """The bundled runs by prompt."""
    folders = sorted((paths.DATA / "samples" / "runs").iterdir())
    return {record.run.prompt_name: record for record in map(read_bundle, folders)}


def striking(record: RunRecord) -> str:
    """Query of the densest head whose vertical-slash choice a smaller candidate of the family can stand against."""
    slashes = sorted((c for c in record.choices if c.pattern == "vertical_slash"), key=lambda c: -c.density)
    for choice in slashes:
        family = [
            c.candidate
            for c in record.candidates
            if (c.layer, c.head, c.pattern) == (choice.layer, choice.head, choice.pattern)
        ]
        if min(family) < choice.candidate:
            return f"layer={choice.layer}&head={choice.head}&mask={choice.candidate}&against={min(family)}"
    raise ValueError("no head took a larger vertical-slash candidate")


def take(
    browser: Browser, address: str, path: str, name: str, card: str | None = None, dark: bool = False
) -> None:
    """One picture: the window, or one card of the page."""
    page = browser.new_page(viewport=SIZE, color_scheme="dark" if dark else "light")
    page.goto(address + path)
    page.wait_for_selector(".rs-title", timeout=30_000)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=30_000)
    page.wait_for_timeout(2_000)
    shown = page if card is None else page.locator(f".st-key-{card}").first
    shown.screenshot(path=FOLDER / name)
    page.close()


def main() -> None:
    """All four."""
    runs = samples()
    prose, needles = runs["prose.txt"], runs["needles.txt"]
    book = f"/map?run={prose.run.run_id}"
    needle = f"/head?run={needles.run.run_id}&{striking(needles)}"
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(serve.CHROMIUM), args=serve.FLAGS)
        with serve.dashboard(Path(home), samples=True) as address:
            take(browser, address, book, "routing_map_light.png")
            take(browser, address, book, "routing_map_dark.png", dark=True)
            take(browser, address, f"{book}&metric=probe", "probes_of_all_heads.png", card="card-map")
            take(browser, address, needle, "masks_of_two_candidates.png", card="card-probe")
        browser.close()


if __name__ == "__main__":
    main()
