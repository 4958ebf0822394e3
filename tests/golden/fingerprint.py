"""A hash of the weights in a folder that does not depend on how they are laid out in files."""

import hashlib
import json
from pathlib import Path


def weights_sha256(folder: Path) -> str:
    """SHA-256 over name, dtype, shape and bytes of every tensor of *.safetensors, in order of name."""
    tensors = {}
    for path in Path(folder).glob("*.safetensors"):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        tensors |= {name: (path, 8 + size, entry) for name, entry in header.items()}
    digest = hashlib.sha256()
    for name in sorted(tensors):
        path, data, entry = tensors[name]
        begin, end = entry["data_offsets"]
        digest.update(f"{name} {entry['dtype']} {entry['shape']}\n".encode())
        with path.open("rb") as file:
            file.seek(data + begin)
            digest.update(file.read(end - begin))
    return digest.hexdigest()
