"""Mask files: what NumPy and safetensors write is read as it is, and everything else is one line. CPU."""

import io

import numpy as np
import pytest
from safetensors.numpy import save_file

from routesparse.engine.certification.mask_files import read_masks
from routesparse.engine.certification.reads import BLOCK
from routesparse.engine.errors import ConfigError

MASK = np.random.default_rng(0).random((3, 2, 4, 7)) < 0.5


def saved(array, **options):
    handle = io.BytesIO()
    np.save(handle, array, **options)
    return handle.getvalue()


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_numpy_file_is_read_layer_by_layer(tmp_path, order):
    np.save(tmp_path / "mask.npy", np.asarray(MASK, order=order))
    found = read_masks(tmp_path / "mask.npy")
    assert list(found.layers) == [0, 1, 2] and found.block(None, None, BLOCK) == BLOCK
    assert all(np.array_equal(found.layers[layer], MASK[layer]) for layer in range(3))


@pytest.mark.parametrize("name", ["{}", "layer.{}", "layers.{}"])
def test_a_safetensors_file_may_leave_layers_out_and_say_its_blocks(tmp_path, name):
    path = tmp_path / "mask.safetensors"
    layers = {name.format(layer): MASK[layer] for layer in (0, 2)}
    save_file(layers, path, metadata={"block_q": "32", "block_k": "16"})
    found = read_masks(path)
    assert sorted(found.layers) == [0, 2] and np.array_equal(found.layers[2], MASK[2])
    assert found.block(None, None, BLOCK) == (32, 16) and found.block(64, None, BLOCK) == (64, 16)
    save_file({"mask": MASK}, path)
    assert np.array_equal(read_masks(path).layers[1], MASK[1])


def test_any_byte_but_0_is_true(tmp_path):
    path = tmp_path / "mask.safetensors"
    save_file({"mask": MASK}, path)
    content = path.read_bytes()
    path.write_bytes(content[: -MASK.size] + (content[-MASK.size :].replace(b"\x01", b"\x02")))
    found = read_masks(path)
    for layer, mask in found.layers.items():
        assert np.array_equal(mask, MASK[layer]) and set(np.unique(mask.view(np.uint8))) <= {0, 1}


def test_what_is_no_mask_is_one_line(tmp_path, no_plain_file):
    cases = {
        "text.npy": (b"no array", "no .npy file"),
        "cut.npy": (saved(MASK)[:-3], "save a whole bool array"),
        "floats.npy": (saved(MASK.astype(np.float32)), "float32"),
        "flat.npy": (saved(MASK[0, 0]), r"\[4, 7\]"),
        "three.npy": (saved(MASK[0]), "layers, heads"),
        "pickled.npy": (saved(np.array([{}]), allow_pickle=True), "object"),
        "text.safetensors": (b"{}", "no safetensors file"),
        "mask.txt": (b"1", "neither .npy nor .safetensors"),
    }
    for name, (content, told) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=told) as error:
            read_masks(tmp_path / name)
        assert "\n" not in str(error.value)
    save_file({"3": MASK[0], "layer.3": MASK[1]}, tmp_path / "twice.safetensors")
    with pytest.raises(ConfigError, match="names layer 3 twice"):
        read_masks(tmp_path / "twice.safetensors")
    save_file({"weights": MASK}, tmp_path / "names.safetensors")
    with pytest.raises(ConfigError, match="a tensor 'weights'"):
        read_masks(tmp_path / "names.safetensors")
    save_file({"mask": MASK}, tmp_path / "blocks.safetensors", metadata={"block_q": "many"})
    with pytest.raises(ConfigError, match="block_q 'many'"):
        read_masks(tmp_path / "blocks.safetensors")
    with pytest.raises(ConfigError, match="can't be read"):
        read_masks(tmp_path / "absent.npy")
    no_plain_file(tmp_path / "pipe.npy", "pipe")
    with pytest.raises(ConfigError, match="can't be read"):
        read_masks(tmp_path / "pipe.npy")
