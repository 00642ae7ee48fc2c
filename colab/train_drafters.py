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
# [![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/specjax/specjax/blob/main/colab/train_drafters.ipynb)
#
# # Train two drafters: blockwise heads and PaSS embeddings
#
# The target model can draft for itself, with a little that is trained on top of it while it stays
# frozen:
#
# - **Blockwise heads** (Stern et al. 2018, arXiv 1811.03115): small layers that read the target's
#   last hidden state and guess the tokens 2, 3, 4, ... places ahead.
# - **PaSS** (Monea et al. 2023, arXiv 2311.13581): a few *look-ahead embeddings*, appended to the
#   text as if they were tokens; what the target predicts there is the draft.
#
# To have it all in two minutes on a CPU, the target is a byte-level model that we train first, on
# sentences about rivers. The last cell says what changes for a real one.

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

import jax

FAST = os.environ.get("SPECJAX_FAST") == "1"  # tiny sizes, for tests
device = jax.devices()[0]
print(
  f"JAX {jax.__version__}: {jax.device_count()} x {device.platform.upper()} ({device.device_kind})"
)
# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML, display

import specjax
from experiments import notebook_html
from experiments.studies.digit_models import NextToken
from specjax.models import Transformer, TransformerConfig
from specjax.training.blockwise_objective import BlockwiseObjective
from specjax.training.optimizer import OptimizerOptions
from specjax.training.packing import PackedData
from specjax.training.pass_objective import PaSSObjective
from specjax.training.token_files import TokenFolder
from specjax.training.train_loop import TrainOptions, train

WORK = Path(tempfile.mkdtemp(prefix="specjax-"))

# %% [markdown]
# ## A text with easy and hard places
#
# Inside a word the next bytes are nearly certain; where a sentence begins they are not. That is how
# real text is, and why drafting works. Here and there some bytes are smudged (`#`), as on scanned
# pages: so the target learns to read on across a gap, which PaSS will ask of it. This toy is made to
# suit PaSS: on the same text without smudges it came to 1.1 tokens a call only. The figures below
# say nothing about real models.

# %%
FACTS = {
  "Rhine": ("Alps", "North Sea"),
  "Danube": ("Black Forest", "Black Sea"),
  "Volga": ("Valdai Hills", "Caspian Sea"),
  "Nile": ("African lakes", "Mediterranean"),
  "Amazon": ("Andes", "Atlantic"),
  "Mekong": ("Tibetan plateau", "South China Sea"),
}
random = np.random.default_rng(0)


def sentences(number):
  parts = []
  for river in random.choice(list(FACTS), number):
    source, sea = FACTS[river]
    begins = f"The {river} begins in the {source}"
    ends = f"flows into the {sea}"
    parts += random.choice(
      [f"{begins} and {ends}. ", f"{begins}. ", f"The {river} {ends}. "], 1
    ).tolist()
  return "".join(parts)


def smudge(text):
  rate = random.uniform(0, 0.5)  # some pages are worse than others
  return "".join("#" if random.random() < rate else letter for letter in text)


def token_data(name, rows):
  """Writes rows of (prompt ids, answer ids) as `experiments.generate_data` does, and opens them."""
  folder = TokenFolder(WORK / name, {"vocab_size": 128})
  for index, (prompt, answer) in enumerate(rows):
    held_out = index % 8 == 0
    facts = {"prompt": str(index), "split": "validation" if held_out else "train"}
    folder.append([*prompt, *answer], len(prompt), facts)
  return PackedData(folder, window=96, batch_size=4 if FAST else 16)


print(smudge(sentences(3)))

# %% [markdown]
# ## The target
#
# Tokens are bytes. The training loop is the one that drafters have: an *objective* says what is
# trained and towards what.

# %%
config = TransformerConfig(
  vocab_size=128,
  hidden_size=32 if FAST else 96,
  intermediate_size=32 if FAST else 192,
  num_layers=1 if FAST else 2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8 if FAST else 24,
  max_positions=256,
)
model = Transformer(config, dtype="float32")
STEPS = 3 if FAST else 300


