# ---
# jupyter:
#   copyright: Copyright 2026 The specjax authors.
#   SPDX-License-Identifier: Apache-2.0
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# [![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/specjax/specjax/blob/main/colab/sharded_decoding.ipynb)
#
# # Sharded decoding on eight TPU cores
#
# A TPU v2-8 has eight cores. `specjax.generate(..., mesh="data:2,model:4")` decodes on all of them:
# the axis `data` cuts the rows of the batch, `model` cuts attention heads, feed-forward layers and
# vocabulary, and `fsdp` cuts rows and parameters. The program is the one for a single device;
# the compiler adds the communication.
#
# Elsewhere this notebook makes a CPU look like eight devices. Nothing gets faster then, but what
# is computed and communicated is the same.

# %%
# Installs specjax where it is missing, with the JAX of the machine, and says what that machine is.
import glob
import importlib.util
import os
import shutil
import subprocess
import sys

REPOSITORY = "https://github.com/specjax/specjax"
if importlib.util.find_spec("specjax") is None:
  has_tpu = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
  backend = "[tpu]" if has_tpu else "[cuda12]" if shutil.which("nvidia-smi") else ""
  packages = [f"jax{backend}>=0.10", f"specjax[models,plots] @ git+{REPOSITORY}"]
  subprocess.run([sys.executable, "-m", "pip", "install", "-q", *packages], check=True)

flag = "--xla_force_host_platform_device_count=8"  # a CPU looks like eight devices
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"

import jax

FAST = os.environ.get("SPECJAX_FAST") == "1"  # tiny sizes, for tests
device = jax.devices()[0]
print(
  f"JAX {jax.__version__}: {jax.device_count()} x {device.platform.upper()} ({device.device_kind})"
)
devices = jax.devices() if jax.device_count() >= 8 else jax.devices("cpu")
devices = devices[:8]
jax.config.update("jax_default_device", devices[0])
on_tpu = devices[0].platform == "tpu"
print(f"the mesh is made of {len(devices)} x {devices[0].platform.upper()}")

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML, display

import specjax
from experiments import notebook_html
from specjax import sharding
from specjax.models import Transformer, TransformerConfig, checkpoint, save_huggingface

# %% [markdown]
# ## A checkpoint
#
# On a TPU, the real SmolLM2-135M-Instruct. Elsewhere a random model with the shapes of a Llama, so
# small that eight shares of a CPU can decode with it. Its tokens are bytes, and its head is bent so
# that it goes round in the letters of "stream".


# %%
def tiny_checkpoint(seed, num_layers):
  config = TransformerConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_layers=num_layers,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    max_positions=512,
  )
  model = Transformer(config, dtype="float32")
  params = jax.jit(model.init)(jax.random.key(seed))
  letters = np.array(list(b"stream "))
  embedding = params["embed"]["embedding"] / params["embed"]["embedding"].std()
  head = params["head"]["kernel"].at[:, np.roll(letters, -1)].add(0.4 * embedding[letters].T)
  params |= {"embed": {"embedding": embedding}, "head": {"kernel": head}}
  folder = Path(tempfile.mkdtemp(prefix="specjax-"))
  save_huggingface(folder, model, params)
  return folder


SOURCE = "smollm2-135m-instruct" if on_tpu else tiny_checkpoint(0, num_layers=1 if FAST else 2)
model = checkpoint.read(SOURCE).model
print(f"{model.config.num_layers} layers, {model.config.num_heads} heads, {model.dtype}")

# %% [markdown]
# ## What each device holds
#
# Nothing has been loaded yet: shapes are enough to tell. What an axis does not divide is
# replicated: four key/value heads on eight devices, below, or SmolLM2's nine heads on four. No head
# is cut in two.

# %%
MESHES = ("data:8", "fsdp:8", "model:8", "data:2,model:4")
CAPACITY, ROWS = 64, 8


def device_bytes(mesh, tree, batch=None):
  mesh = sharding.make_mesh(mesh, devices)
  rows = sharding.leaf_rows(tree, sharding.Partitioning.of(mesh, model=model), batch)
  return sum(row.device_bytes for row in rows) / sum(row.total_bytes for row in rows)


