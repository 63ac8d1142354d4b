"""Archives of images, as container runtimes read them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

from devcluster import images


def test_an_archive_has_one_image_whose_layers_have_the_digests_that_its_configuration_names(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"program")
    program.chmod(0o755)
    images.sandbox(tmp_path / "image.tar", "example/pause:v1", program)
    with tarfile.open(tmp_path / "image.tar") as archive:

        def read(name: str) -> bytes:
            file = archive.extractfile(name)
            assert file is not None
            return file.read()

        (image,) = json.loads(read("manifest.json"))
        assert image["RepoTags"] == ["example/pause:v1"]
        configuration = json.loads(read(image["Config"]))
        digests = [f"sha256:{hashlib.sha256(read(layer)).hexdigest()}" for layer in image["Layers"]]
        assert configuration["rootfs"] == {"type": "layers", "diff_ids": digests}
        assert configuration["config"] == {"Entrypoint": ["/pause"], "User": "65535:65535"}
        layer = archive.extractfile(image["Layers"][0])
        with tarfile.open(fileobj=layer) as content:
            (member,) = content.getmembers()
            assert (member.name, member.mode, member.uid, member.gid) == ("pause", 0o755, 0, 0)


def test_the_image_runs_as_its_containerfile_says() -> None:
    found = images.configuration((images.ROOT / "Containerfile").read_text())
    assert found["User"] == "65532:65532"
    assert found["Cmd"] == ["seedquota-seed", "--help"]
    assert {
        "PATH=/usr/local/bin:/usr/bin",
        "PYTHONDONTWRITEBYTECODE=1",
        "SSL_CERT_FILE=/usr/share/seedquota/ca.pem",
    } <= set(found["Env"])
