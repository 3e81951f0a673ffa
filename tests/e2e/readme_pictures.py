"""Take the README's pictures again, light and dark: python tests/e2e/readme_pictures.py (needs Chromium)."""

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


def take(browser: Browser, address: str, path: str, name: str, dark: bool) -> None:
    """One picture of the window."""
    page = browser.new_page(viewport=SIZE, color_scheme="dark" if dark else "light")
    page.goto(address + path)
    page.wait_for_selector(".rs-title", timeout=180_000)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=180_000)
    # Grey places stand for what the browser still loads.
    page.wait_for_function("!document.querySelector('[data-testid=stSkeleton]')", timeout=180_000)
    page.wait_for_timeout(2_000)
    page.screenshot(path=FOLDER / name)
    page.close()


def views() -> dict[str, str]:
    """Picture -> address: a public model's map by density; of the bundled one who reads a needle, and fallbacks."""
    records = samples()
    run = {Path(name).stem: record.run.run_id for name, record in records.items()}
    prompt, answer = records["needles.txt"].prompt, records["needles.txt"].continuations[0].dense_text
    assert prompt is not None and answer is not None
    needle = answer.removesuffix("</s>").strip(" .")
    return {
        "routing_map": f"/map?run={run['prose-32k']}&metric=density",
        "text": f"/text?run={run['needles']}&find={prompt.text.index(needle)}-{len(needle)}&scope=all",
        "trust": f"/trust?run={run['needles']}",
    }


def main() -> None:
    """Four pages, light and dark."""
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(serve.CHROMIUM), args=serve.FLAGS)
        with serve.dashboard(Path(home), samples=True) as address:
            for name, path in views().items():
                for theme in ("light", "dark"):
                    take(browser, address, path, f"{name}_{theme}.png", dark=theme == "dark")
        browser.close()


if __name__ == "__main__":
    main()
