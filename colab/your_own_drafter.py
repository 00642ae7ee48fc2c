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
# [![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/specjax/specjax/blob/main/colab/your_own_drafter.ipynb)
#
# # Your own drafter and verifier in 40 lines, proved lossless
#
# A **drafter** proposes tokens. A **verifier** keeps the part that the target model would have
# produced. Here we write one of each for a model so small that its law can be written down, and
# then check the promise: greedy text is the same to the last token, and sampled text has exactly
# the model's distribution.

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
import dataclasses

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import scipy.stats
from IPython.display import HTML, display

import specjax
from experiments import notebook_html
from specjax import sampling
from specjax.drafters.base import ChainDrafter
from specjax.models import Transformer, TransformerConfig
from specjax.types import Block, Draft, PolicyContext
from specjax.verifiers.base import RuleVerifier

# %% [markdown]
# ## The 40 lines
#
# - The drafter looks up a table: how likely is each token after the one before it? It says what
#   law it drew from (`log_probs`); a verifier cannot be exact without that.
# - The verifier is rejection sampling (Leviathan et al. 2023, arXiv 2211.17192, Algorithm 1): keep
#   a drafted token x with probability min(1, p(x) / q(x)); if not, the next token comes from what
#   is left, norm(max(0, p - q)).


# %%
@dataclasses.dataclass(frozen=True)
class TableDrafter(ChainDrafter):
  draft_length: int = 3

  def draft(self, params, state, context):
    token, seen = context.newest(1)[:, 0], context.policy_context  # [B]: the newest token
    tokens, laws = [], []
    for _ in range(self.draft_length):
      token, law = jax.vmap(sampling.propose)(context.policy, params[token], seen, context.row_keys)
      seen = jax.vmap(PolicyContext.advance)(seen, token)
      tokens.append(token)
      laws.append(law)
    tokens = jnp.stack(tokens, axis=1)  # [B, N]
    laws = None if laws[0] is None else jnp.stack(laws, axis=1)  # None: greedy, nothing is drawn
    return Draft.chain(tokens, jnp.ones(tokens.shape, bool), laws), state


class Rule:
  def law(self, policy, logits, context, draw_key):
    return jnp.exp(sampling.log_probs(policy, logits, context))  # p, [V]

  def judge(self, law, token, log_probs, uniform, depth):
    q = jax.nn.one_hot(token, law.size) if log_probs is None else jnp.exp(log_probs)
    left = jnp.maximum(law - q, 0)
    total = left.sum()
    left = jnp.where(total > 0, left / jnp.where(total > 0, total, 1), law)
    return uniform * q[token] < law[token], left

  def draw(self, law, draw_key):
    return sampling.sample_from_weights(draw_key, law).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class MyVerifier(RuleVerifier):
  def acceptance_rule(self, policy):
    return Rule()


# %% [markdown]
# ## A target with six tokens
#
# A real transformer, two layers deep, over the letters a to f. Its next letter depends on all
# letters before it, so a table can only guess.

# %%
LETTERS = "abcdef"
V = len(LETTERS)
config = TransformerConfig(
  vocab_size=V,
  hidden_size=16,
  intermediate_size=32,
  num_layers=1 if FAST else 2,
  num_heads=2,
  num_kv_heads=2,
  head_dim=8,
  max_positions=64,
)
model = Transformer(config, dtype="float32")
params = jax.jit(model.init)(jax.random.key(1))
head = params["head"]["kernel"]
params["head"]["kernel"] = 0.6 * head / head.std()  # so that it is sure of some letters


def spell(generation, row=0):
  return [LETTERS[token] for token in generation.new_tokens()[row]]


# %% [markdown]
# The drafter's table is learned in the plainest way: let the target write, count its pairs.

# %%
written = specjax.generate(
  model,
  params,
  np.zeros((64, 1), np.int32),
  policy=specjax.SamplingPolicy(temperature=1.0),
  max_new_tokens=12 if FAST else 24,
  capacity=64,
)
pairs = np.ones((V, V))
for row in written.new_tokens():
  np.add.at(pairs, (row[:-1], row[1:]), 1)
table = jnp.log(jnp.asarray(pairs / pairs.sum(axis=1, keepdims=True), jnp.float32))

# %% [markdown]
# ## Proof 1: greedy text, bit for bit
#
# The same prompts, with our drafter and our verifier, and without any draft.

# %%
prompts = np.arange(V, dtype=np.int32)[:, None]  # a, b, c, d, e, f
greedy = {"max_new_tokens": 40, "capacity": 64}
ours = {"drafter": TableDrafter(), "drafter_params": table, "verifier": MyVerifier()}

plain = specjax.generate(model, params, prompts, **greedy)
drafted = specjax.generate(model, params, prompts, **ours, **greedy)

np.testing.assert_array_equal(drafted.tokens, plain.tokens)
print("calls of the target, one token a call:", plain.target_calls)
print("calls of the target, with drafts:     ", drafted.target_calls)