def options(learning_rate):
  optimizer = OptimizerOptions(learning_rate=learning_rate)
  return TrainOptions(
    STEPS, optimizer=optimizer, log_every=max(STEPS // 20, 1), validate_every=STEPS
  )


corpus = token_data(
  "corpus", [(b"T", smudge(sentences(4)).encode()[1:]) for _ in range(16 if FAST else 512)]
)
trained = train(NextToken(model), None, corpus, options(5e-3))
params = trained.trainable
print(
  f"bytes of held-out text (smudges too) that it predicts: {trained.rows[-1]['agreement'][0]:.0%}"
)

# %% [markdown]
# ## What the drafters learn from
#
# Not the corpus but what the *target* writes, because its own tokens are what drafts are compared
# with. Here it goes on with the beginnings of sentences.

# %%
BEGINNINGS = [f"The {river} " for river in FACTS]
prompts = [list(BEGINNINGS[index % len(FACTS)].encode()) for index in range(12 if FAST else 192)]
answers = specjax.generate(
  model,
  params,
  prompts,
  policy=specjax.SamplingPolicy(temperature=0.7, top_p=0.9),
  max_new_tokens=24 if FAST else 80,
  capacity=160,
)
own_text = token_data("own_text", zip(prompts, answers.new_tokens(), strict=True))
print(bytes(prompts[0]).decode() + "|" + bytes(answers.new_tokens()[0]).decode())

# %% [markdown]
# ## Blockwise heads, then PaSS embeddings
#
# Four tokens ahead, both. The heads have some thirty thousand numbers to learn. The embeddings have
# four vectors, and what they can do is what the frozen target makes of them: they have to find the
# vectors that mean "something stood here, read on".

# %%
AHEAD = 4
objectives = {
  "blockwise": (BlockwiseObjective(model, draft_length=AHEAD, head_width=64), 5e-3),
  "PaSS": (PaSSObjective(model, look_ahead=AHEAD), 2e-2),
}
results = {
  name: train(objective, params, own_text, options(rate))
  for name, (objective, rate) in objectives.items()
}
for name, result in results.items():
  numbers = sum(leaf.size for leaf in jax.tree.leaves(result.trainable))
  print(f"{name}: {numbers:,} numbers trained")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
for axis, (name, result) in zip(axes, results.items(), strict=True):
  rows = [row for row in result.rows if row["split"] == "train"]
  for place in range(AHEAD):
    agreement = [row["agreement"][place] for row in rows]
    axis.plot([row["step"] for row in rows], agreement, label=f"place {place + 1}")
  axis.set(title=name, xlabel="step", ylim=(0, 1))
  axis.grid(alpha=0.3)
axes[0].set_ylabel("drafted token = the target's")
axes[0].legend(title="in the draft", loc="lower right")
plt.show()

# %% [markdown]
# ## Decode with them
#
# A drafter is written to one small file, which knows the target that it was made for. PaSS comes in
# two variants: two calls a round as in the paper, or one (*merged*).

# %%
from specjax.drafters.drafter_file import load_drafter, save_drafter

for name, (objective, _) in objectives.items():
  exported = objective.export(results[name].trainable, params)
  save_drafter(WORK / f"{name}.safetensors", exported, model, params, "rivers")


def load(name, **more):
  return load_drafter(WORK / f"{name}.safetensors", model, params, **more)


drafters = {
  "one token a call": (None, None),
  "blockwise": load("blockwise"),
  "PaSS": load("PaSS"),
  "PaSS, merged": load("PaSS", merged=True),
}

# %%
beginnings = [list(text.encode()) for text in BEGINNINGS]
generations = {
  name: specjax.generate(
    model,
    params,
    beginnings,
    drafter=drafter,
    drafter_params=drafter_params,
    max_new_tokens=16 if FAST else 72,
    capacity=128,
  )
  for name, (drafter, drafter_params) in drafters.items()
}
plain = generations["one token a call"].new_tokens()
for name, generation in generations.items():
  assert generation.new_tokens() == plain, name
  calls, new = generation.target_calls.sum(), generation.num_new_tokens.sum()
  print(f"{name:>17}: {new / calls:.2f} tokens a call, {calls} calls, the same text")

# %%
display(HTML(notebook_html.legend()))
for row in range(2):
  columns = {}
  for name in ("blockwise", "PaSS, merged"):
    generation = generations[name]
    pieces = [chr(token) for token in generation.new_tokens()[row]]
    columns[f"{BEGINNINGS[row]}... ({name})"] = notebook_html.color_generation(
      generation, pieces, row
    )
  display(HTML(notebook_html.side_by_side(columns)))

# %% [markdown]
# ## On a TPU, and for a real model
#
# The same three steps as commands, for SmolLM2-135M-Instruct (the files that they make are those
# that come with specjax):
#
# ```bash
# python -m experiments.generate_data --prompts=prompts.jsonl --output=runs/data
# python -m experiments.train --config=configs/train_blockwise.py --data=runs/data --output=runs/heads
# python -m experiments.train --config=configs/train_pass.py --data=runs/data --output=runs/pass
# python -m experiments.train --config=configs/train_draft_model.py --data=runs/data --output=runs/draft
# python -m experiments.decode --methods=autoregressive,blockwise,pass,draft_model \
#   --drafter=runs/heads/drafter.safetensors --drafter=runs/pass/drafter.safetensors \
#   --drafter=runs/draft/drafter.safetensors
# ```
#
# The configs are sized for a CPU. On a TPU or GPU:
#
# - **a bigger batch**: `--config.batch_size=32`, and `--mesh=data:8` on eight cores; a
#   window of 512 or 1024;
# - **bfloat16** for the frozen target: it is the default there (`--dtype=bfloat16`); what is
#   trained stays float32;
# - **more steps**: `--steps=5000` and more answers of the target; the curves above show when
#   it is enough;
# - `--config.objective.head_width=1024` for the heads: a wide layer costs nothing where memory
#   bandwidth is the limit.
#
# Training that stops at any moment goes on with the same command.
