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
# [![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/specjax/specjax/blob/main/colab/quick_start.ipynb)
#
# # Quick start: the same text, visibly faster
#
# A language model writes one token a call. Speculative decoding lets something cheap *draft* the
# next tokens and the model check all of them in **one** call. What it would not have written
# itself is thrown away, so the text is the same text.
#
# Here SmolLM2-135M-Instruct rewrites a piece of code. The drafter is *prompt lookup*: it
# copies what followed the newest words the last time that they occurred.

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
import time

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML, display

import specjax
from experiments import notebook_html
from specjax.models import checkpoint
from specjax.models.stream_decoder import StreamDecoder

target = checkpoint.load("smollm2-135m-instruct", log=lambda line: None)
print(
  f"{target.name}, {target.model.num_layers} layers, {target.model.dtype}, from {target.source}"
)

# %%
QUESTION = """Rewrite this Python code with type hints:

```python
def average_speed(distance, time):
    if time == 0:
        raise ValueError("time must not be zero")
    return distance / time

def average_weight(weights):
    if len(weights) == 0:
        raise ValueError("weights must not be empty")
    return sum(weights) / len(weights)
```"""

NEW_TOKENS = 8 if FAST else 94
prompt = target.tokenizer.encode_chat([{"role": "user", "content": QUESTION}])

# %% [markdown]
# One function decodes and notes when each token came. A session runs the compiled loop in slices;
# here a slice is one round: draft, score, verify, commit.


# %%
def decode(drafter, **options):
  """Returns the `Generation`, the text of each new token, and when it came, in seconds."""
  options |= {"drafter": drafter, "max_new_tokens": NEW_TOKENS, "eos_ids": target.eos_ids}
  specjax.open_session(target.model, target.params, [prompt], **options).advance(0)  # compiles
  seconds, started, running = [], time.perf_counter(), True
  session = specjax.open_session(target.model, target.params, [prompt], **options)
  while running:
    running = session.advance(1)
    _, (length,), _ = session.snapshot()
    seconds += [time.perf_counter() - started] * (length - len(prompt) - len(seconds))
  generation = session.generation()
  text = StreamDecoder(target.tokenizer, skip_special_tokens=True)
  return generation, [text.push(token) for token in generation.new_tokens()[0]], seconds


plain, plain_pieces, plain_seconds = decode(None)
fast, fast_pieces, fast_seconds = decode(specjax.drafters.PromptLookup(draft_length=8))

# %% [markdown]
# Both texts write themselves at the speed at which they were decoded (run the cell again to see it
# again).

# %%
display(HTML(notebook_html.legend()))
texts = {
  f"one token a call: {plain_seconds[-1]:.1f} s": (plain, plain_pieces, plain_seconds),
  f"prompt lookup: {fast_seconds[-1]:.1f} s": (fast, fast_pieces, fast_seconds),
}
columns = {
  title: notebook_html.color_generation(generation, pieces, seconds=seconds)
  for title, (generation, pieces, seconds) in texts.items()
}
display(HTML(notebook_html.side_by_side(columns)))

# %%
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for title, (_, _, seconds) in texts.items():
  axis.step([0, *seconds], np.arange(len(seconds) + 1), where="post", label=title)
axis.set(xlabel="seconds", ylabel="tokens", title="Every step is one call of the model")
axis.legend()
axis.grid(alpha=0.3)
plt.show()

# %% [markdown]
# Is it the same text? Greedy decoding in float32: token by token, yes. In bfloat16, the default on
# GPU and TPU, two tokens that are nearly as likely can swap, with or without drafts;
# `check_greedy` tells that from an error.

# %%
from specjax.evaluation import check_greedy

same = fast.new_tokens() == plain.new_tokens()
print(f"the same tokens: {same}")
if not same:
  check = check_greedy(target.model, target.params, prompt, fast.new_tokens()[0], epsilon=0.5)
  assert check.passed, check.report()
print(f"calls of the model: {int(plain.target_calls[0])} and {int(fast.target_calls[0])}")
print(f"tokens a call: {float(fast.block_efficiency[0]):.2f}")
print(f"seconds: {plain_seconds[-1]:.2f} and {fast_seconds[-1]:.2f}")

# %% [markdown]
# ## And now?
#
# - Write your own `QUESTION` above. Prompt lookup copies: it helps where the answer repeats the
#   question (editing, summaries, code) and does nothing for a poem.
# - Trained drafters come with specjax for this model:
#   `python -m experiments.decode --config=configs/trained_drafters.py` compares them.
# - Sampling: `policy=specjax.SamplingPolicy(temperature=0.8)` keeps the model's law exactly. The
#   notebook *your own drafter* proves it.