# %%
display(HTML(notebook_html.legend()))
rows = {
  f"after {LETTERS[row]}": notebook_html.color_generation(drafted, spell(drafted, row), row)
  for row in range(3)
}
display(HTML(notebook_html.side_by_side(rows)))

# %% [markdown]
# ## Proof 2: the law of sampled text
#
# Three letters have 6 x 6 x 6 = 216 outcomes. One forward pass over all of them gives the exact
# probability of each: p(abc) = p(a) p(b | a) p(c | ab), at temperature 0.8.

# %%
TEMPERATURE, LENGTH = 0.8, 3
outcomes = np.indices((V,) * LENGTH).reshape(LENGTH, -1).T  # [216, 3]
texts = jnp.asarray(np.pad(outcomes, ((0, 0), (1, 0))), jnp.int32)  # after the prompt "a"


@jax.jit
def log_laws(params, texts):
  """The log of the law after each letter: [B, T] to [B, T, V]."""
  block = Block.chain(jnp.zeros(len(texts), jnp.int32), texts.shape[1])
  output = model.apply(params, texts, block, model.init_cache(*texts.shape))
  return jax.nn.log_softmax(model.logits(params, output.hidden) / TEMPERATURE)


laws = log_laws(params, texts)
each = jnp.take_along_axis(laws[:, :-1], texts[:, 1:, None], axis=2)
exact = np.exp(np.asarray(each, np.float64).sum(axis=(1, 2)))
print(f"{len(exact)} outcomes, probabilities sum to {exact.sum():.6f}")

# %% [markdown]
# Now decode many rows and count. For comparison, a verifier that is wrong on purpose: after a
# rejection it draws from p again, as if the rejected token had told it nothing.


# %%
class WrongRule(Rule):
  def judge(self, law, token, log_probs, uniform, depth):
    accept, _ = super().judge(law, token, log_probs, uniform, depth)
    return accept, law


@dataclasses.dataclass(frozen=True)
class WrongVerifier(RuleVerifier):
  def acceptance_rule(self, policy):
    return WrongRule()


ROWS, BATCHES = 4_000, 1 if FAST else 6


def count(verifier):
  """How often each outcome came, and the share of letters that were drafted."""
  counts, accepted = np.zeros(V**LENGTH), 0
  for seed in range(BATCHES):
    generation = specjax.generate(
      model,
      params,
      np.zeros((ROWS, 1), np.int32),
      **ours | {"verifier": verifier},
      policy=specjax.SamplingPolicy(temperature=TEMPERATURE),
      max_new_tokens=LENGTH,
      capacity=16,
      key=seed,
    )
    new = np.asarray(generation.tokens)[:, 1 : 1 + LENGTH]
    counts += np.bincount(new @ V ** np.arange(LENGTH)[::-1], minlength=V**LENGTH)
    accepted += int(generation.accepted_tokens.sum())
  return counts, accepted / (counts.sum() * LENGTH)


def p_value(counts):
  """Chi-square; outcomes expected less than five times are pooled."""
  expected = exact / exact.sum() * counts.sum()
  cell = np.where(expected < 5, 0, np.arange(1, len(expected) + 1))
  pooled = [np.bincount(cell, weights)[np.unique(cell)] for weights in (counts, expected)]
  return scipy.stats.chisquare(*pooled).pvalue


right, drafted_share = count(MyVerifier())
wrong, _ = count(WrongVerifier())
print(f"{int(right.sum())} texts; {drafted_share:.0%} of their letters were drafted")
print(f"p-value of our verifier:   {p_value(right):.3f}")
print(f"p-value of the wrong one:  {p_value(wrong):.1e}")
assert p_value(right) > 1e-3 > p_value(wrong)

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharex=True, sharey=True)
for axis, counts, title in zip(
  axes, (right, wrong), ("our verifier", "wrong on purpose"), strict=True
):
  axis.plot([1e-5, 1], [1e-5, 1], color="gray", linewidth=1)
  axis.scatter(exact, np.maximum(counts, 0.5) / counts.sum(), s=14, alpha=0.6)
  axis.set(xscale="log", yscale="log", xlabel="exact probability", title=title)
  axis.set(xlim=(exact.max() / 1e3, 1.5 * exact.max()), ylim=(exact.max() / 1e3, 1.5 * exact.max()))
axes[0].set_ylabel("share of the decoded texts")
figure.suptitle("Each dot is one of the 216 three-letter texts")
plt.show()

# %% [markdown]
# ## And now?
#
# - Break the rule in another way and run the notebook again: the chi-square test should notice.
# - A draft may be a *tree*: see `docs/adding_a_drafter.md`; a rule serves trees unchanged.
# - To have the tests of specjax check your drafter, add it to the registry and to
#   `tests/drafters/test_contract.py`.
