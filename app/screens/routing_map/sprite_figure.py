"""The map with every head's probe in its cell: one PNG for all of them."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from routesparse.app.ui import design, numbers
from routesparse.app.unit import probe
from routesparse.engine.store.sprite import Sprite


def data_uri(sprite: Sprite, theme: design.Theme) -> str:
    """The sprite as a PNG with a palette of the sequential scale; unknown tiles are grey."""
    values = sprite.values // 2 + 1
    known = sprite.known.repeat(sprite.height, axis=0).repeat(sprite.width, axis=1)
    picture = Image.fromarray(np.where(known, values, 0).astype(np.uint8), "P")
    shares = np.linspace(0, 1, 128)
    colors = [theme.null, *(probe.mass_color(theme, float(share)) for share in shares)]
    picture.putpalette(b"".join(bytes.fromhex(color[1:]) for color in colors))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=False, compress_level=6)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def legend(sprite: Sprite, theme: design.Theme) -> str:
    """HTML: what a pixel is."""
    rows, blocks = numbers.several(sprite.row_pool, "row"), numbers.several(sprite.block_pool, "key block")
    grey = f'<span><i style="background:{theme.null}"></i>not recorded</span>'
    return (
        f'<div class="rs-legend"><span>{sprite.width} × {sprite.height} pixels a head, each the largest mass of up '
        f"to {rows} × {blocks}</span>{probe.scale_html(theme, 'each head’s own peak')}{grey}</div>"
    )