cache = jax.eval_shape(lambda: model.init_cache(ROWS, CAPACITY))
shares = {
  "parameters": [device_bytes(mesh, model.param_shapes()) for mesh in MESHES],
  "cache": [device_bytes(mesh, cache, ROWS) for mesh in MESHES],
}

# %%
figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
place = np.arange(len(MESHES))
for index, (name, share) in enumerate(shares.items()):
  bars = axis.barh(place + 0.38 * index, share, height=0.36, label=name)
  axis.bar_label(bars, [f"{value:.0%}" for value in share], padding=3)
axis.set_yticks(place + 0.19, MESHES)
axis.set(xlabel="share that one device holds", xlim=(0, 1.15))
axis.invert_yaxis()
axis.legend()
plt.show()

# %% [markdown]
# ## Load straight into the shards
#
# No device, and no host buffer, ever holds what it will not keep.

# %%
MESH = "data:2,model:4"
mesh = sharding.make_mesh(MESH, devices)
target = checkpoint.load(SOURCE, mesh=mesh, log=lambda line: None)
kernel = target.params["layers"]["0"]["mlp"]["up"]["kernel"]
print(f"layer 0's up-projection {kernel.shape}: {kernel.sharding.spec}")
for shard in kernel.addressable_shards:
  rows, columns = (
    part.indices(size)[:2] for part, size in zip(shard.index, kernel.shape, strict=True)
  )
  print(f"  device {shard.device.id}: rows {rows}, columns {columns}")

# %% [markdown]
# ## Decode, and compare with one device
#
# The batch has eight prompts, and the drafter is prompt lookup. In float32 the tokens are the same,
# on any mesh; the random draws of a row belong to the row, not to a device.

# %%
WORDS = ["river", "lake", "sea", "delta", "spring", "brook", "canal", "bay"]
texts = [f"{word} stream str" for word in WORDS]
encode = target.tokenizer.encode if target.tokenizer else lambda text: list(text.encode())
prompts = [encode(text) for text in texts]
options = {
  "drafter": specjax.drafters.PromptLookup(draft_length=4, min_ngram=1),
  "policy": specjax.SamplingPolicy(temperature=0.5),
  "max_new_tokens": 16 if FAST else 36,
  "capacity": CAPACITY,
  "key": 0,
}
one_device = checkpoint.load(SOURCE, log=lambda line: None)
alone = specjax.generate(model, one_device.params, prompts, **options)
sharded = specjax.generate(model, target.params, prompts, mesh=mesh, **options)
same = sharded.new_tokens() == alone.new_tokens()
assert same or on_tpu  # bfloat16 on a TPU: near ties may swap
print(f"one device and {MESH}: the same tokens: {same}")


# %%
def pieces(row):
  decode = target.tokenizer.decode if target.tokenizer else lambda ids: bytes(ids).decode()
  return [repr(decode([token]))[1:-1] for token in sharded.new_tokens()[row]]


display(HTML(notebook_html.legend()))
columns = {
  f"{texts[row]}...": notebook_html.color_generation(sharded, pieces(row), row) for row in (0, 4)
}
display(HTML(notebook_html.side_by_side(columns)))

# %% [markdown]
# ## A small draft model beside a large target
#
# A draft model is small: every device gets all of it (`drafter_rules=sharding.REPLICATED`), so that
# drafting needs no communication. Here the target's own first layer drafts for it.

# %%
from specjax.models.truncation import truncate

draft, draft_params = truncate(model, one_device.params, 1)
generation = specjax.generate(
  model,
  target.params,
  prompts,
  mesh=mesh,
  **options
  | {
    "drafter": specjax.drafters.DraftModel(draft, draft_length=3),
    "drafter_params": draft_params,
    "drafter_rules": sharding.REPLICATED,
  },
)
calls = generation.target_calls
print(f"calls of the target for {options['max_new_tokens']} tokens a row: {calls}")

# %% [markdown]
# ## And now?
#
# - `python -m experiments.decode --mesh=data:2,model:4 --batch_size=8` decodes with it,
#   `experiments.train` takes the same `--mesh`.
# - `python -m experiments.inspect_sharding --mesh=model:8` lists every array: its shape, how it is
#   cut, and its bytes on a device.
# - `python -m experiments.scaling` predicts what a mesh brings on real hardware: on forced host
#   devices times mean nothing.
